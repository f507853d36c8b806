"""Memory limits of control groups (R615 or newer), and by which path NVML knows a group."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dra_driver.errors import DeviceError
from hardware.claims import own_group
from hardware.client import Client, built, environment
from hardware.run import Run

_CGROUP_PATH = "Does NVML know a control group by a path that is not below /sys/fs/cgroup?"

_MIB = 1 << 20
LIMIT_MIB = 2048


@pytest.mark.changes("memory-limit")
def test_memory_limit(run: Run) -> None:
    """Limit a group, read the limit back, and let a program in it ask for more."""
    with own_group(run) as group:
        with run.card.nvml() as library, run.timed("set and read back"):
            library.set_memory_limit(run.card.uuid, group, LIMIT_MIB * _MIB)
            limit = library.memory_limit(run.card.uuid, group)
        run.note(f"the limit in force is {(limit or 0) // _MIB} MiB")
        if run.card.is_simulated:
            pytest.skip("nothing computes on a simulated GPU; the limit was set and read back")
        program, env = built(run.folder), environment(run)
        with Client(program, env, 2 * LIMIT_MIB, group=group) as client:
            if not client.said.is_refused:
                pytest.fail(f"a program in the group was not refused: {client.said}")


@pytest.mark.changes("memory-limit")
def test_cgroup_path(run: Run) -> None:
    """Name a group by its path below another mount of the hierarchy."""
    with own_group(run) as group, _elsewhere(run, group) as place, run.card.nvml() as library:
        library.set_memory_limit(run.card.uuid, group, LIMIT_MIB * _MIB)
        try:
            limit = library.memory_limit(run.card.uuid, place)
        except DeviceError as error:
            run.note(str(error))
            run.answer(_CGROUP_PATH, "No: NVML takes a group by the usual path alone.")
            return
    same = limit == LIMIT_MIB * _MIB
    run.answer(
        _CGROUP_PATH,
        "Yes: by the path below another mount it says the same limit."
        if same
        else "It takes the path below another mount, and says no limit there.",
    )


@contextmanager
def _elsewhere(run: Run, group: Path) -> Iterator[Path]:
    """Mount the hierarchy once more; yield the group's path there."""
    place = run.folder / "groups"
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ("mount", "--bind", group.parent, place), capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the hierarchy cannot be mounted once more: {done.stderr.strip()}")
    try:
        yield place / group.name
    finally:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(("umount", place), check=True)
