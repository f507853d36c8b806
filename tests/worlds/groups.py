"""A machine whose driver limits memory, control groups that are plain folders, and pynvml there."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pynvml
import pytest

from dra_driver.devices.control_groups import find_hierarchy
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine

R615 = "615.71.09"
MIB = 1024**2
GIB = 1024 * MIB


def make_group(group: Path) -> Path:
    """Make a folder that stands for a control group (v2), below one that is there; returns it."""
    group.mkdir()
    for name in ("cgroup.procs", "cgroup.events", "cgroup.controllers"):
        (group / name).touch()
    return group


def make_root(folder: Path) -> Path:
    """Make a new folder that stands for the root of all control groups; returns it."""
    folder.mkdir()
    (folder / "cgroup.procs").touch()
    (folder / "cgroup.controllers").write_text("cpu memory pids misc\n")
    return folder


class Groups:
    """Control groups below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, place: str) -> Path:
        """Make a group and those above it that are missing."""
        group = self.root / place
        if group != self.root and not group.exists():
            self.make(str(Path(place).parent))
            make_group(group)
        return group

    def pod(self, containers: int = 0, uid: str = "") -> tuple[str, Path]:
        """Make the group of a pod, as the kubelet with systemd does, and those of containers."""
        uid = uid or str(uuid.uuid4())
        top = "kubepods.slice/kubepods-burstable.slice"
        pod = f"{top}/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        for number in range(containers):
            self.make(f"{pod}/cri-containerd-{number:064x}.scope")
        return uid, self.make(pod)


def limited(
    folder: Path, backend: str = "misc", *, profile: str = "h100x8", driver: str = R615
) -> tuple[Machine, Groups]:
    """Make a machine with that backend, and the root of its control groups, in a folder."""
    chosen = profiles.changed(
        profiles.load(profile), {"driver_version": driver, "memory_limits": backend}
    )
    root = folder / "cgroup"
    options = Options(userspace="stand-in", cgroup_root=root)
    machine = Machine.create(folder / "driver", chosen, options)
    make_root(root)
    return machine, Groups(root)


class Limits:
    """A machine, its groups, and pynvml's view of the first GPU."""

    def __init__(self, machine: Machine, groups: Groups) -> None:
        self.machine, self.groups = machine, groups
        self.uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def set(self, group: Path, hard: int, soft: int = 0) -> None:
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=str(group).encode(), softLimit=soft, hardLimit=hard
        )
        pynvml.nvmlDeviceSetMemoryLimits_v1(self.handle, limits)

    def get(self, group: Path) -> tuple[int, int, int]:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(group).encode())
        pynvml.nvmlDeviceGetMemoryLimits_v1(self.handle, limits)
        return limits.softLimit, limits.hardLimit, limits.currentUsed

    def take(self, group: Path | None, size: int, pid: int = 1) -> bool:
        return self.machine.take_memory(self.uuid, size, pid=pid, group=group)


Nvml = Callable[[Machine], AbstractContextManager[None]]


@contextmanager
def limits_on(folder: Path, nvml: Nvml) -> Iterator[Limits]:
    """Make a machine, and have pynvml initialised on it."""
    machine, groups = limited(folder)
    with nvml(machine):
        yield Limits(machine, groups)


@contextmanager
def kernels_groups(*places: str) -> Iterator[tuple[Path, list[Path]]]:
    """Make control groups of the kernel's own, below one with a new name; skips where it cannot.

    Yields the folder where cgroup2 is mounted, and the groups.
    """
    mount = find_hierarchy(None)
    if mount is None:
        pytest.skip("there is no cgroup v2 here")
    top = mount / f"dra-driver-test-{uuid.uuid4()}"
    try:
        for place in places:
            (top / place).mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no control group can be made in {mount}: {error.strerror}")
    try:
        yield mount, [top / place for place in places]
    finally:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
