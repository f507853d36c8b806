"""Kubernetes DRA driver for NVIDIA GPUs."""
