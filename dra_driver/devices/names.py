"""Device names as NVIDIA's own DRA driver gives them, so that they work here unchanged.

A whole GPU is `gpu-<minor>`: the minor number of its device node, not NVML's index. A device name
is a DNS label (resource.k8s.io/v1 Device.name, at most 63 bytes).
"""

from typing import NewType

DRIVER_NAME = "gpu.nvidia.com"
"""The DRA driver's name: in ResourceSlices, allocation results and the kubelet's registration."""

DeviceName = NewType("DeviceName", str)


def gpu_name(minor: int) -> DeviceName:
    """Return the device name of the whole GPU behind /dev/nvidia<minor>."""
    return DeviceName(f"gpu-{minor}")
