"""One MPS domain's life, without a supervisor's thread, NVIDIA's programs and a GPU.

The daemon is a process that sleeps under a daemon's name, with a daemon's environment. Processes,
files and mounts are real. What is there at each step is kept: the next supervisor goes by it.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dra_driver.errors import DeviceError
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, DomainId
from dra_driver.mps.files import DomainPaths, MpsFiles
from dra_driver.mps.pipes import SHARED
from dra_driver.mps.supervisor.compute_modes import DEFAULT, ComputeModes
from dra_driver.mps.supervisor.lifecycle import Lifecycle, ServingDaemon, SupervisorContext
from dra_driver.mps.supervisor.record import DomainRecord, read_record
from worlds.configs import PATIENCE

BOOT = "boot-1"
SHM_BYTES = 16 * 1024**2
UUIDS = tuple(f"GPU-00000000-0000-4000-8000-{number:012x}" for number in range(3))
_kill = processes.kill


class PlayedModes:
    """The compute modes of GPUs; None is a card that has none."""

    def __init__(self, *uuids: str) -> None:
        self.modes: dict[str, int | None] = dict.fromkeys(uuids, DEFAULT)
        self.writes = 0
        self.refuses = False
        self.is_open = False
        self.openings = 0

    def compute_mode(self, uuid: str) -> int | None:
        if self.refuses:
            raise DeviceError("refused")
        self.openings += not self.is_open
        self.is_open = True
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        if self.refuses:
            raise DeviceError("refused")
        self.writes += 1
        self.modes[uuid] = mode

    def close(self) -> None:
        self.is_open = False


class PlayedControl:
    """The control program: it starts a daemon, tells who listens, answers, and has it quit."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "nvidia-cuda-mps-control"
        shutil.copy2("/bin/sleep", self.program)
        self.children: list[subprocess.Popen[bytes]] = []
        self.listener: Daemon | None = None
        self.asked: list[str] = []
        self.answers: dict[str, list[str]] = {"default_active_thread_percentage": ["100.0"]}
        self.on_quit: Callable[[Daemon], None] = self.end

    def process(self, environment: Mapping[str, str]) -> Daemon:
        """Start a process that has the name of NVIDIA's."""
        child = subprocess.Popen([self.program, "600"], env=dict(environment))
        self.children.append(child)
        # A program's start is told to its parent a moment before its environment can be read.
        until = time.monotonic() + PATIENCE
        while not processes.environment_of(child.pid) and time.monotonic() < until:
            time.sleep(0.001)
        found = processes.daemon_at(child.pid)
        assert found is not None
        return found

    def start(self, domain: Domain, paths: DomainPaths, token: str) -> Daemon:
        self.listener = self.process(environment(domain, paths, token))
        for name in SHARED:
            (paths.own / name).write_text(token)
        return self.listener

    def listening(self, _: DomainPaths) -> Daemon | None:
        found = self.listener
        return found if found is not None and processes.is_alive(found) else None

    def ask(self, _: DomainPaths, commands: Sequence[str]) -> list[str]:
        said: list[str] = []
        for command in commands:
            self.asked.append(command)
            verb, _, name = command.partition("_")
            if verb == "set":
                name, _, value = name.rpartition(" ")
                self.answers[name] = [value]
            else:
                said += self.answers[name]
        return said

    def quit(self, _: DomainPaths, daemon: Daemon) -> None:
        self.on_quit(daemon)

    def end(self, daemon: Daemon) -> None:
        child = next(one for one in self.children if one.pid == daemon.pid)
        child.terminate()
        child.wait(PATIENCE)

    def end_later(self, daemon: Daemon, seconds: float) -> None:
        threading.Timer(seconds, self.end, [daemon]).start()

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(PATIENCE)


def environment(domain: Domain, paths: DomainPaths, token: str) -> dict[str, str]:
    """A daemon's environment."""
    return {
        "CUDA_VISIBLE_DEVICES": domain.visible_devices,
        processes.MARK: str(paths.folder),
        processes.GENERATION: domain.daemon_generation,
        processes.TOKEN: token,
    }


class At(NamedTuple):
    """What is there at a step: of the record, and of the machine."""

    step: str
    found: Mapping[str, int] | None = None
    """The modes in the record; None without a record."""
    has_token: bool = False
    has_daemon: bool = False
    running: int = 0
    mounted: int = 0
    exclusive: int = 0


class Life:
    """A domain's life in a folder, and all that is told of it."""

    def __init__(self, root: Path, domain: DomainId) -> None:
        self.id = domain
        self.files = MpsFiles(root / "mps")
        self.files.make_folders()
        self.paths = self.files.paths(domain)
        self.control = PlayedControl(root)
        self.modes = PlayedModes(*UUIDS)
        self.steps: list[At] = []
        self.reports: list[tuple[str, str]] = []
        self.moved: list[Daemon] = []
        self.killed: list[Daemon] = []
        self.deaths = 0
        self.on_step: Callable[[str], object] = lambda _: None
        self.supervise()

    def supervise(self) -> None:
        """Begin the life of a supervisor, who knows what is on disk."""
        control: Any = self.control
        modes: Any = self.modes
        group: Any = self
        self.compute_modes = ComputeModes(modes)
        self.context = SupervisorContext(
            supervisor="one",
            boot_id=BOOT,
            files=self.files,
            control=control,
            modes=self.compute_modes,
            group=group,
            gpus=self.files.root,
            shm_bytes=SHM_BYTES,
            step=self.step,
            on_death=self.died,
        )
        self.lifecycle = Lifecycle(self.id, self.context, self.report)

    def kill(self, left: Sequence[Daemon], seconds: float) -> bool:
        """Kill them for real, and note who had not ended before."""
        self.killed += filter(processes.is_alive, left)
        return _kill(left, seconds)

    @property
    def record(self) -> DomainRecord | None:
        return read_record(self.paths.record, BOOT)

    def domain(self, *gpus: int, limit: int | None = None, **facts: Any) -> Domain:
        devices = tuple(DomainDevice(uuid=UUIDS[gpu], pinned_memory_mib=limit) for gpu in gpus)
        return Domain(id=self.id, devices=devices, **facts)

    def step(self, domain: DomainId, name: str) -> None:
        assert domain == self.id
        self.steps.append(self.at(name))
        self.on_step(name)

    def at(self, step: str = "") -> At:
        record = self.record
        return At(
            step=step,
            found=None if record is None else dict(record.modes_found),
            has_token=record is not None and bool(record.token),
            has_daemon=record is not None and record.daemon is not None,
            running=len(processes.marked(self.paths.folder)),
            mounted=sum(mounts.layers(folder) for folder in self.paths.mounted),
            exclusive=sum(mode == 3 for mode in self.modes.modes.values()),
        )

    def names(self) -> list[str]:
        """The steps since this was asked before."""
        found, self.steps = [step.step for step in self.steps], []
        return found

    def report(self, state: str, reason: str) -> None:
        self.reports.append((state, reason))

    def died(self) -> None:
        self.deaths += 1

    def take(self, daemon: Daemon) -> None:
        """Stand for the control group: what sets limits has it moved there before."""
        self.moved.append(daemon)

    def server(self, wanted: Domain) -> Daemon:
        """A server of the daemon, which has its environment."""
        record = self.record
        assert record is not None
        return self.control.process(environment(wanted, self.paths, record.token))

    def close(self) -> None:
        self.control.close()
        for folder in (*self.paths.mounted, self.paths.libraries):
            mounts.unmount_all(folder)


def size_of(folder: Path) -> tuple[int, int, int]:
    """The bytes and files that a file system takes, and the permissions of its top."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_files, folder.stat().st_mode & 0o7777


def serving(life: Life, wanted: Domain) -> ServingDaemon:
    """Let a domain come up; what was told on the way is forgotten."""
    found = life.lifecycle.ensure_serving(wanted, None)
    for told in (life.steps, life.reports, life.moved, life.control.asked):
        told.clear()
    return found
