"""Which machines limit memory by control group, and what processes in such a group are told."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds.groups import GIB, R615, Groups, Limits, Nvml, kernels_groups, limits_on


@pytest.fixture
def world(tmp_path: Path, nvml: Nvml) -> Iterator[Limits]:
    with limits_on(tmp_path, nvml) as made:
        yield made


# What a process is told

PROGRAM = """
import ctypes, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlMemory_v2)
print(memory.total, memory.free, memory.used)
"""


def told(world: Limits, group: Path) -> list[int]:
    """Return total, free and used, as a process in a group is told."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(world.machine.library)],
        env={"NVML_SIMULATOR_CGROUP": str(group), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [int(word) for word in done.stdout.split()]


def test_a_process_sees_the_limit_of_its_own_group(world: Limits) -> None:
    leaf = world.groups.make("pod/leaf")
    world.set(leaf, 10 * GIB)
    world.take(leaf, 3 * GIB)

    assert told(world, leaf) == [10 * GIB, 7 * GIB, 3 * GIB]


def test_a_process_sees_the_limit_of_a_parent_group(world: Limits) -> None:
    leaf = world.groups.make("pod/leaf")
    world.set(leaf.parent, 10 * GIB)
    assert told(world, leaf)[0] == 10 * GIB


# Which machines have limits


@pytest.mark.usefixtures("needs_root")  # it makes control groups
def test_the_kernels_own_control_groups_are_known(tmp_path: Path, nvml: Nvml) -> None:
    newer = profiles.changed(profiles.load("t4x4"), {"driver_version": R615})
    machine = Machine.create(tmp_path / "machine", newer)
    with kernels_groups("pod/leaf") as (mount, [leaf]), nvml(machine):
        world = Limits(machine, Groups(mount))
        world.set(leaf.parent, GIB)
        assert world.get(leaf) == (0, GIB, 0)
        assert not world.take(leaf, 2 * GIB)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            world.set(mount, GIB)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            world.set(tmp_path, GIB)


IN_A_CONTAINER = "unshare --cgroup --mount sh -c 'mount -t cgroup2 none /sys/fs/cgroup; \"$@\"' -"


@pytest.mark.usefixtures("needs_root")  # it makes control groups
@pytest.mark.parametrize("through", ["", IN_A_CONTAINER])
def test_a_processs_group_comes_from_the_kernel(tmp_path: Path, nvml: Nvml, through: str) -> None:
    newer = profiles.changed(profiles.load("t4x4"), {"driver_version": R615})
    with kernels_groups("pod/leaf") as (mount, [leaf]):
        options = Options(userspace="stand-in", cgroup_root=None if through else mount)
        machine = Machine.create(tmp_path / "machine", newer, options)
        script = f'echo $$ > {leaf}/cgroup.procs; {through} "$@"'
        program = [sys.executable, "-c", PROGRAM, str(machine.library)]
        with nvml(machine):
            Limits(machine, Groups(mount)).set(leaf, GIB)
            done = subprocess.run(
                ["sh", "-c", script, "-", *program],
                env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
    assert done.stderr == ""
    assert done.stdout.split()[:2] == [str(GIB), str(GIB)]
