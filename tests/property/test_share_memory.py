"""For any tenants, in any order: no GPU is promised twice, and each pod's limit is what it got."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.devices.device import Device, equal_shares, memory_of, name_of
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import MIB, ConsumedShare, Division, ShareStrategy
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.shares import ShareMemory, Shares
from dra_driver.sharing.steps import UseShares

GPUS = (make.gpu(0), make.gpu(1, memory_bytes=15109 * MIB + 4096))
ANY_DIVISION = Division(
    count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
)
PODS = ("pod-a", "pod-b", "pod-c", "pod-d")


def of_container(number: int) -> str:
    """The request for a container's limits."""
    return f"container-{number}-request-0"


@dataclass
class Played:
    """A kubelet's groups of pods, and limits of groups by GPU, in bytes."""

    set: dict[tuple[GpuUuid, Path], int] = field(default_factory=dict)
    hierarchy: None = None

    def tops(self) -> tuple[Path, ...]:
        return (Path("kubepods"),)

    def find(self, uid: str) -> Path:
        return Path("kubepods") / uid

    def knows_memory_limits(self) -> bool:
        return True

    def can_limit_memory(self, gpu: GpuUuid, group: Path) -> None:
        """It can."""

    def memory_limit(self, gpu: GpuUuid, group: Path) -> int | None:
        nearest = (self.set.get((gpu, each)) for each in (group, group.parent))
        return next((limit for limit in nearest if limit is not None), None)

    def set_memory_limit(self, gpu: GpuUuid, group: Path, hard_bytes: int | None) -> None:
        self.set.pop((gpu, group), None)
        if hard_bytes is not None:
            self.set[gpu, group] = hard_bytes

    def limit(self, pod: str, gpu: Gpu) -> int:
        """The MiB that are a pod's own limit."""
        return self.set.get((gpu.uuid, Path("kubepods") / pod), 0) // MIB

    def refuses_others(self, gpu: Gpu) -> bool:
        return (gpu.uuid, Path("kubepods")) in self.set


class Modes:
    """Compute modes in which anybody may use a GPU."""

    def compute_mode(self, uuid: str) -> int:
        return 0


class Node:
    """Two divided GPUs; of the record of a claim there are the steps that limit its memory."""

    def __init__(self, division: Division) -> None:
        self.division = division
        self.played: Any = Played()
        self.records: dict[str, tuple[str, list[UseShares]]] = {}
        self.taken: dict[str, list[tuple[Gpu, int]]] = {}
        groups = MemoryGroups(self.played, self.played, self.tenants, is_wanted=True)
        modes: Any = Modes()
        self.groups, self.shares = groups, Shares(ShareMemory(groups), modes)
        self.free = [(gpu, n) for gpu in GPUS for n in range(division.count)]

    def tenants(self, gpu: GpuUuid) -> list[UseShares]:
        return [
            step
            for _, steps in self.records.values()
            for step in steps
            if any(device.gpu == gpu for device in step.devices)
        ]

    def prepare(self, claim: str, pod: str, picks: list[int]) -> None:
        taken = [self.free.pop(pick % len(self.free)) for pick in picks if self.free]
        units = tuple(
            Unit(name=name_of(gpu, share), request=of_container(n), gpu=gpu, device=share)
            for n, (gpu, share) in enumerate(
                (gpu, equal_shares(make.place(gpu), self.division)[index]) for gpu, index in taken
            )
        )
        self.give(claim, pod, units)
        self.taken[claim] = taken

    def give(self, claim: str, pod: str, units: tuple[Unit, ...]) -> None:
        if not units:
            return
        group = Group(
            claim=claim,
            config=make.gpu_config(),
            units=units,
            name=f"default/{claim}",
            pods={pod: pod},
        )
        planned = self.shares.plan([group], 0.0)
        steps = [step for step in planned if isinstance(step, UseShares)]
        self.records[claim] = (pod, steps)
        for step in steps:
            self.groups.do(step, 0.0)

    def unprepare(self, claim: str) -> None:
        _, steps = self.records.pop(claim, ("", []))
        for step in steps:
            self.groups.undo(step, 0.0)
        self.free += self.taken.pop(claim)

    def check(self) -> None:
        for gpu in GPUS:
            total = (memory_of(gpu, make.place(gpu)) or 0) // MIB
            mine = {
                pod: sum(
                    total // self.division.count
                    for claim, (owner, _) in self.records.items()
                    if owner == pod
                    for taken, _ in self.taken[claim]
                    if taken is gpu
                )
                for pod in PODS
            }
            limits = {pod: self.played.limit(pod, gpu) for pod in PODS}
            assert limits == mine
            assert sum(limits.values()) <= total
            assert self.played.refuses_others(gpu) is any(mine.values())


class ConsumingNode(Node):
    """The same GPUs undivided: claims consume MiB of them, as long as there are some."""

    def __init__(self, strategy: ShareStrategy) -> None:
        super().__init__(ANY_DIVISION)
        self.strategy = strategy
        self.consumed: dict[str, list[tuple[Gpu, int]]] = {}

    def consume(self, claim: str, pod: str, picks: list[tuple[int, int]]) -> None:
        taken = self.consumed[claim] = []
        for number, mib in picks:
            gpu = GPUS[number]
            used = sum(mib for each in self.consumed.values() for one, mib in each if one is gpu)
            if used + mib <= (memory_of(gpu, make.place(gpu)) or 0) // MIB:
                taken.append((gpu, mib))
        shares = [
            ConsumedShare(share_id=f"{claim}-{n}", strategy=self.strategy, memory_mib=mib)
            for n, (_, mib) in enumerate(taken)
        ]
        self.give(
            claim,
            pod,
            tuple(
                Unit(
                    name=f"gpu-{gpu.minor}",
                    request=of_container(n),
                    gpu=gpu,
                    device=Device(base=make.place(gpu), share=share),
                )
                for n, ((gpu, _), share) in enumerate(zip(taken, shares, strict=True))
            ),
        )

    def unprepare(self, claim: str) -> None:
        self.taken[claim] = []
        super().unprepare(claim)
        del self.consumed[claim]

    def check(self) -> None:
        for gpu in GPUS:
            total = (memory_of(gpu, make.place(gpu)) or 0) // MIB
            limits = {pod: self.played.limit(pod, gpu) for pod in PODS}
            bound = 0
            for pod in PODS:
                parts = [
                    [mib for one, mib in self.consumed[claim] if one is gpu]
                    for claim, (owner, _) in self.records.items()
                    if owner == pod
                ]
                # Who asked for none in particular may have all.
                assert limits[pod] == sum(sum(each) if all(each) else total for each in parts)
                bound += limits[pod] if all(map(all, parts)) else 0
            assert bound <= total
            assert self.played.refuses_others(gpu) is any(limits.values())


claims = st.tuples(st.sampled_from(PODS), st.lists(st.integers(0, 99), min_size=1, max_size=5))


@given(
    strategy=st.sampled_from(ShareStrategy),
    count=st.integers(2, 16),
    steps=st.lists(st.tuples(st.integers(0, 5), claims), max_size=30),
)
def test_each_pod_is_limited_to_what_its_claims_have(
    strategy: ShareStrategy, count: int, steps: list[tuple[int, tuple[str, list[int]]]]
) -> None:
    node = Node(Division(count=count, strategy=strategy, served_as="nvidia.com/gpu", combines=True))
    prepared: set[str] = set()
    for number, (pod, picks) in steps:
        claim = f"claim-{number}"
        if claim in prepared:
            node.unprepare(claim)
            prepared.discard(claim)
        else:
            node.prepare(claim, pod, picks)
            prepared.add(claim)
        node.check()


amounts = st.one_of(st.just(0), st.integers(1, 40_000))
parts = st.lists(st.tuples(st.integers(0, 1), amounts), min_size=1, max_size=4)


@given(
    strategy=st.sampled_from(ShareStrategy),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.tuples(st.sampled_from(PODS), parts)), max_size=30
    ),
)
def test_each_pod_is_limited_to_what_its_claims_consumed(
    strategy: ShareStrategy, steps: list[tuple[int, tuple[str, list[tuple[int, int]]]]]
) -> None:
    node = ConsumingNode(strategy)
    for number, (pod, picks) in steps:
        claim = f"claim-{number}"
        if claim in node.consumed:
            node.unprepare(claim)
        else:
            node.consume(claim, pod, picks)
        node.check()
