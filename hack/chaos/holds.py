"""The invariants after repair: a view of the node, and what is wrong with it.

`judge` is pure, so that each rule can be tested with a node that breaks it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from testbed.machine import GpuSettings

from chaos.workloads import MPS, Kind, kind_of, pods_of
from dra_driver.host.words import named


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """A claim as the API server has it."""

    uid: str
    workload: str
    gpus: tuple[str, ...] = ()
    """UUIDs of its whole GPUs."""

    parents: tuple[str, ...] = ()
    """UUIDs of the GPUs of its MIG devices, one for each."""

    shares: Mapping[str, str] = field(default_factory=dict)
    """How the GPUs (by UUID) of its shares are divided."""

    devices: tuple[str, ...] = ()
    """The names of all its devices."""

    @property
    def domain(self) -> str | None:
        """The name of its MPS domain; None if it has none, or one for each MIG device."""
        served = [gpu for gpu, division in self.shares.items() if division == MPS]
        if served:
            return f"shared_{served[0]}"
        return self.uid if kind_of(self.workload).domains else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSeen:
    """What a container sees."""

    gpus: tuple[str, ...] = ()
    migs: tuple[str, ...] = ()
    restarts: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """One of our processes: whether it is still the started one, and its resources."""

    same_life: bool
    resident: int
    """Bytes."""

    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A node at one moment."""

    pods: Mapping[str, str]
    """Why each pod does not run; empty if it runs."""

    claims: tuple[ClaimSeen, ...]
    records: tuple[str, ...]
    specs: tuple[str, ...]
    domains: tuple[str, ...]
    """Names of MPS domains' files and folders."""

    members: tuple[str, ...]
    """The members of MPS domains, as `domain/claim UID`."""

    daemons: Mapping[int, str]
    """MPS control daemons' PIDs and domains."""

    grouped: tuple[int, ...]
    """PIDs in the control group of MPS."""

    mounts: tuple[str, ...]
    """Mount points below the folder of MPS."""

    migs: tuple[str, ...]
    """The parents' UUIDs of existing MIG devices, one for each."""

    settings: Mapping[str, GpuSettings]
    devices: tuple[str, ...]
    """All devices in the slices, as JSON."""

    processes: Mapping[str, ProcessSeen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The expected state of a node."""

    workloads: tuple[str, ...]
    division: str
    """The share config in force."""

    offers: Mapping[str, Mapping[str, tuple[str, ...]]]
    """What is published for each GPU (its UUID) under each share config, as JSON."""

    settings: Mapping[str, GpuSettings]
    """As they are while nobody has claims."""

    processes: Mapping[str, ProcessSeen]
    """At the start, with nothing prepared."""


_MEMORY = 32 * 1024 * 1024
"""Bytes by which a process may grow after the start, with everything prepared."""

_DESCRIPTORS = 48


def judge(wanted: Wanted, look: Look) -> list[str]:
    """Return what is wrong with a node, a sentence each."""
    return [
        *_pods(wanted, look),
        *_files(look),
        *_mps(look),
        *_migs(look),
        *_settings(wanted, look),
        *_devices(wanted, look),
        *_processes(wanted, look),
    ]


def judge_containers(
    restarts: Mapping[str, int],
    containers: Mapping[str, ContainerSeen],
    greedy: Mapping[str, str] = MappingProxyType({}),
    ended: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """Return what is wrong with what containers see, by pod.

    `restarts` says how often the containers of each workload may have been restarted, and `ended`
    how often a container of a pod was also ended for its memory. `greedy` are ids of containers, by
    pod, that must have been ended since for more memory than their limit; no others may have been.
    """
    wrong: list[str] = []
    owners: dict[str, str] = {}
    for workload, allowed in restarts.items():
        kind = kind_of(workload)
        seen = [containers[pod] for pod in pods_of(workload)]
        for pod, view in zip(pods_of(workload), seen, strict=True):
            if view.id and view.id == greedy.get(pod):
                wrong.append(f"{pod}: has more memory than its limit, and was not ended")
            if view.restarts > allowed + ended.get(pod, 0):
                wrong.append(f"{pod}: its container was restarted {view.restarts} times")
            if len(view.migs) != kind.migs or len(set(view.gpus)) < kind.whole:
                wrong.append(f"{pod}: sees GPUs {view.gpus} and MIG devices {view.migs}")
            if {*view.gpus, *view.migs} != {*seen[0].gpus, *seen[0].migs}:
                wrong.append(f"{pod}: sees other devices than the other pod of its claim")
        for device in _exclusive(seen[0], kind):
            others = owners.get(device)
            if others is not None and not (kind.is_share and kind_of(others).is_share):
                wrong.append(f"{device} is given to both {owners[device]} and {workload}")
            owners[device] = workload
    return wrong


def _exclusive(container: ContainerSeen, kind: Kind) -> Iterable[str]:
    """The devices that nobody else may see: MIG devices, and GPUs used as a whole."""
    return (*container.migs, *(container.gpus if not kind.migs else ()))


def _pods(wanted: Wanted, look: Look) -> list[str]:
    named = {pod for workload in wanted.workloads for pod in pods_of(workload)}
    wrong = [f"pod {pod} is missing" for pod in sorted(named - set(look.pods))]
    wrong += [f"pod {pod} is still there" for pod in sorted(set(look.pods) - named)]
    wrong += [f"pod {pod} does not run: {why}" for pod, why in look.pods.items() if why]
    there = {claim.workload for claim in look.claims}
    return wrong + [
        f"a claim of {name} is still there" for name in sorted(there - set(wanted.workloads))
    ]


def _files(look: Look) -> list[str]:
    uids = [claim.uid for claim in look.claims]
    records = _differ("records", [f"{uid}.json" for uid in uids], look.records)
    specs = [next((uid for uid in uids if uid in spec), spec) for spec in look.specs]
    return records + _differ("CDI specs", uids, specs)


def _devices(wanted: Wanted, look: Look) -> list[str]:
    held = {gpu: share for claim in look.claims for gpu, share in claim.shares.items()}
    expected = [
        device
        for gpu in wanted.offers[wanted.division]
        for device in wanted.offers[held.get(gpu, wanted.division)][gpu]
    ]
    given = Counter(device for claim in look.claims for device in claim.devices)
    twice = [f"{device} is given to {count} claims" for device, count in given.items() if count > 1]
    return [*twice, *_differ("devices in the slices", expected, look.devices)]


def _mps(look: Look) -> list[str]:
    served = Counter(look.daemons.values())
    expected = {claim.domain for claim in look.claims if claim.domain}
    members = [f"{own.domain}/{own.uid}" for own in look.claims if own.domain]
    wrong = _differ("members of MPS domains", members, look.members)
    domains = {uid if uid in expected else uid.partition("_")[0] for uid in served}
    if domains != expected or any(count > 1 for count in served.values()):
        wrong.append(
            f"MPS daemons serve {sorted(served.elements())}, and {sorted(expected)} are to have one"
        )
    wrong += [
        f"left over of MPS: {name}"
        for name in (*look.domains, *look.mounts)
        if not any(uid in name for uid in expected)
    ]
    strangers = set(look.grouped) - set(look.daemons)
    if strangers:
        wrong.append(f"in the control group of MPS without being a daemon: {sorted(strangers)}")
    return wrong


def _migs(look: Look) -> list[str]:
    expected = Counter(parent for claim in look.claims for parent in claim.parents)
    counted = Counter(look.migs)
    if expected == counted:
        return []
    return [f"MIG devices by GPU are {dict(counted)}, and should be {dict(expected)}"]


def _settings(wanted: Wanted, look: Look) -> list[str]:
    expected = dict(wanted.settings)
    for claim in look.claims:
        kind = kind_of(claim.workload)
        for gpu in claim.gpus:
            expected[gpu] = replace(
                expected[gpu], compute_mode=kind.compute_mode, time_slice=kind.time_slice
            )
        for gpu, division in claim.shares.items():
            if division == MPS:
                expected[gpu] = replace(expected[gpu], compute_mode="Exclusive_Process")
        for gpu in claim.parents:
            expected[gpu] = replace(expected[gpu], mig_mode="Enabled")
    return [
        f"GPU {gpu} is set to {setting}, and should be to {expected[gpu]}"
        for gpu, setting in look.settings.items()
        if setting != expected[gpu]
    ]


def _processes(wanted: Wanted, look: Look) -> list[str]:
    wrong = []
    for name, process in look.processes.items():
        first = wanted.processes[name]
        if not process.same_life:
            wrong.append(f"the {name} ended by itself")
        if process.resident > first.resident + _MEMORY:
            wrong.append(
                f"the {name} has {process.resident >> 20} MiB, {first.resident >> 20} at first"
            )
        if process.descriptors > first.descriptors + _DESCRIPTORS:
            wrong.append(
                f"the {name} has {process.descriptors} open files, {first.descriptors} at first"
            )
    return wrong


def _differ(what: str, wanted: Iterable[str], seen: Iterable[str]) -> list[str]:
    expected, there = Counter(wanted), Counter(seen)
    wrong = []
    if lacks := sorted(expected - there):
        wrong.append(f"{what} missing: {_short(lacks)}")
    if more := sorted(there - expected):
        wrong.append(f"{what} too many: {_short(more)}")
    return wrong


def _short(names: list[str]) -> str:
    return named((name[:120] for name in names), 4)
