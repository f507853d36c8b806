"""Any order of joins, leaves and kills: a domain is asked for exactly while it has members.

A kill strikes between two system calls of the driver. What was being done is then half done: the
claim may be a member or not, until somebody repeats or reverses the call.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dra_driver.claims.state.locks import NodeLocks
from dra_driver.errors import ConflictError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, shared_domain
from dra_driver.mps.requests import DomainRequests
from sampling import examples

CLAIMS = st.sampled_from(["a", "b", "c"])
DOMAINS = st.sampled_from([shared_domain("node"), shared_domain("GPU-1")])
PERCENTAGES = st.sampled_from([None, 50])
CALLS = st.none() | st.integers(0, 25)
CHANGES = ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir")
IN_MEMORY = Path("/dev/shm")


class Killed(BaseException):
    """Stands for kill -9: nothing in the driver catches it."""


def _dying(real: Callable[..., Any], countdown: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        countdown[0] -= 1
        if countdown[0] < 0:
            raise Killed
        return real(*args, **options)

    return call


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.locks = NodeLocks(self.root / "locks", lambda: 0.0, on_other=lambda: None)
        self.requests = DomainRequests(self.root, lambda: 0.0, lock=self.locks.domain)
        self.members: dict[DomainId, dict[str, Domain | None]] = {}
        self.unsure: set[tuple[DomainId, str]] = set()

    def teardown(self) -> None:
        """When all have left, also the killed ones, nothing is asked for and nothing left."""
        self.requests.stop()
        for domain in (shared_domain("node"), shared_domain("GPU-1")):
            for claim in ("a", "b", "c"):
                self.requests.leave(domain, claim)
        self.requests.tidy()
        assert not any((self.root / "desired").glob("shared_*"))
        assert not any((self.root / "members").glob("*"))
        self.locks.close()
        shutil.rmtree(self.root)

    def attempt(self, call: Callable[[], object], die_after: int | None) -> bool:
        """Make a call; return whether it came to its end."""
        if die_after is None:
            call()
            return True
        countdown = [die_after]
        with mock.patch.multiple(
            os, **{name: _dying(getattr(os, name), countdown) for name in CHANGES}
        ):
            try:
                call()
            except Killed:
                return False
        return True

    @rule(domain=DOMAINS, claim=CLAIMS, percentage=PERCENTAGES, die_after=CALLS)
    def join(
        self, domain: DomainId, claim: str, percentage: int | None, die_after: int | None
    ) -> None:
        wanted = Domain(
            id=domain, devices=(DomainDevice(uuid="GPU-1"),), active_thread_percentage=percentage
        )
        asked_for = self.requests.desired(domain)
        others = self.requests.members(domain) - {claim}
        try:
            finished = self.attempt(lambda: self.requests.join(wanted, claim), die_after)
        except ConflictError:
            assert others
            assert asked_for is not None
            assert asked_for.content != wanted
            return
        if not finished:
            self.unsure.add((domain, claim))
            return
        self.unsure.discard((domain, claim))
        self.members.setdefault(domain, {})[claim] = wanted
        now = self.requests.desired(domain)
        assert now is not None
        assert now.content == wanted
        if asked_for is not None and asked_for.content == wanted:
            assert now == asked_for

    @rule(domain=DOMAINS, claim=CLAIMS, die_after=CALLS)
    def leave(self, domain: DomainId, claim: str, die_after: int | None) -> None:
        said: list[bool] = []
        if not self.attempt(lambda: said.append(self.requests.leave(domain, claim)), die_after):
            self.unsure.add((domain, claim))
            return
        self.unsure.discard((domain, claim))
        self.members.get(domain, {}).pop(claim, None)
        left = self.requests.members(domain)
        assert said == [False], "no supervisor has begun anything that would have to end"
        assert left or self.requests.desired(domain) is None

    @rule(die_after=CALLS)
    def tidy(self, die_after: int | None) -> None:
        if self.attempt(self.requests.tidy, die_after):
            for domain in (shared_domain("node"), shared_domain("GPU-1")):
                is_used = bool(self.requests.members(domain))
                # A join that was killed before it asked is mended when it is repeated.
                unsure = any(one == domain for one, _ in self.unsure)
                assert is_used or self.requests.desired(domain) is None
                assert unsure or is_used == (self.requests.desired(domain) is not None)

    @invariant()
    def members_are_those_that_joined(self) -> None:
        for domain in (shared_domain("node"), shared_domain("GPU-1")):
            sure = {one for one in "abc" if (domain, one) not in self.unsure}
            joined = set(self.members.get(domain, {}))
            assert self.requests.members(domain) & sure == joined & sure

    @invariant()
    def whoever_has_joined_is_served(self) -> None:
        """Whatever was killed, a claim that is prepared keeps its domain as it knows it."""
        for domain, claims in self.members.items():
            for claim, wanted in claims.items():
                if (domain, claim) not in self.unsure:
                    found = self.requests.desired(domain)
                    assert found is not None
                    assert found.content == wanted


class TestNode(Node.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
