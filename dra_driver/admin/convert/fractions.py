"""Parts of GPUs, as HAMi, Volcano, vgpu-manager and KAI-Scheduler name them. Pure.

They ask for a number of GPUs, and an amount of memory and a percentage of the SMs of each, as
numbers without units. Here a claim asks for such a part by consumable capacity, and MPS limits it.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dra_driver.admin.convert.outcome import Object, loss
from dra_driver.admin.of_others import (
    FAMILIES,
    KAI_CONTAINER,
    KAI_DEVICES,
    KAI_MEMORY,
    NO_COUNTERPART,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, entries, text
from resource_nvidia_com.printable import shown
from resource_nvidia_com.problems import Path, Problem
from resource_nvidia_com.quantity import Quantity
from resource_nvidia_com.resource_names import GPU, PREFIX
from resource_nvidia_com.v1beta1.names import API_VERSION

_WHOLE_PERCENT = 100
_PLAIN = re.compile(r"[0-9]+")


class Wanted(Struct, frozen=True, kw_only=True):
    """What a container's limits ask for: devices, and the part of each (0: all) in MiB and percent.

    `names` are the names of these limits.
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
    """Return the config that makes MPS limit a request to what it asks for."""
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    return {"requests": [request], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}


def read(limits: Mapping[str, object], path: Path, losses: list[Problem]) -> Wanted | None:
    """Return the part of GPUs that the limits at `path` ask for; None if they ask for none.

    The amount is 0 for a part that a claim cannot ask for.
    """
    is_percentage = any(name.endswith("-percentage") and name in NO_COUNTERPART for name in limits)
    for count, memory, cores in FAMILIES:
        names = tuple(name for name in (count, memory, cores) if name in limits)
        if not names or (names == (GPU,) and not is_percentage):
            continue
        wrong = [name for name in names if not _PLAIN.fullmatch(str(limits[name]))]
        wrong += [count] if limits.get(count) in (0, "0") else []
        for name in wrong:
            unit = {memory: "MiB", cores: "percent"}.get(name, "GPUs")
            why = f"unchanged: write a whole number of {unit}, without a unit, in place of"
            losses.append(loss((*path, name), f"{why} {shown(limits[name])}, and convert again"))
        # The webhooks of these projects add one GPU if the number is missing.
        amount, mib, percent = (
            whole(limits.get(name, default))
            for name, default in ((count, 1), (memory, 0), (cores, 0))
        )
        if not wrong and percent > _WHOLE_PERCENT:
            why = f"converted as {_WHOLE_PERCENT} percent, which is all of a GPU, as in HAMi"
            losses.append(loss((*path, cores), why))
        return Wanted(
            resource=GPU,
            amount=0 if is_percentage or wrong else amount,
            memory_mib=mib,
            cores=0 if percent >= _WHOLE_PERCENT else percent,
            names=names,
        )
    return None


def limits_of_kai(pod: Any) -> None:
    """Replace KAI-Scheduler's annotations for a part of a GPU by the limits that HAMi reads."""
    annotations: Any = at(pod, "metadata", "annotations")
    name = text(annotations, KAI_CONTAINER)
    containers: list[Any] = [
        container
        for part in ("containers", "initContainers")
        for container in entries(pod, "spec", part)
        if not name or text(container, "name") == name
    ]
    memory, devices = (text(annotations, key) for key in (KAI_MEMORY, KAI_DEVICES))
    if not containers or not _PLAIN.fullmatch(memory) or not _PLAIN.fullmatch(devices or "1"):
        return
    resources = containers[0].setdefault("resources", {})
    limits = resources.setdefault("limits", {}) if isinstance(resources, dict) else None
    if isinstance(limits, dict) and not any(name.startswith(PREFIX) for name in limits):
        limits |= {GPU: devices or "1", FAMILIES[0][1]: memory}
        for key in (KAI_MEMORY, KAI_CONTAINER, KAI_DEVICES):
            annotations.pop(key, None)
        if not annotations:
            del pod["metadata"]["annotations"]


def whole(written: object) -> int:
    """Return a whole amount; 0 for anything else, which `validate` reports."""
    try:
        amount, rest = divmod(Quantity.parse(str(written)).nanos, 10**9)
    except ValueError:
        return 0
    return 0 if rest or amount < 0 else amount
