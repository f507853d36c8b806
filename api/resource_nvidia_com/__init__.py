"""Opaque claim configs of the API group resource.nvidia.com."""
