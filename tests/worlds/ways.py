"""The ways to use GPUs, each with one claim: whose driver is killed, in tests of any moment of it.

The moments are those of worlds/moments.py, and for MPS domains `before` or `after` a call to the
supervisor (mps/requests.py), such as `before write_desired`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.mps.domain import DomainId, shared_domain
from dra_driver.simulator import profile as profiles
from worlds.configs import CONFIGS, REQUESTS, SHARES
from worlds.limited_node import LimitedNode, share
from worlds.node import Node, Step, no_step

Moments = Mapping[str, Sequence[str]]
"""The moments of each call."""

PREPARE = ("intended", "applied", "recorded", "described", "specified")
UNPREPARE = ("released", "undone", "unspecified", "forgotten")
OWN: Moments = MappingProxyType({"prepare": PREPARE, "unprepare": UNPREPARE})
DOMAIN: Moments = MappingProxyType(
    {
        "prepare": ("before write_desired", "after write_desired", "before wait_ready"),
        "unprepare": ("before remove", "after remove", "before wait_gone"),
    }
)
"""Moments that only the first claim of a domain has, and the last one."""

THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class Way:
    """A claim on a node with NVIDIA's own programs.

    `every` so many moments one is tried; `left` is what was there before the claim.
    """

    moments: Moments = OWN
    every = 1
    left: Sequence[str] = ()
    is_real = True
    by_mps = True
    has_neighbour = False

    def create(self, root: Path) -> Node:
        """Make its node, with the driver that goes on afterwards."""
        return Node.create(root, userspace="real")

    def open(self, root: Path, step: Step = no_step) -> Node:
        """Start one more driver on its node."""
        return Node(root, played=False, step=step)

    def begin(self, node: Node) -> None:
        """Have there what others have."""

    def claim(self, node: Node) -> ClaimRef:
        """Allocate the claim; it is the same one in any driver."""
        raise NotImplementedError

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        """Check that all is so after the call by which it is prepared; "" if it is not."""

    def end(self, node: Node) -> None:
        """Check that others can have all of it now."""


class Played(Way):
    """A whole GPU whose sharing, if any, is played."""

    is_real = by_mps = False

    def __init__(self, mode: str) -> None:
        self.mode = mode
        if mode == "exclusive":
            taken = ("recorded", "described", "specified")
            self.moments = {"prepare": taken, "unprepare": UNPREPARE}

    def create(self, root: Path) -> Node:
        return Node.create(root)

    def open(self, root: Path, step: Step = no_step) -> Node:
        return Node(root, step=step)

    def claim(self, node: Node) -> ClaimRef:
        return node.claim("gpu-1", configs=CONFIGS[self.mode])

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        is_set = prepared_by and self.mode == "sharing"
        assert node.driver.set_on(node.gpu(1).uuid) == (ref.uid if is_set else None)
        assert not prepared_by or node.driver.nodes(ref) == ["/dev/nvidia1"]


class Shared(Way):
    """Whole GPUs, shared as a claim's configs say."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def claim(self, node: Node) -> ClaimRef:
        return node.claim_gpus(REQUESTS[self.mode])

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        by_slices, by_mps = self.mode != "mps", self.mode != "time-slicing"
        assert list(node.time_slices().values()) == [3] * bool(prepared_by and by_slices)
        assert list(node.compute_modes().values()) == [3] * bool(prepared_by and by_mps)

    def end(self, node: Node) -> None:
        other = node.claim_gpus(dict.fromkeys(REQUESTS[self.mode]), name="other")
        node.driver.prepare(other)
        assert (node.time_slices(), node.compute_modes()) == ({}, {})
        node.driver.unprepare(other)


class OfAdmin(Shared):
    """The time-slices of GPUs are an admin's before and after."""

    by_mps = False
    left = ("time-slice of gpu-0", "time-slice of gpu-1")
    ADMINS = MappingProxyType({0: 2, 1: 2})

    def __init__(self) -> None:
        super().__init__("time-slicing")

    def begin(self, node: Node) -> None:
        for minor, number in self.ADMINS.items():
            node.set_time_slice(minor, number)

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        if prepared_by:
            assert 3 in node.time_slices().values()
        else:
            assert node.time_slices() == self.ADMINS

    def end(self, node: Node) -> None:
        assert node.time_slices() == self.ADMINS


class Migs(Way):
    """Two MIG devices that are made for the claim, with an MPS daemon each."""

    moments = MappingProxyType(
        {
            "prepare": (*PREPARE[:2], "made", *PREPARE[2:]),
            "unprepare": UNPREPARE,
        }
    )

    def claim(self, node: Node) -> ClaimRef:
        return node.claim_migs(0, 1)

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        count = 2 if prepared_by else 0
        assert (len(node.migs()), len(node.mps.requests.list())) == (count, count)
        if prepared_by == "prepare":  # which waits for the daemons
            for number in range(2):
                domain = DomainId(f"{ref.uid}_mig_{number}")
                said = node.mps.ask(domain, "get_default_active_thread_percentage")
                assert said == ["50.0"]


class Shares(Way):
    """Shares of GPUs, which another tenant has too, or has not; they notice nothing."""

    every = 3

    def __init__(self, mode: str, *, is_alone: bool, moments: Sequence[Moments], turn: int) -> None:
        self.mode, self.of = mode, SHARES[mode]
        self.has_neighbour = not is_alone
        found = {call: [moment for kind in moments for moment in kind[call]] for call in (*OWN,)}
        # Ways have moments in common, and each begins with another one: so each moment is met.
        self.moments = {
            call: (*each[turn % 3 :], *each[: turn % 3]) for call, each in found.items()
        }

    def claim(self, node: Node) -> ClaimRef:
        return node.claim_shares(self.of)

    def begin(self, node: Node) -> None:
        self.claim(node)  # which divides the GPUs
        self.other = node.claim_other_share(self.of) if self.has_neighbour else None
        if self.other:
            node.driver.prepare(self.other)
        self._before = self._seen(node)

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        claims = [one for one in (ref if prepared_by else None, self.other) if one]
        prepared = {one.uid for one in claims}
        assert node.driver.claims.ledger.uids() == prepared
        for minor in self.of.minors if self.of.by_mps else ():
            wanted = {uid for uid in prepared if _is_on(node, uid, minor)}
            domain = shared_domain(node.uuid(minor))
            assert node.mps.requests.members(domain) == wanted
            assert (node.mps.requests.desired(domain) is not None) == bool(wanted)
        assert self._seen(node) == self._before
        if self.mode == "parts by mps":
            uuid = node.uuid(0)
            limits = {"uid-claim": ("one", "10240M"), "uid-other": ("two", "20480M")}
            for one in claims:
                share_id, limit = limits[one.uid]
                assert node.part_env(one, share_id)[LIMIT] == f"{uuid}={limit}"
        if self.mode == "mps combined" and prepared_by:
            for device in self.of.devices:
                assert node.driver.env(ref, device)[THREADS] == "20"

    def _seen(self, node: Node) -> object:
        """What the other tenant has: its spec, and the daemon that serves it."""
        if self.other is None:
            return None
        domain = node.mps.requests.desired(shared_domain(node.uuid(self.of.minors[-1])))
        status = domain and node.mps.requests.status(domain.id)
        return node.driver.spec(self.other), domain, status and status.daemon

    def end(self, node: Node) -> None:
        if self.other:
            node.driver.unprepare(self.other)
        whole = node.claim("gpu-0", name="whole")
        node.driver.prepare(whole)
        assert node.compute_modes() == {}
        node.driver.unprepare(whole)


def _is_on(node: Node, uid: str, minor: int) -> bool:
    """Whether a claim has a share of a GPU."""
    record = node.driver.claims.ledger.read(ClaimUid(uid))
    return record is not None and node.gpu(minor).uuid in record.held_gpus


class Limited(Way):
    """A share whose memory the pod's control group limits."""

    is_real = by_mps = False
    POD, OTHER = (f"{number}" * 8 + "-0000-4000-8000-000000000000" for number in "12")

    def __init__(self, *, has_neighbour: bool) -> None:
        self.has_neighbour = has_neighbour

    def create(self, root: Path) -> Node:
        root.mkdir()
        return LimitedNode.made(root)

    def open(self, root: Path, step: Step = no_step) -> Node:
        return LimitedNode(root, step=step)

    def begin(self, node: Node) -> None:
        if self.has_neighbour:
            node.driver.prepare(self._claim(node, self.OTHER, share(1), "neighbour"))

    def claim(self, node: Node) -> ClaimRef:
        return self._claim(node, self.POD, share(0), "claim")

    def _claim(self, node: Node, pod: str, device: str, name: str) -> ClaimRef:
        assert isinstance(node, LimitedNode)
        node.groups.pod(1, pod)
        return node.claim_of(pod, device, name=name)

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        assert isinstance(node, LimitedNode)
        node.look_after()
        (_, group), (_, beside) = (node.groups.pod(1, pod) for pod in (self.POD, self.OTHER))
        of_all = 1 if self.has_neighbour or prepared_by else None
        assert node.others() == of_all
        # Where NVML was closed after it was cleared, that of all pods is the nearest.
        assert node.limit(group) in ((node.share_mib,) if prepared_by else (None, of_all))
        assert node.limit(beside) in ((node.share_mib,) if self.has_neighbour else (None, of_all))

    def end(self, node: Node) -> None:
        assert isinstance(node, LimitedNode)
        if self.has_neighbour:
            node.driver.unprepare(self._claim(node, self.OTHER, share(1), "neighbour"))
        assert node.others() is None


class ForMachine(Way):
    """A GPU for a virtual machine, which its admin has bound to a VFIO driver."""

    by_mps = False

    def create(self, root: Path) -> Node:
        t4 = profiles.load("t4x4")
        iommu = {"drivers": {gpu.pci: "vfio-pci" for gpu in t4.gpus[:2]}}
        return Node.create(root, profiles.changed(t4, {"iommu": iommu}), "real")

    def claim(self, node: Node) -> ClaimRef:
        return node.claim("gpu-vfio-0")

    def check(self, node: Node, ref: ClaimRef, prepared_by: str) -> None:
        first, second, *_ = node.inventory.passthrough
        drivers = [node.pci.driver_of(one.gpu.pci_address) for one in (first, second)]
        assert drivers == ["vfio-pci", "vfio-pci"]
        group = first.group
        assert not prepared_by or node.driver.nodes(ref) == [f"/dev/vfio/{group}"]


_OF_SHARES = (
    ("time-slicing", False, (OWN,)),
    ("mps", True, (OWN, DOMAIN)),
    ("mps", False, (OWN,)),
    ("parts by time-slicing", False, (OWN,)),
    ("parts by mps", True, (DOMAIN,)),
    ("parts by mps", False, (OWN,)),
    ("mps combined", True, (DOMAIN,)),
    ("mps combined", False, (OWN,)),
    ("mps on two", False, (OWN, DOMAIN)),
)


def _ways() -> dict[str, Callable[[], Way]]:
    ways: dict[str, Callable[[], Way]] = {mode: partial(Played, mode) for mode in CONFIGS}
    ways |= {f"gpus by {mode}": partial(Shared, mode) for mode in REQUESTS}
    ways |= {"admin's time-slices": OfAdmin, "mig": Migs, "virtual machine": ForMachine}
    for turn, (mode, is_alone, moments) in enumerate(_OF_SHARES):
        name = f"shares, {mode}, {'alone' if is_alone else 'beside another'}"
        ways[name] = partial(Shares, mode, is_alone=is_alone, moments=moments, turn=turn)
    for has in (False, True):
        name = f"limited share, {'beside another' if has else 'alone'}"
        ways[name] = partial(Limited, has_neighbour=has)
    return ways


WAYS: Mapping[str, Callable[[], Way]] = MappingProxyType(_ways())
"""What makes each way, by its name."""
