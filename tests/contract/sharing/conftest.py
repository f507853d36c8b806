"""A node with simulated GPUs and NVIDIA's own programs, and MPS supervisors that run on it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from worlds.configs import PATIENCE
from worlds.mps import Step, no_step
from worlds.node import Node

Make = Callable[..., Node]
Supervised = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Make]:
    """Make nodes; skipped where NVIDIA's files cannot be had, which is a failure in CI."""
    made: list[Node] = []

    def make(profile: str = "h100x8") -> Node:
        if os.geteuid() != 0:
            pytest.skip("compute modes, mounts and mount namespaces need root")
        try:
            made.append(Node.create(tmp_path / f"node{len(made)}", profile))
        except SetupError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"NVIDIA's user-space files cannot be had: {error}")
        return made[-1]

    yield make
    for node in made:
        node.mps.clean()
        node.close()


@pytest.fixture
def node(make_node: Make) -> Node:
    return make_node()


@pytest.fixture
def supervised() -> Supervised:
    """Run an MPS supervisor on a node."""

    @contextmanager
    def run(node: Node, step: Step = no_step) -> Iterator[None]:
        supervisor = node.mps.supervisor(step)
        thread = threading.Thread(target=supervisor.run, name="supervisor")
        thread.start()
        try:
            yield
        finally:
            supervisor.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()

    return run
