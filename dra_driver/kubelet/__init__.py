"""The kubelet asks, the driver answers: registration and DRA services."""
