"""The MPS domains of a node, and the lives of supervisors that serve them.

NVIDIA's real MPS control over simulated GPUs. Everything is below one directory, so that another
process can go on with it.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.admin.stored import supervisor_runs
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.driver_root.programs import MPS_CONTROL, MPS_SERVER
from dra_driver.errors import SilenceError
from dra_driver.host.ofd_lock import holder_of
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import Control
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, Status
from dra_driver.mps.files import DomainPaths, MpsFiles
from dra_driver.mps.requests import DomainRequests
from dra_driver.mps.supervisor.cgroup import DaemonGroup
from dra_driver.mps.supervisor.compute_modes import ComputeModes, NvmlModes
from dra_driver.mps.supervisor.lifecycle import SupervisorContext
from dra_driver.mps.supervisor.supervisor import Supervisor
from dra_driver.simulator.machine import Machine
from worlds import ends
from worlds.configs import PATIENCE
from worlds.moments import Step, of_supervisors

QUICK = WorkerTiming(first_retry=0.02, longest_retry=0.2, check_interval=0.2, settled=0.0)
_SECONDS_TO_LOCK = 5.0
"""What a supervisor gets that may not take it at all, as a test has it."""


@contextmanager
def running(supervisor: Supervisor) -> Iterator[Supervisor]:
    """Run a supervisor in this process."""
    supervisor.start()
    try:
        yield supervisor
    finally:
        assert supervisor.stop(PATIENCE)


def clean(root: Path) -> None:
    """End all daemons that serve in a folder of MPS domains, and unmount what they had."""
    for folder in MpsFiles(root=root).domains_folder.glob("*"):
        processes.kill(processes.marked(folder), 5.0)
        for path in DomainPaths(folder=folder).mounted:
            mounts.unmount_all(path)


class MpsDomains:
    """Domains are asked for, waited for and looked into as a driver and a person would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root / "driver")
        self.files = MpsFiles(root=root / "mps")
        self.locks = NodeLocks(root / "domain-locks", time.monotonic, on_other=lambda: None)
        self.requests, self.impatient = (
            DomainRequests(
                self.files.root, time.monotonic, lock=self.locks.domain, supervisor_grace=seconds
            )
            for seconds in (PATIENCE, 0.05)
        )
        self.control = Control(self.machine.driver_root, self.machine.proc_root)
        ends.OPEN.add(self)

    def supervisor_runs(self) -> bool:
        return supervisor_runs(self.files.root)

    def close(self) -> None:
        ends.OPEN.discard(self)
        self.requests.stop()
        self.impatient.stop()
        self.locks.close()

    def supervisor(
        self, timing: WorkerTiming = QUICK, *, modes: bool = True, name: str = ""
    ) -> Supervisor:
        context = SupervisorContext(
            supervisor=name or f"{os.getpid()}-{time.monotonic_ns()}",
            boot_id=self.machine.boot_id,
            files=self.files,
            control=self.control,
            modes=ComputeModes(
                NvmlModes(self.machine.driver_root, self.machine.proc_root), change=modes
            ),
            group=DaemonGroup(None),
            gpus=self.machine.proc_root / "driver/nvidia/gpus",
            shm_bytes=16 * 1024**2,
        )
        return Supervisor(context, timing, time.monotonic)

    @contextmanager
    def supervised(
        self, step: Step = lambda _: None, timing: WorkerTiming = QUICK, *, modes: bool = True
    ) -> Iterator[Supervisor]:
        """Run a supervisor in this process, and wait until it has the lock.

        That it is held is not enough: a process that was forked while the last supervisor ran
        holds that one's lock until it is another program.
        """
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        supervisor = self.supervisor(timing, modes=modes, name=name)
        with of_supervisors(step), running(supervisor):
            end = time.monotonic() + _SECONDS_TO_LOCK
            while holder_of(self.files.lock) != name and time.monotonic() < end:
                time.sleep(0.005)
            yield supervisor

    def uuid(self, minor: int) -> str:
        return next(gpu.uuid for gpu in self.machine.gpus if gpu.minor == minor)

    def domain(
        self, name: str, *minors: int, limits: tuple[int | None, ...] = (), **facts: object
    ) -> Domain:
        each = limits or (None,) * len(minors)
        return Domain(
            id=DomainId(name),
            devices=tuple(
                DomainDevice(uuid=self.uuid(minor), pinned_memory_mib=limit)
                for minor, limit in zip(minors, each, strict=True)
            ),
            **facts,  # type: ignore[arg-type]
        )

    def ready(self, domain: Domain) -> Status:
        """Ask for a domain and wait until it is served."""
        self.requests.write_desired(domain)
        return self.requests.wait_ready(domain, time.monotonic() + PATIENCE)

    def gone(self, domain: Domain) -> None:
        """Ask for a domain's end and wait for it."""
        self.requests.remove(domain.id)
        self.requests.wait_gone(domain.id, time.monotonic() + PATIENCE)

    def until(self, domain: Domain, holds: Callable[[Status], bool]) -> Status:
        """Wait for a status."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            status = self.requests.status(domain.id)
            if status is not None and holds(status):
                return status
            time.sleep(0.005)
        raise AssertionError(f"last status: {self.requests.status(domain.id)}")

    def ask(self, domain: DomainId, command: str) -> list[str]:
        """Ask a domain's daemon, the way a person would: again, if it answers somebody else."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.control.ask(self.files.paths(domain), [command])
            except SilenceError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def server(self, domain: Domain) -> "subprocess.Popen[bytes]":
        """Start what has the name of NVIDIA's server, and the environment of a domain's daemon."""
        status = self.requests.status(domain.id)
        assert status is not None
        assert status.daemon is not None
        program = self.root / MPS_SERVER
        shutil.copy2("/bin/sleep", program)
        environment = processes.environment_of(status.daemon.pid)
        server = subprocess.Popen([program, "600"], env=environment)
        # A program's start is told to its parent a moment before its environment can be read.
        end = time.monotonic() + PATIENCE
        while not processes.environment_of(server.pid) and time.monotonic() < end:
            time.sleep(0.001)
        return server

    def compute_modes(self) -> dict[int, int]:
        """The compute modes that are not DEFAULT, by minor number."""
        return {s.gpu.minor: s.compute_mode for s in self.machine.status() if s.compute_mode}

    def left(self, domain: Domain) -> list[str]:
        """What is left of a domain: processes, mounts, folders, files, compute modes."""
        paths = self.files.paths(domain.id)
        found = [f"process {daemon.pid}" for daemon in processes.marked(paths.folder)]
        found += [f"mount on {path}" for path in paths.mounted if mounts.layers(path)]
        found += [
            str(path) for path in (paths.folder, self.files.status(domain.id)) if path.exists()
        ]
        found += [
            f"compute mode of {device.uuid}"
            for device in domain.devices
            if self.machine.compute_mode(device.uuid) != 0
        ]
        return found

    def wrap_control(self, script: str) -> None:
        """Put a shell script in the program's place; `$REAL` is the real one."""
        program = self.machine.driver_root / "usr/bin" / MPS_CONTROL
        real = program.with_name("real") / MPS_CONTROL
        real.parent.mkdir(exist_ok=True)
        if not real.exists():
            program.rename(real)
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
        program.chmod(0o755)

    def unwrap_control(self) -> None:
        program = self.machine.driver_root / "usr/bin" / MPS_CONTROL
        (program.with_name("real") / MPS_CONTROL).replace(program)

    def clean(self) -> None:
        """End and unmount everything, whatever a test has left."""
        clean(self.files.root)
