"""NVIDIA's own DRA driver as a process of this host, from an existing binary.

It has the environment of this driver's DaemonSet, whose names are NVIDIA's, and settings for its
best speed: by default its client makes five requests a second.
"""

from collections.abc import Mapping
from pathlib import Path

from testbed.driver import DriverProcess, Place

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_NVML = "libnvidia-ml.so.1"
_ENV: Mapping[str, str] = {
    "IMAGE_NAME": "of-no-pod",  # of the MPS daemons' pods, which no claim here asks for
    "NVIDIA_CDI_HOOK_PATH": "/bin/true",  # no container starts
    "KUBE_API_QPS": "1000",
    "KUBE_API_BURST": "1000",
    "FEATURE_GATES": "TimeSlicingSettings=true",
}


class NvidiaDriver(DriverProcess):
    """NVIDIA's `gpu-kubelet-plugin`."""

    command = "-v=1"  # it has no sub-commands; -v=1 is klog's verbosity

    def __init__(self, place: Place, log: Path, *, program: Path) -> None:
        super().__init__(place, log, _ENV, program=program)
        # It looks for NVML where distributions have it or a link to it.
        link = place.driver_root / _LIBRARIES / _NVML
        if not link.exists():
            link.symlink_to(Path("nvidia/current") / _NVML)

    def wait_started(self) -> None:
        """Return: it registers with the kubelet when it has started."""
