"""Starts, queries and limits one `nvidia-cuda-mps-control`."""
