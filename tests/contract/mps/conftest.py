"""The MPS domains of a node with NVIDIA's own programs, and supervisors in this process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.mps import MpsDomains
from worlds.node import MakeNode

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


@pytest.fixture
def mps(make_node: MakeNode, needs_root: None, real_userspace: None) -> MpsDomains:
    return make_node(userspace="real").mps


@pytest.fixture
def run(mps: MpsDomains) -> Iterator[Run]:
    """Runs a supervisor until the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context
