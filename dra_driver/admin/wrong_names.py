"""Resource names that people write and nothing serves, with what they most likely mean. Pure.

Old names stay in manifests for long, and an unknown name keeps a pod Pending without a message.
"""

import re

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


def meant(name: str) -> str:
    """Return what is wrong with a resource name, and what to write; empty for any other name."""
    if name == _GPU:
        return ""
    return next((text for pattern, text in _WRONG if pattern.fullmatch(name)), "")
