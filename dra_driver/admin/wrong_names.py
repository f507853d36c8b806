"""Resource names that people write and nothing serves, with what they most likely mean. Pure.

Old names stay in manifests for years, and an unknown name keeps a pod Pending without a message.
"""

import re
from collections.abc import Mapping

_GPU = "nvidia.com/gpu"
_WRONG = (
    (
        re.compile(r"alpha\.kubernetes\.io/nvidia-gpu"),
        f"Kubernetes before 1.11 used this name; ask for {_GPU}",
    ),
    (
        re.compile(r"(?i)nvidia\.com/gpus?|(gpu|gpus)\.nvidia\.com(/gpus?)?|nvidia/gpus?"),
        f"the name is {_GPU}",
    ),
    (
        re.compile(r"nvidia\.com/GRID_.*"),
        "this is a vGPU for virtual machines, which this driver does not offer",
    ),
)
_PROFILE = re.compile(r"nvidia\.com/mig-(?:[0-9]+c\.)?([0-9]+)g\.([0-9]+)gb([.-].*)?")
_MEMORY: Mapping[str, tuple[int, ...]] = {
    "1": (5, 6, 10, 12, 16, 18, 20, 23, 24, 34, 35, 36, 45, 47, 67, 70),
    "2": (10, 12, 20, 24, 32, 35, 36, 45, 47, 48, 67, 70),
    "3": (20, 40, 47, 48, 71, 72, 90, 93, 95, 135, 139),
    "4": (20, 24, 40, 47, 48, 71, 72, 90, 93, 96, 135, 139),
    "7": (40, 80, 94, 96, 141, 144, 180, 186, 189, 269, 278),
}
"""Gigabytes of known MIG profiles by their slices (NVIDIA's MIG user guide, mig-parted)."""


def meant(name: str) -> str:
    """Return what is wrong with a resource name, and what to write; empty for any other name."""
    if name == _GPU:
        return ""
    profile = _PROFILE.fullmatch(name)
    if profile and int(profile[2]) not in _MEMORY.get(profile[1], ()):
        known = [f"{profile[1]}g.{size}gb" for size in _MEMORY.get(profile[1], ())]
        there = known or [f"{slices}g.{sizes[0]}gb" for slices, sizes in _MEMORY.items()]
        return (
            f"no known card has such a MIG profile; there are profiles such as {', '.join(there)}"
        )
    return next((text for pattern, text in _WRONG if pattern.fullmatch(name)), "")
