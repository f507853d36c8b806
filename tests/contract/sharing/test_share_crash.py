"""The driver killed on a share's way in and out: it is mended, and no other tenant notices.

Shares are equal ones, or parts as large as claims ask for (consumable capacity).
"""

import pytest

from crashes import deaths
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.mps.domain import shared_domain
from worlds import child
from worlds.configs import SHARES
from worlds.node import Node

THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
STEPS = {
    "prepare": ["marked", "intended", "applied", "recorded", "described", "specified"],
    "unprepare": ["undone", "unspecified", "forgotten"],
}
DOMAIN_STEPS = {
    "prepare": ["before write_desired", "after write_desired", "before wait_ready"],
    "unprepare": ["before remove", "after remove", "before wait_gone"],
}
"""Steps that only the first claim of a domain takes, and the last one."""


class Tenants:
    """The claim whose driver is killed, and another one, which has a share meanwhile or has not."""

    def __init__(self, node: Node, mode: str, *, is_alone: bool) -> None:
        self.node = node
        self.mode = mode
        self.claim = node.claim_shares(SHARES[mode])
        self.other = None if is_alone else node.claim_other_share(SHARES[mode])
        if self.other:
            node.driver.prepare(self.other)
        self._before = self._seen()

    def kill(self, call: str, step: str) -> None:
        """Let a driver process of its own make the call, and be killed at the step."""
        node = self.node
        assert node.session.close()
        assert child.was_killed(child.fork("die_with_share", node.root, self.mode, call, step))
        node.look()

    def mend(self) -> None:
        """Do what the next start does."""
        assert self.node.driver.reconciler(ReconcileTiming()).mend() == set()

    def check(self) -> None:
        """Check that domains have the prepared claims as members, and the other one all it had."""
        node = self.node
        prepared = {
            ref.uid for ref in (self.claim, self.other) if ref and node.driver.specs.exists(ref.uid)
        }
        assert node.driver.claims.records.uids() == prepared
        for minor in SHARES[self.mode].minors if SHARES[self.mode].by_mps else ():
            wanted = {uid for uid in prepared if self._is_on(uid, minor)}
            domain = shared_domain(node.uuid(minor))
            assert node.mps.shared.members(domain) == wanted
            assert (node.mps.requests.desired(domain) is not None) == bool(wanted)
        assert self._seen() == self._before
        if self.mode == "parts by mps":
            uuid = node.uuid(0)
            limits = {"uid-claim": f"{uuid}=10240M", "uid-other": f"{uuid}=20480M"}
            for ref, share_id in ((self.claim, "one"), (self.other, "two")):
                if ref and ref.uid in prepared:
                    assert node.part_env(ref, share_id)[LIMIT] == limits[ref.uid]
        if self.mode == "mps combined" and self.claim.uid in prepared:
            for device in SHARES[self.mode].devices:
                assert node.driver.env(self.claim, device)[THREADS] == "20"

    def _is_on(self, uid: str, minor: int) -> bool:
        """Whether a claim has a share of a GPU."""
        record = self.node.driver.claims.records.read(uid)
        return record is not None and self.node.gpu(minor).uuid in record.held_gpus

    def _seen(self) -> object:
        """What the other tenant has: its spec, and the daemon that serves it."""
        if self.other is None:
            return None
        minor = SHARES[self.mode].minors[-1]
        domain = self.node.mps.requests.desired(shared_domain(self.node.uuid(minor)))
        status = domain and self.node.mps.requests.status(domain.id)
        return self.node.driver.spec(self.other), domain, status and status.daemon

    def end(self) -> None:
        """Take both claims back; nothing may be left, and the whole GPU can be had."""
        driver = self.node.driver
        driver.unprepare(self.claim)
        self.check()
        if self.other:
            driver.unprepare(self.other)
        whole = self.node.claim("gpu-0", name="whole")
        driver.prepare(whole)
        assert self.node.compute_modes() == {}
        driver.unprepare(whole)
        assert self.node.left() == []


HERE = "tests/contract/sharing/test_share_crash.py"
NEXTS = ("prepare", "mend", "unprepare")


def cases(call: str) -> list[tuple[str, bool, str]]:
    """Every way of sharing, with the other tenant and without, and every step that it takes.

    They have their steps in common, and each begins with another one, so each step is met although
    only every third of these is tried.
    """
    own, domain = STEPS[call], DOMAIN_STEPS[call]
    ways = (
        ("time-slicing", False, own),
        ("mps", True, [*own, *domain]),
        ("mps", False, own),
        ("parts by time-slicing", False, own),
        ("parts by mps", True, domain),
        ("parts by mps", False, own),
        ("mps combined", True, domain),
        ("mps combined", False, own),
        ("mps on two", False, [*own, *domain]),
    )
    return [
        (mode, is_alone, step)
        for turn, (mode, is_alone, steps) in enumerate(ways)
        for step in (*steps[turn % 3 :], *steps[: turn % 3])
    ]


@pytest.mark.parametrize(
    ("mode", "is_alone", "step", "after"), deaths(HERE, cases("prepare"), NEXTS, every=3)
)
def test_a_driver_killed_while_a_share_is_prepared_disturbs_nobody(
    node: Node, mode: str, *, is_alone: bool, step: str, after: str
) -> None:
    with node.mps.supervised():
        tenants = Tenants(node, mode, is_alone=is_alone)
        tenants.kill("prepare", step)
        if after == "mend":
            tenants.mend()
            tenants.check()
        elif after == "prepare":
            node.driver.prepare(tenants.claim)
            tenants.check()
        tenants.end()


@pytest.mark.parametrize(
    ("mode", "is_alone", "step", "after"), deaths(HERE, cases("unprepare"), NEXTS, every=3)
)
def test_a_driver_killed_while_a_share_is_given_back_disturbs_nobody(
    node: Node, mode: str, *, is_alone: bool, step: str, after: str
) -> None:
    with node.mps.supervised():
        tenants = Tenants(node, mode, is_alone=is_alone)
        node.driver.prepare(tenants.claim)
        tenants.kill("unprepare", step)
        if after == "mend":
            tenants.mend()
            tenants.check()
        elif after == "prepare":
            node.driver.prepare(tenants.claim)
            tenants.check()
        tenants.end()
