"""Parts of GPUs by the resource names of HAMi, Volcano and vgpu-manager. Pure.

They ask for a number of GPUs, and an amount of memory and a percentage of the SMs of each. Here a
claim asks for such a part by consumable capacity, and MPS limits it.
"""

from collections.abc import Mapping

from msgspec import Struct

from dra_driver.admin.convert.outcome import Object
from dra_driver.devices.names import DRIVER_NAME
from resource_nvidia_com.quantity import Quantity
from resource_nvidia_com.resource_names import GPU
from resource_nvidia_com.v1beta1.names import API_VERSION

_FAMILIES = (
    (GPU, "nvidia.com/gpumem", "nvidia.com/gpucores"),  # HAMi
    ("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),  # vgpu-manager
    ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"),
)
"""GPUs; MiB and percent of each."""

_WHOLE_PERCENT = 100

NO_COUNTERPART: Mapping[str, str] = {
    "nvidia.com/gpumem-percentage": "a claim asks for an amount of memory: write nvidia.com/gpumem "
    "with the MiB, and convert again",
    "volcano.sh/vgpu-memory-percentage": "a claim asks for an amount of memory: write "
    "volcano.sh/vgpu-memory with the MiB, and convert again",
    "nvidia.com/priority": "tasks of a GPU have no priority here: remove it",
}
"""Limits that cannot be converted, and what to do."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What a container's limits ask for: devices, and the part of each (0: all) in MiB and percent.

    `names` are the limits that say so.
    """

    resource: str
    amount: int
    memory_mib: int = 0
    cores: int = 0
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        """The end of a template's name, after the resource."""
        parts = (f"{self.memory_mib}mi", self.memory_mib), (f"{self.cores}-percent", self.cores)
        return "-".join((str(self.amount), *(text for text, is_said in parts if is_said)))

    @property
    def part(self) -> Object:
        """What a request has under `exactly`; nothing for whole devices."""
        memory = {"memory": f"{self.memory_mib}Mi"} if self.memory_mib else {}
        cores = {"cores": str(self.cores)} if self.cores else {}
        requests = {**memory, **cores}
        # Not the class of nvidia.com/gpu, which also selects shares of a fixed size.
        class_name = {"deviceClassName": "gpu.nvidia.com"}
        return {**class_name, "capacity": {"requests": requests}} if requests else {}


def config_of(request: str) -> Object:
    """Return the config by which MPS limits what a request asked for."""
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    return {"requests": [request], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}


def read(limits: Mapping[str, object]) -> Wanted | None:
    """Return the part of GPUs that limits ask for; None if they ask for none.

    The amount is 0 for a part that a claim cannot ask for.
    """
    is_percentage = any(name.endswith("-percentage") and name in NO_COUNTERPART for name in limits)
    for count, memory, cores in _FAMILIES:
        names = tuple(name for name in (count, memory, cores) if name in limits)
        if not names or (names == (GPU,) and not is_percentage):
            continue
        # The webhooks of these projects add one GPU if the number is missing.
        amount, mib, percent = (
            whole(limits.get(name, default))
            for name, default in ((count, 1), (memory, 0), (cores, 0))
        )
        return Wanted(
            resource=GPU,
            amount=0 if is_percentage else amount,
            memory_mib=mib,
            cores=0 if percent >= _WHOLE_PERCENT else percent,
            names=names,
        )
    return None


def whole(written: object) -> int:
    """Return an amount; 0 if it is none, which `validate` says."""
    try:
        amount, rest = divmod(Quantity.parse(str(written)).nanos, 10**9)
    except ValueError:
        return 0
    return 0 if rest or amount < 0 else amount
