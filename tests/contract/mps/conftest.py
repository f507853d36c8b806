"""A node with simulated GPUs and NVIDIA's real MPS control, and supervisors that run on it."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from dra_driver.mps.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains

Run = Callable[[Supervisor], Supervisor]
Stop = Callable[[Supervisor], None]


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[MpsDomains]:
    if os.geteuid() != 0:
        pytest.skip("mounts and mount namespaces need root")
    try:
        mps = MpsDomains.create(tmp_path)
    except SetupError as error:
        pytest.skip(f"NVIDIA's MPS control cannot be had here: {error}")
    yield mps
    mps.clean()


@pytest.fixture
def threads() -> Iterator[list[tuple[Supervisor, threading.Thread]]]:
    """Supervisors that run in this process; they end with the test."""
    running: list[tuple[Supervisor, threading.Thread]] = []
    yield running
    for supervisor, thread in running:
        if thread.is_alive():
            supervisor.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def run(mps: MpsDomains, threads: list[tuple[Supervisor, threading.Thread]]) -> Run:
    """Run a supervisor in this process, until the test ends or stops it."""

    def start(supervisor: Supervisor) -> Supervisor:
        thread = threading.Thread(target=supervisor.run, name=f"supervisor {len(threads)}")
        threads.append((supervisor, thread))
        thread.start()
        return supervisor

    return start


@pytest.fixture
def stop(threads: list[tuple[Supervisor, threading.Thread]]) -> Stop:
    """Stop a supervisor and wait until it has ended."""

    def end(supervisor: Supervisor) -> None:
        supervisor.stop()
        dict(threads)[supervisor].join(PATIENCE)

    return end
