"""The kubelet asks, we answer: registration and DRA services."""
