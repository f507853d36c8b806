"""Who uses which GPU: GPUs as NVML sees them, processes, and claims, put together. Pure.

A process belongs to the pod of its control group. A pod's process on a device belongs to the claims
by which the pod has the device, according to records, or to the kubelet, which also names a claim's
later pods. Shares are not visible in hardware, so claims of a pod with several shares of a device
are shown together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.report.descriptions import memory_limit
from dra_driver.devices.device import DeviceKind, DeviceUuid
from dra_driver.devices.load import GpuLoad, GpuProcess, Memory, MigLoad
from dra_driver.devices.names import gpu_name
from dra_driver.devices.shares import MIB
from dra_driver.errors import StateError
from dra_driver.mps.domain import Daemon
from dra_driver.usage.processes import ContainerName, SeenProcess


class Holding(Struct, frozen=True, kw_only=True):
    """What a claim has of a device: `entries` of its record, of which none or all `is_admin`.

    `limit_mib` is the memory that all of it may have; None without a limit. `later` are the claim's
    pods now, as far as the kubelet names them; the record has only the first.
    """

    record: ClaimRecord
    device: DeviceUuid
    entries: tuple[DeviceRecord, ...]
    is_admin: bool
    limit_mib: int | None
    later: tuple[ConsumerPod, ...] = ()

    @property
    def ref(self) -> ClaimRef:
        """The claim."""
        return self.record.ref

    @property
    def pods(self) -> tuple[ConsumerPod, ...]:
        """The pods that have or had the claim; one may be named twice."""
        return (*self.later, *self.record.pods)

    @property
    def is_share(self) -> bool:
        """Whether the limit is one for all of the claim's containers."""
        return any(entry.device.share is not None for entry in self.entries)

    @property
    def served_as(self) -> str:
        """The resource name of equal shares, empty for others."""
        division = self.entries[0].device.division
        return "" if division is None else division.served_as


def holdings(record: ClaimRecord, later: tuple[ConsumerPod, ...] = ()) -> Iterator[Holding]:
    """Yield what a claim has of each device, and by itself what it only sees (adminAccess)."""
    parts: dict[tuple[DeviceUuid, bool], list[DeviceRecord]] = {}
    for entry in record.devices:
        if entry.device.uuid is not None:
            parts.setdefault((entry.device.uuid, entry.admin_access), []).append(entry)
    for (uuid, is_admin), entries in parts.items():
        try:
            limit = memory_limit(record, entries)
        except StateError:
            limit = None
        yield Holding(
            record=record,
            device=uuid,
            entries=tuple(entries),
            is_admin=is_admin,
            limit_mib=limit,
            later=later,
        )


class Process(Struct, frozen=True, kw_only=True):
    """A process on a device. `name` is its own name for itself, made harmless."""

    pid: int
    start_ticks: int
    name: str
    kind: str
    memory_bytes: int | None
    sm: float | None


class User(Struct, frozen=True, kw_only=True):
    """A container that uses a device, or a pod or claim that has it but no process there.

    A name or id is empty if it is not known, or if there is none.

    Attributes:
        claims: namespaces and names; none if the pod has the device without a claim.
        devices: names of the claims' devices, such as shares of this one.
        pod_groups: the PodGroups that its claims were reserved for.
        limit_bytes: how much memory it may have, if that is less than the device has.
        processes: its processes on the device.
    """

    claims: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    pod_groups: tuple[str, ...] = ()
    container: str = ""
    container_id: str = ""
    limit_bytes: int | None = None
    processes: tuple[Process, ...] = ()

    @property
    def memory_bytes(self) -> int | None:
        """The memory of its processes; None if that of one is not known."""
        return added([process.memory_bytes for process in self.processes])

    @property
    def sm(self) -> float | None:
        """How busy its processes are together; None if that is not known for one."""
        shares = [process.sm for process in self.processes]
        known = [share for share in shares if share is not None]
        return min(sum(known), 1.0) if len(known) == len(shares) else None


class DeviceUse(Struct, frozen=True, kw_only=True):
    """A whole GPU or a MIG device, and who uses it.

    `servers` are the MPS servers, which have the memory that is not their clients' own. `others`
    are processes of no pod.
    """

    name: str
    uuid: str
    kind: DeviceKind
    memory: Memory | None
    users: tuple[User, ...] = ()
    servers: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU: the whole, and its MIG devices."""

    load: GpuLoad
    devices: tuple[DeviceUse, ...]

    @property
    def name(self) -> str:
        """The name of the whole GPU as a device."""
        return gpu_name(self.load.minor)


class Known(Struct, frozen=True, kw_only=True):
    """What is known of a node besides NVML's answers: `names` by container id, MPS's `daemons`.

    `pods` has those that claims have now, according to the kubelet; a record has only the first.
    """

    records: Sequence[ClaimRecord] = ()
    pods: Mapping[ClaimUid, Sequence[ConsumerPod]] = field(default_factory=dict)
    names: Mapping[str, ContainerName] = field(default_factory=dict)
    daemons: Sequence[Daemon] = ()


def used(load: GpuLoad, seen: Mapping[int, SeenProcess], known: Known) -> GpuUse:
    """Return who uses a GPU. Processes that are not among the seen have ended."""
    held = [
        holding
        for record in known.records
        if record.state is not RecordState.RELEASED
        for holding in holdings(record, tuple(known.pods.get(record.ref.uid, ())))
    ]
    devices = tuple(_device(load, mig, seen, held, known) for mig in (None, *load.migs))
    return GpuUse(load=load, devices=tuple(device for device in devices if _is_shown(device, load)))


def added(amounts: Iterable[int | None]) -> int | None:
    """Return a sum; None if a part of it is not known."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _is_shown(device: DeviceUse, load: GpuLoad) -> bool:
    """Tell whether a device is shown: a whole GPU with MIG devices only if somebody uses it."""
    is_used = device.users or device.servers or device.others
    return device.kind is DeviceKind.MIG or not load.migs or bool(is_used)


def _device(
    load: GpuLoad,
    mig: MigLoad | None,
    seen: Mapping[int, SeenProcess],
    claims: Iterable[Holding],
    known: Known,
) -> DeviceUse:
    device = load if mig is None else mig
    held = [claim for claim in claims if claim.device == device.uuid]
    daemons = {(daemon.pid, daemon.start_ticks) for daemon in known.daemons}
    parents = {pid for pid, _ in daemons}
    servers: list[Process] = []
    others: list[Process] = []
    containers: dict[tuple[str, str], list[Process]] = {}
    for process in load.processes:
        who = seen.get(process.pid)
        if who is None or not _on(process, mig):
            continue
        found = Process(
            pid=process.pid,
            start_ticks=who.start_ticks,
            name=who.name,
            kind=str(process.kind),
            memory_bytes=process.memory_bytes,
            sm=process.sm,
        )
        if (who.pid, who.start_ticks) in daemons or who.parent in parents:
            servers.append(found)
        elif who.pod is None:
            others.append(found)
        else:
            key = (who.pod.pod_uid, who.pod.container_id or "")
            containers.setdefault(key, []).append(found)
    return DeviceUse(
        name=_name(load, mig, held),
        uuid=device.uuid,
        kind=DeviceKind.GPU if mig is None else DeviceKind.MIG,
        memory=device.memory,
        users=tuple(_users(containers, held, known.names)),
        servers=tuple(servers),
        others=tuple(others),
    )


def _name(load: GpuLoad, mig: MigLoad | None, held: Sequence[Holding]) -> str:
    if mig is None:
        return gpu_name(load.minor)
    for entry in (entry for claim in held for entry in claim.entries):
        if entry.device.share is None:
            return entry.name
    number = mig.compute_instance and f".{mig.compute_instance}"
    return f"{gpu_name(load.minor)} MIG {mig.gpu_instance}{number or ''}"


def _on(process: GpuProcess, mig: MigLoad | None) -> bool:
    if mig is None:
        return process.gpu_instance is None
    here = (mig.gpu_instance, mig.compute_instance)
    return (process.gpu_instance, process.compute_instance) == here


def _users(
    containers: Mapping[tuple[str, str], list[Process]],
    held: Sequence[Holding],
    names: Mapping[str, ContainerName],
) -> Iterator[User]:
    users: list[User] = []
    for (uid, container), processes in containers.items():
        by = [claim for claim in held if any(pod.uid == uid for pod in claim.pods)]
        name = names.get(container)
        users.append(_user(uid, by, name=name, container=container, processes=processes))
    yield from sorted(users, key=_order)
    busy = {(claim, user.pod_uid) for user in users for claim in user.claims}
    idle = (user for claim in held if not claim.is_admin for user in _idle(claim, busy))
    yield from sorted(idle, key=_order)


def _idle(claim: Holding, busy: set[tuple[str, str]]) -> Iterator[User]:
    """Yield the pods of a claim that have no process there; the claim itself if it has none."""
    # If the kubelet names no pods, those that the claim was prepared for.
    pods = [pod.uid for pod in claim.later or claim.record.pods]
    if not pods and str(claim.ref) not in {name for name, _ in busy}:
        pods = [""]
    return (_user(uid, [claim]) for uid in pods if (str(claim.ref), uid) not in busy)


def _user(
    uid: str,
    held: Sequence[Holding],
    *,
    name: ContainerName | None = None,
    container: str = "",
    processes: Iterable[Process] = (),
) -> User:
    """Return a pod, or a container of it, with what its claims have."""
    pod = next((pod.name for claim in held for pod in claim.pods if pod.uid == uid), "")
    namespace = held[0].ref.namespace if held else ""
    limits = [claim.limit_mib for claim in held if not claim.is_admin]
    limit_mib = added(limits) if limits else None
    return User(
        claims=tuple(sorted({str(claim.ref) for claim in held})),
        pod_groups=tuple(sorted({group.name for claim in held for group in claim.record.groups})),
        devices=tuple(sorted({entry.name for claim in held for entry in claim.entries})),
        namespace=name.namespace if name else namespace,
        pod=name.pod if name else pod,
        pod_uid=uid,
        container=name.name if name else "",
        container_id=container,
        limit_bytes=None if limit_mib is None else limit_mib * MIB,
        processes=tuple(processes),
    )


def _order(user: User) -> tuple[str, ...]:
    return (*user.claims, user.namespace, user.pod, user.container, user.container_id)


class NodeUse(Struct, frozen=True, kw_only=True):
    """Who uses which GPU. `silent` has the GPUs that did not answer, by index, with the reason.

    `sees_processes`: whether processes of other containers can be seen from here.
    """

    gpus: tuple[GpuUse, ...]
    silent: Mapping[int, str]
    sees_processes: bool
