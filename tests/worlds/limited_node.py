"""A node whose driver limits memory by control groups, with shares and pods; MPS is played.

NVIDIA's own control daemon goes with a driver of R535, which has no such limits. So a domain is
ready as soon as it is asked for, and gone as soon as it is not; who is in it stands in files.
"""

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import make
from dra_driver.cdi.roots import find_roots
from dra_driver.claims.memory.watch import MemoryWatch
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod, parse_claim
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import ShareStrategy
from dra_driver.kube.events import Regarding
from dra_driver.mps.domain import Domain, DomainId, State, Status
from dra_driver.mps.requests import DomainRequests
from dra_driver.node.sharing import node_memory
from dra_driver.sharing.shares import ShareMemory
from worlds.driver import Driver
from worlds.groups import R615, Groups, limited
from worlds.node import Node, Step, no_step


class PlayedDomains(DomainRequests):
    """Domains that are ready at once, and gone at once."""

    def wait_ready(
        self, domain: Domain, deadline: float, given_up: Callable[[], bool] = lambda: False
    ) -> Status:
        return Status(id=domain.id, state=State.READY, supervisor="played")

    def wait_gone(self, domain: DomainId, deadline: float) -> None:
        """It is gone."""


class Events:
    """Keeps what was posted on pods: name, reason, note."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, str]] = []

    def post(self, about: Regarding, *, reason: str, action: str, note: str) -> None:
        name = about.name if about.kind == "Pod" else f"{about.kind} {about.name}"
        self.posted.append((name, reason, note))


class LimitedNode(Node):
    """Its GPU 0 is divided into ten shares that can be combined, if a test does not change that."""

    def __init__(
        self, root: Path, backend: str = "misc", *, step: Step = no_step, by_groups: bool = True
    ) -> None:
        self.backend, self.by_groups = backend, by_groups
        self.groups = Groups(root / "cgroup")
        self.events = Events()
        self.is_kubelet_away = False
        self._watch: tuple[Driver, MemoryWatch] | None = None
        super().__init__(root, played=False, step=step)
        self.divide(0, combines=True, strategy=ShareStrategy.TIME_SLICING)

    @classmethod
    def made(cls, root: Path, backend: str = "misc", *, driver: str = R615) -> "LimitedNode":
        """Make one, with a machine."""
        _, groups = limited(root, backend, driver=driver)
        groups.make("kubepods.slice")
        return cls(root, backend)

    def memory(self) -> ShareMemory:
        roots = find_roots(driver_root=self.machine.driver_root, proc_root=self.machine.proc_root)
        return node_memory(
            self.session,
            roots,
            self.ledger,
            cgroup_root=self.groups.root,
            by_groups=self.by_groups,
        )

    def mps_requests(self) -> Any:
        return PlayedDomains(self.mps.files.root, time.monotonic, lock=self.mps.locks.domain)

    def look_after(self) -> None:
        """Let the driver look after limits once."""
        self.watch.check()

    @property
    def watch(self) -> MemoryWatch:
        """What looks after limits in the present driver."""
        if self._watch is None or self._watch[0] is not self.driver:
            watch = MemoryWatch(
                pods_of=self._pods_of,
                claims=self.driver.claims,
                groups=self.node_memory.groups,
                inventory=self.driver.gpus,
                locks=self.driver.locks,
                events=self.events,
                clock=time.monotonic,
            )
            self._watch = (self.driver, watch)
        return self._watch[1]

    def _pods_of(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, Sequence[ConsumerPod]]:
        """The kubelet's word, if it says something: it runs the pods that have claims reserved."""
        if self.is_kubelet_away:
            return {}
        claims = [parse_claim(each, DRIVER_NAME) for each in self.driver.api.claims.values()]
        return {claim.ref.uid: claim.pods for claim in claims if claim.ref.uid in uids}

    # Pods and their claims

    def pod(self, containers: int = 1) -> tuple[str, Path]:
        """A pod's UID and its group."""
        return self.groups.pod(containers)

    def claim_of(self, pod: str, *devices: str, name: str = "claim", **facts: Any) -> ClaimRef:
        """Allocate a claim that is reserved for one pod."""
        ref = self.driver.api.add(*devices, uid=f"uid-{name}", name=name, **facts)
        self.reserve(ref, pod)
        return ref

    def reserve(self, ref: ClaimRef, *pods: str) -> None:
        """Have a claim reserved for just these pods, by UID."""
        status = self.driver.api.claims[ref.namespace, ref.name]["status"]
        status["reservedFor"] = [
            {"resource": "pods", "name": f"pod-{uid[:4]}", "uid": uid} for uid in pods
        ]

    def reserve_for_group(self, ref: ClaimRef, name: str) -> None:
        """Have a claim reserved for a PodGroup too."""
        status = self.driver.api.claims[ref.namespace, ref.name]["status"]
        status["reservedFor"].append(make.pod_group(name))

    def make_again(self, group: Path) -> None:
        """Make a pod's group again, as the kubelet does when somebody has removed it."""
        # Aside, not away: a new folder can have the identity of one that is gone.
        group.rename(self.groups.root / f"aside-{group.name}")
        self.groups.make(f"{group.relative_to(self.groups.root)}/cri-containerd-{1:064x}.scope")

    def limit(self, group: Path, minor: int = 0) -> int | None:
        """The hard limit in MiB that holds for a group; None: none."""
        hard = self.session.memory_limit(self.uuid(minor), group)
        return None if hard is None else hard // 1024**2

    def others(self, minor: int = 0) -> int | None:
        """The limit of all pods together, in MiB."""
        return self.limit(self.groups.root / "kubepods.slice", minor)

    def take(self, group: Path, mib: int, *, pid: int, minor: int = 0) -> bool:
        """Have a process of a pod's first container ask for memory."""
        container = next(group.glob("*.scope"))
        return self.machine.take_memory(self.uuid(minor), mib * 1024**2, pid=pid, group=container)

    def end(self, group: Path) -> None:
        """Remove a pod's group, as the kubelet does in the end."""
        shutil.rmtree(group)

    @property
    def share_mib(self) -> int:
        """The memory of one of ten shares of GPU 0."""
        return ((self.gpu().memory_bytes or 0) - self.gpu().memory_reserved_bytes) // 1024**2 // 10


def share(index: int, minor: int = 0, count: int = 10, kind: str = "share") -> str:
    """The name of a share."""
    return f"gpu-{minor}-{kind}-{index}-of-{count}"
