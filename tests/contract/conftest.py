"""Nodes with simulated GPUs, drivers with played ones, and what these need of this machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster.errors import ClusterError
from promtool import program
from testbed.apiserver.server import ApiServer
from testbed.disk import SmallDisk

from charts import REPOSITORY, Render, objects
from dra_driver.simulator import build, userspace
from readiness import lacks
from worlds import ends
from worlds.driver import Driver
from worlds.node import MakeNode, Node
from worlds.process import serving_a_node


@pytest.fixture(scope="session")
def helm() -> str:
    """Helm, as hack/ready.py compiles it."""
    command = (sys.executable, REPOSITORY / "hack" / "cluster", "fetch", "helm")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lacks("helm", done.stderr)
    return f"{done.stdout.split()[1]}/helm"


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own program, of this machine or of Debian's package."""
    try:
        return program()
    except ClusterError as error:
        lacks("promtool", str(error))


@pytest.fixture
def render(helm: str) -> Render:
    """Render the chart with further words for helm; return the objects."""
    return partial(objects, helm)


@pytest.fixture(scope="session")
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("this needs root")


@pytest.fixture(scope="session")
def real_userspace() -> None:
    """Needs NVIDIA's user-space files, as hack/ready.py downloads them."""
    if not userspace.kept(build.cache_folder(os.environ)).exists():
        lacks("userspace", "NVIDIA's user-space files are not there")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server that knows the node of a driver's process."""
    with serving_a_node() as server:
        yield server


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Makes nodes from what Node.create takes."""
    made: list[Node] = []

    def make(profile: str = "h100x8", **options: str | bool) -> Node:
        made.append(Node.create(tmp_path / f"node{len(made)}", profile, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for node in made:
        node.mps.clean()
        node.close()


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.fixture(autouse=True)
def worlds_closed() -> Iterator[None]:
    yield
    ends.close_all()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], SmallDisk]]:
    """Makes a folder a file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    made: list[SmallDisk] = []

    def make(folder: Path) -> SmallDisk:
        made.append(SmallDisk(folder))
        return made[-1]

    yield make
    for disk in made:
        disk.unmount()
