"""The MPS domains of a node with NVIDIA's own programs, and supervisors in this process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from dra_driver.mps import processes
from dra_driver.mps.domain import DomainId
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.mps import MpsDomains
from worlds.node import MakeNode
from worlds.played_mps import Life

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


@pytest.fixture
def mps(make_node: MakeNode, needs_root: None, real_userspace: None) -> MpsDomains:
    return make_node(userspace="real").mps


@pytest.fixture
def run(mps: MpsDomains) -> Iterator[Run]:
    """Runs a supervisor until the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def life(tmp_path: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """The life of a claim's domain."""
    made = Life(tmp_path, DomainId("claim"))
    monkeypatch.setattr(processes, "kill", made.kill)
    yield made
    made.close()


@pytest.fixture
def shared(tmp_path: Path, needs_root: None) -> Iterator[Life]:
    """The life of a domain that claims join and leave."""
    made = Life(tmp_path, DomainId("shared_node"))
    yield made
    made.close()
