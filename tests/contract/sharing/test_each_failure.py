"""Any one call to the outside fails, once: the error says which, and a repeated call mends all.

Each call that a Prepare or an Unprepare makes fails in its turn, while another claim is prepared on
the node, which notices nothing: writes and reads of the disk, NVML calls, requests, programs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from testbed.commands import wait_until

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import DriverError
from worlds.configs import HALF, LONG, SHARES
from worlds.node import MakeNode, Node
from worlds.outside import CAUSES, Kind, failing

SECONDS = 20.0
"""For a call, which may try again what may pass."""


def share_of(minor: int, number: int) -> str:
    return f"gpu-{minor}-single-share-{number}-of-10"


MODES: Mapping[str, Callable[[Node, str, int], ClaimRef]] = {
    "whole": lambda node, name, nth: node.claim_gpus({"one": None}, nth, name),
    "time-slicing": lambda node, name, nth: node.claim_gpus({"one": LONG}, nth, name),
    "mps": lambda node, name, nth: node.claim_gpus({"one": HALF}, nth, name),
    "mig": lambda node, name, nth: node.claim(node.name("1g.10gb", 2 * nth), name=name),
    "share": lambda node, name, nth: node.claim(share_of(nth, 0), name=name),
    "share of mps": lambda node, name, nth: node.claim(share_of(nth, 0), name=name),
    "share beside another of mps": lambda node, name, nth: node.claim(share_of(0, nth), name=name),
}
"""By mode: how a claim is allocated that is the nth of its node."""


class Tried:
    """A node with a claim to be tried, and another one that is prepared all the time."""

    def __init__(self, node: Node, mode: str) -> None:
        self.node = node
        if mode.startswith("share"):
            division = SHARES["mps" if mode.endswith("mps") else "time-slicing"].division
            node.divide(0, 1, **division)
        self.ref = MODES[mode](node, "tried", 0)
        self.other = MODES[mode](node, "other", 1)
        node.driver.prepare(self.other)
        self.before = self.seen()
        self.nexts = cycle(("prepare", "unprepare", "mend"))

    def seen(self) -> Mapping[str, object]:
        """All that there is of claims: files and what is in them, devices, settings, domains."""
        node, state, requests = self.node, self.node.root / "state", self.node.mps.requests
        return {
            "left": node.left(),
            "files": [
                (state / name).read_bytes() for name in node.left() if (state / name).is_file()
            ],
            "devices": [device.uuid for device in node.migs()],
            "settings": (node.time_slices(), node.compute_modes()),
            "domains": {one: requests.desired(one) for one in requests.list()},
            "members": {one: requests.members(one) for one in requests.list()},
        }

    def each_failure(self, call: Callable[[ClaimRef, float], object], stride: int) -> Iterator[str]:
        """Let every so many-th call of every kind fail in its turn; yield which it was."""
        for kind in Kind:
            for nth in count(1, stride):
                with failing(self.node, kind, nth) as trouble:
                    error = self.error_of(call)
                assert trouble.struck or error == ""
                yield f"{kind} {nth}: {error or 'no error'}"
                if not trouble.struck:
                    break
                assert not error or any(cause in error for cause in CAUSES)

    def error_of(self, call: Callable[[ClaimRef, float], object]) -> str:
        """Make a call; return what it says if it fails, and check the claim if it does not."""
        try:
            call(self.ref, SECONDS)
        except DriverError as error:
            return str(error)
        if call == self.node.driver.prepare:
            self.check_prepared()
        return ""

    def check_prepared(self) -> None:
        record = self.node.driver.claims.ledger.read(self.ref.uid)
        assert record is not None
        assert record.state is RecordState.PREPARED
        assert self.node.driver.specs.exists(self.ref.uid)

    def end(self, said: str) -> None:
        """Come back as the kubelet does, or the driver starts; in the end the claim is gone."""
        match next(self.nexts):
            case "prepare":
                self.node.driver.prepare(self.ref, SECONDS)
                self.check_prepared()
            case "mend":
                assert self.node.driver.reconciler(ReconcileTiming()).mend() == set()
                if self.node.driver.claims.ledger.read(self.ref.uid):
                    self.check_prepared()
        self.node.driver.unprepare(self.ref, SECONDS)
        # A supervisor that read the request before it was deleted writes a status, and deletes it.
        wait_until(lambda: self.seen()["domains"] == self.before["domains"], said, timeout=10)
        assert self.seen() == self.before, said


@pytest.fixture
def tried(mode: str, make_node: MakeNode, tmp_path: Path) -> Iterator[Tried]:
    if mode.endswith("mps"):
        node = make_node()
    else:  # stand-ins for NVIDIA's programs, which are quicker
        make_node(userspace="stand-in").close()
        node = Node(tmp_path / "node0", played=False)
    with node.mps.supervised() if mode.endswith("mps") else nullcontext():
        tried = Tried(node, mode)
        yield tried
        node.driver.unprepare(tried.other)
        assert node.left() == []
    node.close()


COSTLY = {"mig": 23, "mps": 31, "share of mps": 41}
"""Only every so many-th call fails in each run; of the others every third."""


def every(modes: Iterable[str]) -> list[Any]:
    """Each mode twice: with some of the calls, and with all of them, which takes minutes."""
    all_of_it = pytest.mark.long("tests/contract/sharing/test_each_failure.py")
    found: list[Any] = [(mode, COSTLY.get(mode, 3)) for mode in modes]
    return found + [pytest.param(mode, 1, marks=all_of_it) for mode in modes]


@pytest.mark.parametrize(("mode", "stride"), every(MODES))
def test_a_prepare_of_which_any_call_fails_is_completed_or_taken_back(
    tried: Tried, stride: int
) -> None:
    for said in tried.each_failure(tried.node.driver.prepare, stride):
        tried.end(said)


@pytest.mark.parametrize(("mode", "stride"), every(MODES))
def test_an_unprepare_of_which_any_call_fails_is_completed(tried: Tried, stride: int) -> None:
    tried.node.driver.prepare(tried.ref)
    for said in tried.each_failure(tried.node.driver.unprepare, stride):
        tried.end(said)
        tried.node.driver.prepare(tried.ref)
    tried.node.driver.unprepare(tried.ref)
