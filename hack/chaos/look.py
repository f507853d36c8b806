"""Inspects a node by the means of a person on it; chaos.holds judges the result."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from testbed import mps
from testbed.api import Object
from testbed.driver import DriverProcess, resident_memory
from testbed.mounts import mounts_below
from testbed.node import GpuNode
from testbed.pods import exec_in, explain, is_ready, parse_gpu_list, parse_mig_list

from chaos.holds import ClaimSeen, ContainerSeen, Look, ProcessSeen
from chaos.workloads import NAMESPACE, division_of, pods_of

_CGROUPS = Path("/sys/fs/cgroup")
_GROUP = "dra-driver-mps"
_CONTROL = b"nvidia-cuda-mps-control"[:15]
"""The daemon's name, as far as the kernel keeps it."""


Parts = Mapping[str, tuple[str, bool]]
"""For each device its GPU (by UUID), and whether the device is only a part of it."""


def parts(node: GpuNode) -> Parts:
    """Read from the driver's slices which GPU each device belongs to."""
    known = {}
    for device in _devices(node):
        facts = device["attributes"]
        is_part = facts["type"]["string"] == "mig"
        known[device["name"]] = (facts["parentUUID" if is_part else "uuid"]["string"], is_part)
    return known


def by_gpu(node: GpuNode, parts: Parts) -> dict[str, tuple[str, ...]]:
    """The devices that are published now, as JSON, by the UUID of their GPU."""
    by_uuid: dict[str, list[str]] = {}
    for device in _devices(node):
        gpu, _ = parts[device["name"]]
        by_uuid.setdefault(gpu, []).append(_as_json(device))
    return {gpu: tuple(devices) for gpu, devices in by_uuid.items()}


def ours(node: GpuNode) -> dict[str, DriverProcess]:
    """The processes that must keep running, by name."""
    return {"driver": node.driver, "MPS supervisor": node.supervisor}


def claims(node: GpuNode, parts: Parts) -> tuple[ClaimSeen, ...]:
    """The existing claims."""
    stored = node.cluster.api.all("ResourceClaim", NAMESPACE)
    return tuple(_claim(claim, parts) for claim in stored)


def look(node: GpuNode, lives: Mapping[str, int], parts: Parts) -> Look:
    """Inspect everything except the inside of containers.

    `lives` are the PIDs of our processes as they were started.
    """
    place, api = node.place, node.cluster.api
    pods = api.all("Pod", NAMESPACE)
    daemons = {pid: uid for pid, uid in mps.processes(place.plugins).items() if _is_control(pid)}
    return Look(
        pods={pod["metadata"]["name"]: "" if is_ready(pod) else explain(api, pod) for pod in pods},
        claims=claims(node, parts),
        records=tuple(place.records()),
        specs=tuple(place.cdi_files()),
        domains=tuple(place.mps_files()),
        members=tuple(
            f"{path.parent.name.partition('_mig_')[0]}/{path.name}"
            for path in place.mps.glob("members/*/*")
        ),
        daemons=daemons,
        grouped=tuple(_of_us(_grouped(), place.mps)),
        mounts=tuple(mounts_below(place.mps)),
        migs=node.machine.mig_parents(),
        settings=node.machine.settings(),
        devices=tuple(map(_as_json, _devices(node))),
        processes={name: _process(process, lives[name]) for name, process in ours(node).items()},
    )


def containers(node: GpuNode, workloads: Iterable[str]) -> dict[str, ContainerSeen]:
    """What the containers of running pods see, by pod."""
    return {pod: _container(node, pod) for workload in workloads for pod in pods_of(workload)}


def _container(node: GpuNode, pod: str) -> ContainerSeen:
    text = exec_in(node.cluster, pod, "ctr", NAMESPACE, "nvidia-smi", "-L")
    pod_seen = node.cluster.api.get("Pod", pod, NAMESPACE)
    (status,) = pod_seen["status"]["containerStatuses"]
    return ContainerSeen(
        gpus=parse_gpu_list(text),
        migs=tuple(parse_mig_list(text)),
        restarts=status["restartCount"],
        id=container_id(pod_seen),
    )


def container_ids(node: GpuNode) -> dict[str, str]:
    """The ids of the containers of pods that run, by pod."""
    pods = node.cluster.api.all("Pod", NAMESPACE)
    return {pod["metadata"]["name"]: container_id(pod) for pod in pods if is_ready(pod)}


def container_id(pod: Object) -> str:
    """The id of the container that a pod has now."""
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"]).rpartition("/")[2]


def _devices(node: GpuNode) -> list[Object]:
    return [device for each in node.slices() for device in each.get("devices", [])]


def _as_json(device: Object) -> str:
    return json.dumps(device, sort_keys=True)


def _claim(claim: Object, parts: Parts) -> ClaimSeen:
    allocation = claim.get("status", {}).get("allocation", {})
    names = [result["device"] for result in allocation.get("devices", {}).get("results", [])]
    facts = [(*parts[name], division_of(name)) for name in names]
    return ClaimSeen(
        uid=claim["metadata"]["uid"],
        workload=_workload(claim["metadata"]["name"]),
        devices=tuple(names),
        gpus=tuple(gpu for gpu, is_mig, division in facts if not is_mig and division is None),
        parents=tuple(gpu for gpu, is_mig, _ in facts if is_mig),
        shares={gpu: division for gpu, _, division in facts if division is not None},
    )


def _workload(claim: str) -> str:
    """The workload of a claim's name, which consists of the workload's and the claim's own."""
    return claim.rpartition("-")[0]


def _process(process: DriverProcess, pid: int) -> ProcessSeen:
    resident, descriptors = 0, 0
    with suppress(OSError):
        resident = resident_memory(pid)[0]
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    same = process.running() and process.pid == pid
    return ProcessSeen(same_life=same, resident=resident, descriptors=descriptors)


def _is_control(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes().strip() == _CONTROL
    return False


def _grouped() -> Iterator[int]:
    """The PIDs in the control group of MPS, in all hierarchies."""
    for group in (_CGROUPS / _GROUP, *_CGROUPS.glob(f"*/{_GROUP}")):
        with suppress(OSError):
            yield from map(int, (group / "cgroup.procs").read_text().split())


def _of_us(pids: Iterable[int], folder: Path) -> Iterator[int]:
    """Those of this node, not of another node on the same machine."""
    for pid in {*pids}:
        with suppress(OSError):
            if os.fsencode(folder) in Path(f"/proc/{pid}/environ").read_bytes():
                yield pid
