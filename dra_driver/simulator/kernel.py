"""The kernel of a simulated machine with an IOMMU: what writes to bind and unbind below /sys do.

In: a machine, and what is written to `bus/pci/drivers/<driver>/{bind,unbind}`. Out: the function
changes its driver (pci_drivers.py), or the writer gets the kernel's error. As in the kernel:

- a driver takes the functions whose driver_override names it; without one, those that it knows;
  vfio-pci knows none;
- while a driver lets go, its link is already gone, and other writes of the same function wait;
- nvidia lets go of a GPU only when nobody has it open any more: until then the writer sleeps, and
  no signal wakes it. vfio-pci does the same while a virtual machine has the function.
"""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dra_driver.errors import SetupError
from dra_driver.simulator import mig, sysfs
from dra_driver.simulator.acting_files import Act, ActingFiles, unmount
from dra_driver.simulator.iommu import NVIDIA
from dra_driver.simulator.layout import FaultRecord, Presence
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.pci_drivers import Bus
from dra_driver.simulator.state import ANY_GPU, State

_FILES = "sys/kernel/simulator"
_LOOK_S = 0.1
_START_S = 60.0
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Kernel:
    """The kernel of a machine, in a process of its own: `with Kernel(machine): ...`.

    It also ends with the thread that made it. Needs root. Raises SetupError if that fails.
    """

    def __init__(self, machine: Machine) -> None:
        self._root = machine.driver_root
        self._links = _links(_bus_of(machine))

    def __enter__(self) -> Self:
        words = [sys.executable, "-P", "-m", "dra_driver", "simulate", "kernel"]
        self._process = subprocess.Popen(
            [*words, "--ends-with-parent", "--root", str(self._root)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None  # noqa: S101 (a pipe, see above)
        said = self._process.stdout.readline()
        if not said.startswith("serving"):
            said += self._process.communicate()[0]
            raise SetupError(f"the simulated kernel did not start: {said.strip()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self.said = self._process.communicate(timeout=_START_S)[0]
        for path in self._links:  # whatever ended it
            path.unlink(missing_ok=True)
        unmount(self._root / _FILES)


def run(machine: Machine, say: Callable[[str], None], *, ends_with_parent: bool = False) -> None:
    """Be the kernel of a machine, until a signal ends it or all its files are unmounted.

    Raises SetupError if the machine has no IOMMU, or this is not root.
    """
    if ends_with_parent:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGTERM)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    bus = _bus_of(machine)
    links = _links(bus)
    files = ActingFiles(machine.driver_root / _FILES, _acts(Writes(machine, bus, say), links))
    try:
        for path in links:
            sysfs.link(path, machine.driver_root / _FILES / _name(path))
        say(f"serving bind and unbind of {', '.join(sorted(bus.drivers))}")
        while files.are_there and not signal.sigtimedwait(ends, 0.5):
            pass
    finally:
        for path in links:
            path.unlink(missing_ok=True)
        files.close()


class Writes:
    """What a write does; each raises OSError as the kernel answers.

    Writes of different functions go on side by side, those of one wait for each other.
    """

    def __init__(self, machine: Machine, bus: Bus, say: Callable[[str], None]) -> None:
        self._machine = machine
        self._bus = bus
        self._say = say
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
        # Functions that show no driver any more, but still have one for the kernel.
        self._leaving: dict[str, str] = {}
        with State(machine.state_file) as now:
            for gpu in bus.gpus:  # an earlier process ended while nvidia let go of one
                if now.presence(gpu.slot) is Presence.LEAVING:
                    sysfs.set_driver(machine.sys_root, gpu.pci, NVIDIA)
                    now.set_present(gpu.slot, present=True)

    def unbind(self, driver: str, text: str) -> None:
        """Take a function from a driver: the text is its address."""
        pci = text.removesuffix("\n")
        if self._driver_of(pci) != driver:
            raise _error(errno.ENODEV)
        with self._turns[pci], State(self._machine.state_file) as now:
            if self._driver_of(pci) != driver:
                raise _error(errno.ENODEV)
            boot = self._machine.boot_id
            faults = self._faults(now, f"{driver}:unbind", pci)
            _fail(faults)
            self._leaving[pci] = driver
            try:
                sysfs.set_driver(self._machine.sys_root, pci, None)
                gpu = self._bus.gpu(pci)
                if gpu is not None and driver == NVIDIA:
                    now.set_leaving(gpu.slot)
                self._take_time(faults, boot)
                self._wait_until_free(now, pci, boot)
                self._check_boot(boot)
                self._bus.leave(now, pci)
            finally:
                del self._leaving[pci]

    def bind(self, driver: str, text: str) -> None:
        """Give a function to a driver: the text is its address."""
        pci = text.removesuffix("\n")
        if not self._bus.is_taken_by(driver, pci):
            raise _error(errno.ENODEV)
        with self._turns[pci], State(self._machine.state_file) as now:
            if self._driver_of(pci) is not None:
                raise _error(errno.EBUSY)
            if driver == NVIDIA and not now.driver_loaded:
                raise _error(errno.ENODEV)
            boot = self._machine.boot_id
            faults = self._faults(now, f"{driver}:bind", pci)
            gpu = self._bus.gpu(pci)
            sysfs.set_driver(self._machine.sys_root, pci, driver)
            try:
                self._take_time(faults, boot)
                self._check_boot(boot)
                _fail(faults)
                if driver == NVIDIA and gpu is not None and now.lost(gpu.slot):
                    raise _error(errno.EPERM)  # nvidia's probe says -1, whatever is wrong
            except OSError:
                if self._machine.boot_id == boot:
                    sysfs.set_driver(self._machine.sys_root, pci, None)
                raise
            renumbered = self._faults(now, f"{driver}:minor", pci)
            self._bus.enter(now, pci, driver, minor=renumbered[0].code if renumbered else None)

    def _driver_of(self, pci: str) -> str | None:
        return self._leaving.get(pci) or sysfs.driver_of(self._machine.sys_root, pci)

    def _wait_until_free(self, now: State, pci: str, boot: str) -> None:
        says = f"{pci}: is in use, which its driver waits out"
        while self._is_held(now, pci):
            if says:
                self._say(says)
            says = ""
            time.sleep(_LOOK_S)
            self._check_boot(boot)

    def _is_held(self, now: State, pci: str) -> bool:
        gpu = self._bus.gpu(pci)
        if gpu is not None and self._leaving[pci] == NVIDIA:
            if any(holder.slot == gpu.slot for holder in mig.holders(now)):
                return True
            try:
                mig.check_unused(self._machine.library, now, gpu.slot)
            except SetupError:
                return True
        return is_open(self._bus.nodes_of(now, pci))

    def _faults(self, now: State, function: str, pci: str) -> list[FaultRecord]:
        """Use up one use of each fault that strikes."""
        gpu = self._bus.gpu(pci)
        slots = {ANY_GPU, gpu.slot if gpu else ANY_GPU}
        striking = []
        with now.locked() as record:
            for fault in record.faults:
                name = bytes(fault.function).decode()
                if not fault.active or name != function or fault.slot not in slots:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.remaining != 0:
                    fault.remaining -= fault.remaining > 0
                    striking.append(fault)
        return striking

    def _take_time(self, faults: Iterable[FaultRecord], boot: str) -> None:
        """Wait as long as faults say, or until they are cleared."""
        for fault in faults:
            end = time.monotonic() + fault.delay_ms / 1000
            while fault.active and time.monotonic() < end:
                time.sleep(_LOOK_S)
                self._check_boot(boot)

    def _check_boot(self, boot: str) -> None:
        """Stop everything that was begun before a reboot."""
        if self._machine.boot_id != boot:
            raise _error(errno.EIO)


def is_open(nodes: Iterable[Path]) -> bool:
    """Tell whether a process of this host has a node open, in any container."""
    nodes = tuple(nodes)
    wanted, names = set(map(_identity, nodes)), {node.name for node in nodes}
    for process in Path("/proc").iterdir() if wanted else ():
        if not process.name.isdigit() or process.name == str(os.getpid()):
            continue
        with suppress(OSError):  # it has ended
            for file in (process / "fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    # The name first: it needs no look at a file system that may hang.
                    if file.readlink().name in names and _identity(file) in wanted:
                        return True
    return False


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _bus_of(machine: Machine) -> Bus:
    if machine.bus is None:
        raise SetupError(
            f"the machine {machine.driver_root} has no IOMMU, so that no driver gives a card to"
            " another; say `iommu: true` in its profile"
        )
    return machine.bus


def _links(bus: Bus) -> list[Path]:
    folder = bus.root / "sys/bus/pci/drivers"
    return [folder / driver / name for driver in sorted(bus.drivers) for name in ("bind", "unbind")]


def _name(link: Path) -> str:
    return f"{link.parent.name}:{link.name}"


def _acts(writes: Writes, links: Iterable[Path]) -> dict[str, Act]:
    does = {"bind": writes.bind, "unbind": writes.unbind}
    return {_name(link): partial(does[link.name], link.parent.name) for link in links}


def _fail(faults: Iterable[FaultRecord]) -> None:
    for fault in faults:
        if fault.code:
            raise _error(fault.code)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
