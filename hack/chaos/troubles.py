"""The troubles that a campaign can strike a node with, as data; chaos.node knows how."""

import random
from dataclasses import dataclass

GREEDY = "greedy-container"
"""A container that takes more memory of a GPU than its limit."""

LONGEST = 15.0
"""Seconds that a trouble lasts at most."""

_CALLS = (
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvidia-smi:set-timeslice",
)
"""Calls of driver and supervisor, each of which can fail and hang."""

_CHANGES = (
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
)
"""Calls that change a GPU: a process that dies during one leaves things half done."""

_CODES = (15, 19, 999)
"""NVML's GPU_IS_LOST, IN_USE and UNKNOWN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One kind of trouble. Two with the same target never happen together."""

    name: str
    strikes: str
    lasts: bool = True
    """Whether it lasts until it is ended; the others are over at once."""

    alone: bool = False
    gpu: bool = False
    """Whether its target is one GPU, which is chosen."""

    calls: tuple[str, ...] = ()
    """NVML functions of which one is chosen."""

    def choose(self, chance: random.Random, gpus: int) -> str:
        """Choose its target: `slot`, `function slot`, and so on, as chaos.node reads it."""
        words = []
        if self.calls:
            words.append(chance.choice(self.calls))
        if self.gpu:
            words.append(str(chance.randrange(gpus)))
        if self.name == GREEDY:
            words.append(str(chance.randrange(100)))
        if self.name == "nvml-fail":
            words.append(str(chance.choice(_CODES)))
        if self.name == "nvml-kill":
            words.append(chance.choice(("before", "after")))
        return " ".join(words)


TROUBLES: tuple[Trouble, ...] = (
    Trouble(name="driver-kill", strikes="driver"),
    Trouble(name="driver-stop", strikes="driver"),
    Trouble(name="driver-freeze", strikes="driver"),
    Trouble(name="supervisor-kill", strikes="supervisor"),
    Trouble(name="supervisor-freeze", strikes="supervisor"),
    Trouble(name="mps-daemons-kill", strikes="mps", lasts=False),
    Trouble(name="kubelet-kill", strikes="kubelet"),
    Trouble(name="runtime-kill", strikes="runtime"),
    Trouble(name="apiserver-kill", strikes="apiserver"),
    Trouble(name="disk-full", strikes="disk"),
    Trouble(name="disk-read-only", strikes="disk"),
    Trouble(name="nvml-fail", strikes="nvml", gpu=True, calls=_CALLS),
    Trouble(name="nvml-hang", strikes="nvml", gpu=True, calls=_CALLS),
    Trouble(name="nvml-kill", strikes="driver", gpu=True, calls=_CHANGES),
    # Not without the API server, which knows the containers.
    Trouble(name=GREEDY, strikes="apiserver", lasts=False),
    Trouble(name="gpu-lose", strikes="gpu", gpu=True),
    Trouble(name="gpu-remove", strikes="gpu", gpu=True),
    Trouble(name="gpu-xid", strikes="gpu", lasts=False, gpu=True),
    Trouble(name="kernel-driver-unload", strikes="nvml"),
    Trouble(name="cdi-wipe", strikes="cdi", lasts=False),
    Trouble(name="slices-wipe", strikes="slices", lasts=False),
    Trouble(name="reboot", strikes="node", lasts=False, alone=True),
)
