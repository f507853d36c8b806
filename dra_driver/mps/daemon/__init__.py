"""Starts, queries, probes and limits one `nvidia-cuda-mps-control`."""
