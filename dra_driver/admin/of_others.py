"""What other projects that share GPUs read in manifests, and this driver ignores. Pure.

In: annotations of pods for HAMi and KAI-Scheduler, their schedulers, and their resource names in
objects of any kind. Out: why they have no effect, and what to write instead. (HAMi:
pkg/device/nvidia/device.go; KAI-Scheduler: pkg/common/constants.)
"""

import re
from collections.abc import Iterator, Mapping

from dra_driver.kube.fields import Object, text
from resource_nvidia_com.printable import plain
from resource_nvidia_com.problems import Path, Problem, dotted, parts
from resource_nvidia_com.resource_names import GPU, PREFIX

FAMILIES = (
    (GPU, "nvidia.com/gpumem", "nvidia.com/gpucores"),  # HAMi
    ("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),  # vgpu-manager
    ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"),
)
"""Names in limits: GPUs; MiB and percent of each."""

NO_COUNTERPART: Mapping[str, str] = {
    "nvidia.com/gpumem-percentage": "a claim asks for an amount of memory: write nvidia.com/gpumem "
    "with the MiB, and convert again",
    "volcano.sh/vgpu-memory-percentage": "a claim asks for an amount of memory: write "
    "volcano.sh/vgpu-memory with the MiB, and convert again",
    "nvidia.com/priority": "tasks of a GPU have no priority here: remove it",
}
"""Limits that cannot be converted, and what to do."""

NOT_SERVED = "this driver does not serve this name: `dra-driver convert` makes a claim of it"
NAMES = {name for family in FAMILIES for name in family if name != GPU} | {*NO_COUNTERPART}

_LIMITS = "neither HAMi nor this driver reads this: write it in the limits of a container"
_CARDS, _GPUS = (
    f"only HAMi reads this: select {what} in the claim"
    for what in ("cards by productName", "GPUs by uuid")
)
_KAI = "only KAI-Scheduler reads this, and without a claim the pod gets no GPU: "
_PART = "`dra-driver convert` makes a claim for a part of a GPU"

_KAI_FRACTION = "gpu-fraction"
KAI_MEMORY = "gpu-memory"
KAI_CONTAINER = "gpu-fraction-container-name"
KAI_DEVICES = "gpu-fraction-num-devices"
KAI_PARTS = {_KAI_FRACTION, KAI_MEMORY, KAI_DEVICES}
"""Annotations by which a pod asks KAI-Scheduler for a part of a GPU."""

ANNOTATIONS: Mapping[str, str] = {
    "nvidia.com/gpumem": _LIMITS,
    "nvidia.com/gpucores": _LIMITS,
    "nvidia.com/use-gputype": _CARDS,
    "nvidia.com/nouse-gputype": _CARDS,
    "nvidia.com/use-gpuuuid": _GPUS,
    "nvidia.com/nouse-gpuuuid": _GPUS,
    "nvidia.com/numa-bind": "only HAMi reads this: write the constraint `matchAttribute: "
    "resource.kubernetes.io/numaNode` in the claim",
    "nvidia.com/vgpu-mode": "only HAMi reads this: ask for a MIG device, or for a part of a GPU",
    _KAI_FRACTION: f"{_KAI}write {KAI_MEMORY} with the MiB in place of it, and {_PART}",
    KAI_MEMORY: f"{_KAI}{_PART}",
}
"""Annotations of pods, and what to do."""

_PREFIXES: Mapping[str, str] = {
    "hami.io/": "only HAMi reads this: remove it",
    "nvidia.com/container.": f"{_KAI}ask for a part by capacity (docs/converting.md)",
}
"""Prefixes of such annotations."""

_OF_PLUGIN = re.compile(rf"{re.escape(GPU)}(\.shared)?$|{re.escape(PREFIX)}mig-")
_COUNTED = ("hard", "max", "min", "default", "defaultRequest")
_QUOTA = re.compile(r"^(requests|limits)\.")
_NO_QUOTA = (
    "unchanged: this counts nothing here: quotas count devices by DeviceClass "
    "(docs/works-with.md#resourcequota)"
)
_BY_HAND = (
    "write claims into them, if the kind takes any; from Kubernetes 1.36 on nvidia.com/gpu and "
    "nvidia.com/mig-… may stay"
)
_MACHINES = (
    "unchanged: virtual machines are not converted: they get a GPU by a claim (docs/passthrough.md)"
)

HAMI = "hami-scheduler"
SCHEDULERS = {HAMI: "HAMi", "kai-scheduler": "KAI-Scheduler", "volcano": "Volcano"}


def unread(annotations: Object, path: Path) -> Iterator[Problem]:
    """Yield the annotations of a pod that ask for something, but that this driver ignores."""
    for name in annotations:
        begin = next((one for one in _PREFIXES if name.startswith(one)), "")
        if why := ANNOTATIONS.get(name) or _PREFIXES.get(begin):
            yield _problem((*path, name), why)


def scheduler(spec: object, path: Path) -> Iterator[Problem]:
    """Yield the scheduler of a pod if it belongs to one of these projects."""
    if project := SCHEDULERS.get(text(spec, "schedulerName")):
        why = f"unchanged: once {project} is removed, such pods stay Pending: then remove this"
        yield _problem((*path, "schedulerName"), why)


def left(value: Object) -> Iterator[Problem]:
    """Yield the fields about GPUs in an object of a kind that is not converted."""
    pods = f"unchanged: pods of a {plain(text(value, 'kind'))} are not converted: {_BY_HAND}"
    found = [
        problem for path, part in parts(value) if path for problem in _of_part(part, path, pods)
    ]
    yield from found
    if found:
        for path, part in parts(value):
            yield from scheduler(part, path)


def _of_part(part: object, path: Path, pods: str) -> Iterator[Problem]:
    if not isinstance(part, Mapping):
        yield from _of_text(part, path)
        return
    if path[-1] == "annotations":
        yield from unread(part, path)
    for key in part:
        name = _QUOTA.sub("", str(key))
        if path[-1] in ("limits", "requests") and (name in NAMES or _OF_PLUGIN.match(name)):
            yield _problem((*path, key), pods)
        elif path[-1] in _COUNTED and name in NAMES:
            yield _problem((*path, key), _NO_QUOTA)


def _of_text(part: object, path: Path) -> Iterator[Problem]:
    if path[-1] == "deviceName" and str(part).startswith(PREFIX):
        yield _problem(path, _MACHINES)
    elif isinstance(part, str) and part in NAMES:
        yield _problem(path, _NO_QUOTA)


def _problem(path: Path, why: str) -> Problem:
    return Problem(path=path, text=f"{dotted(path)}: {why}")
