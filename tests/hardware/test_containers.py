"""Steps in containers: runc, a root file system with glibc, and the CDI devices of a claim."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import pytest
from cluster.errors import ClusterError
from cluster.image import CUDA_ENV
from testbed.containers import Container, Containers

from hardware.claims import MEMORY_LIMIT_MIB, MPS, prepared, supervised, whole
from hardware.client import Said, built, understood
from hardware.run import Run
from hardware.stage import Prepared


def _containers(run: Run) -> Containers:
    if os.geteuid() != 0:
        pytest.skip("runc needs root")
    try:
        folder = Path(mkdtemp(dir=run.folder))
        return Containers(folder, programs=[built(run.folder)], name=run.before.run)
    except ClusterError as error:
        pytest.skip(f"runc or another part of a container is missing: {error}")


def _run(run: Run, where: Containers, claim: Prepared, command: Sequence[str]) -> str:
    env = CUDA_ENV | run.mark
    container = Container(command=command, env=env, devices=claim.cdi_devices)
    program = command[-1].split()[0] if command[0] == "sh" else command[0]
    with run.timed(f"container with {program}"):
        return where.run(container, run.stage.place.cdi_root)


def _client(run: Run, where: Containers, claim: Prepared, mib: int) -> Said:
    script = f"cuda-client {mib} </dev/null || true"
    return understood(_run(run, where, claim, ["sh", "-c", script]))


def test_container(run: Run) -> None:
    """It runs nvidia-smi in a container with a claim."""
    with prepared(run, [whole(run)]) as claim:
        where = _containers(run)
        listed = _run(run, where, claim, ["nvidia-smi", "-L"])
        if listed.count("UUID: GPU-") != 1 or run.card.uuid not in listed:
            pytest.fail(f"nvidia-smi -L in the container says {listed!r}")
        run.note("nvidia-smi -L in the container lists the card of the claim, and no other")


def test_container_computes(run: Run) -> None:
    """Make a context, run a kernel and take memory in a container with a claim's card."""
    with prepared(run, [whole(run)]) as claim:
        where = _containers(run)
        _client(run, where, claim, 1).check(is_simulated=run.card.is_simulated)
        run.note("a program in the container made a context, ran a kernel and took memory")


@pytest.mark.changes("mps", also=["compute-mode"])
def test_container_mps(run: Run) -> None:
    """Let a program ask for more than its claim's limit under MPS, in a container."""
    with supervised(run), prepared(run, [whole(run)], MPS) as claim:
        where = _containers(run)
        for mib in (1, 2 * MEMORY_LIMIT_MIB):
            said = _client(run, where, claim, mib)
            run.note(f"asked for {mib} MiB: {said.failed or 'got them'}")
            if mib == 1:
                said.check(is_simulated=run.card.is_simulated)
        if not said.is_refused:
            pytest.fail(f"a program got {mib} MiB in a container limited to half of that")
