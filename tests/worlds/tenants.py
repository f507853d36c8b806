"""Tenants of a GPU: claims with limits, pods, and processes that take memory as they like."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.device import Device, Whole
from dra_driver.devices.load import GpuLoad, GpuProcess, Memory, ProcessKind
from dra_driver.devices.shares import ConsumedShare, Division, EqualShare, Share, ShareStrategy
from dra_driver.errors import SilenceError
from dra_driver.sharing.limiters import Limiter
from dra_driver.sharing.steps import ShareLimits, UseShares
from dra_driver.usage.ending import EndingError
from dra_driver.usage.model import Known, User
from dra_driver.usage.node import NodeLook
from dra_driver.usage.over_limit import Excess
from dra_driver.usage.processes import ContainerName, PodProcess, Processes, SeenProcess
from dra_driver.usage.watch import OverLimit, OverLimitWatch

MIB = 1 << 20
GPU = make.gpu(0)
CONTEXT = 510
RESOURCE = "nvidia.com/gpu"


@dataclass
class Job:
    """A process: `mib` is None where NVML has no figure of it."""

    pod: str
    container: str
    mib: int | None
    start: int


@dataclass
class Tenants:
    """A GPU's tenants, and the watch over them. A look ends and tells at once."""

    action: str = "end"
    resources: dict[str, str] = field(default_factory=dict)
    records: list[ClaimRecord] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    later: dict[ClaimUid, Sequence[ConsumerPod]] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    told: list[tuple[str, list[str], str]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    is_silent: bool = False
    can_end: bool = True
    seconds: float = 0.0
    look_takes: float = 0.0
    before_end: Any = None

    def __post_init__(self) -> None:
        look = NodeLook(self, cast("Processes", self), self._known)
        self.watch = OverLimitWatch(
            look,
            records=lambda: self.records,
            pods_of=self._pods_of,
            inventory=cast("Any", self),
            what=OverLimit(of_node=self.action, of_resource=self.resources.get),
            end=self._end,
            tell=self._tell,
            count=self.counted.append,
            clock=lambda: self.seconds,
        )

    def claim(
        self, name: str, mib: int | None, *pods: str, by: str = "share", resource: str = RESOURCE
    ) -> ClaimUid:
        """Let pods have a share, a part by capacity, an MPS domain, or `seen`: adminAccess."""
        ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="team", name=name)
        who = tuple(ConsumerPod(name=pod, uid=uid_of(pod)) for pod in pods)
        share: Share | None = None
        if by == "share":
            count, sliced = 16, ShareStrategy.TIME_SLICING
            division = Division(count=count, strategy=sliced, served_as=resource, combines=False)
            share = EqualShare(index=len(self.records), division=division)
        elif by == "part":
            share = ConsumedShare(share_id=name, strategy=ShareStrategy.TIME_SLICING)
        device = Device(base=Whole(gpu=GPU.uuid), share=share)
        record = make.record(GPU)
        entry = replace(record.devices[0], device=device, admin_access=by == "seen")
        key = device.key
        assert key is not None
        if by == "mps":
            step: Any = make.join(device, domain=name, mib=mib)
        else:
            step = UseShares(
                devices=(device,),
                strategy=ShareStrategy.TIME_SLICING,
                limits=(ShareLimits(taken=1, count=16, memory_mib=mib),),
                limited_by=Limiter.OVER_LIMIT,
                memory_mib=mib,
            )
        self.records.append(replace(record, ref=ref, pods=who, devices=(entry,), steps=(step,)))
        return ref.uid

    def run(self, pid: int, pod: str, mib: int | None, container: str = "ctr") -> None:
        self.jobs[pid] = Job(pod, f"{pod}/{container}", mib, start=int(self.seconds) + 1)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.watch.check()
            self.seconds += 0.5

    # What the watch asks.

    def current(self) -> Any:
        return make.inventory(GPU)

    def gpu_count(self) -> int:
        return 1

    def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
        self.seconds += self.look_takes
        if self.is_silent:
            raise SilenceError("it does not answer")
        processes = tuple(
            GpuProcess(
                pid=pid,
                kind=ProcessKind.COMPUTE,
                memory_bytes=None if job.mib is None else job.mib * MIB,
            )
            for pid, job in self.jobs.items()
        )
        return GpuLoad(
            index=index,
            minor=0,
            uuid=GPU.uuid,
            product_name="NVIDIA H100 80GB HBM3",
            memory=Memory(total_bytes=80 << 30, used_bytes=0),
            busy=0.0,
            processes=processes,
        )

    def seen(self) -> tuple[GpuLoad, dict[int, SeenProcess]]:
        """Return who is on the GPU, and all processes."""
        return self.gpu_load(0), {pid: who for pid in self.jobs if (who := self.see(pid, before=0))}

    def see(self, pid: int, *, before: int) -> SeenProcess | None:
        job = self.jobs.get(pid)
        if job is None:
            return None
        place = None
        if job.pod:
            container = container_id(job.container) if job.container.endswith("r") else None
            place = PodProcess(pod_uid=uid_of(job.pod), container_id=container)
        return SeenProcess(pid=pid, parent=1, name="python3", start_ticks=job.start, pod=place)

    def _pods_of(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, Sequence[ConsumerPod]]:
        self.asked.append(sorted(uids))
        return {uid: pods for uid, pods in self.later.items() if uid in uids}

    def _tell(self, excess: Excess, reason: str, note: str) -> None:
        about = [claim.ref.name for claim in excess.claims]
        self.told.append((reason, about + [pod.name for _, pod in excess.pods()], note))

    def _known(self) -> Known:
        jobs = self.jobs.values()
        names = {
            container_id(job.container): ContainerName(
                namespace="team", pod=job.pod, name=job.container.rpartition("/")[2]
            )
            for job in jobs
            if job.pod and "/unnamed" not in job.container
        }
        return Known(records=tuple(self.records), names=names)

    def _end(self, victim: User) -> None:
        gone = {job.container for job in self.jobs.values()}
        (container,) = (name for name in gone if container_id(name) == victim.container_id)
        if self.before_end:
            self.before_end(container)
        if not self.can_end:
            raise EndingError("processes 7 cannot be ended")
        self.ended.append(container)
        self.jobs = {pid: job for pid, job in self.jobs.items() if job.container != container}


def uid_of(pod: str) -> str:
    return f"uid-{pod}"


def container_id(name: str) -> str:
    return name.encode().hex().ljust(64, "0")[:64]
