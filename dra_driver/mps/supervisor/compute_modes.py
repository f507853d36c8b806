"""Sets the compute mode EXCLUSIVE_PROCESS on GPUs while an MPS domain uses them.

Then only one process, the MPS server, can use a GPU. A program that does not find its daemon fails
instead of running beside the others without limits. The mode from before the first domain is
restored after the last one (else it stays: dra-driver-nvidia-gpu#1262). Modes do not survive a
reload of the GPU driver. NVML is open only while modes are read or set: while a process has it
open, the GPUs that it sees cannot change their MIG mode or be reset (dra-driver-nvidia-gpu#907).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DeviceError
from dra_driver.mps.domain import DomainId

T = TypeVar("T")

DEFAULT, EXCLUSIVE_PROCESS = 0, 3

log = structlog.get_logger()


class NvmlModes:
    """Reads and sets compute modes, by NVML's numbers.

    NVML is open from the first call to `close` or a failure. All but `close` raise DeviceError.
    """

    def __init__(self, driver_root: Path, proc_root: Path) -> None:
        self._root = driver_root
        self._proc = proc_root
        self._library: NvmlLibrary | None = None

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's mode; None if the card has none."""
        return self._call(lambda library: library.compute_mode(uuid))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's mode."""
        self._call(lambda library: library.set_compute_mode(uuid, mode))

    def close(self) -> None:
        """Close NVML."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _call(self, call: Callable[[NvmlLibrary], T]) -> T:
        if self._library is None:
            library = NvmlLibrary(find_library(self._root, running_driver(self._proc)))
            library.open()
            self._library = library
        try:
            return call(self._library)
        except DeviceError:
            self.close()  # the GPU driver may have been replaced
            raise


class ComputeModes:
    """Knows which domains use a GPU, and its mode from before. Safe for several threads."""

    def __init__(self, nvml: NvmlModes, *, change: bool = True) -> None:
        """Take the access to NVML. Without `change`, modes are restored but never set."""
        self._nvml = nvml
        self._change = change
        self._lock = threading.Lock()
        self._holders: dict[str, dict[DomainId, int]] = {}
        self._users = 0

    @contextmanager
    def using(self) -> Iterator[None]:
        """Keep NVML open between several calls. The first call that needs it opens it.

        Opening wakes each GPU without persistence mode, which takes seconds.
        """
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._nvml.close()

    def remember(self, domain: DomainId, modes: Mapping[str, int]) -> None:
        """Note the modes that an earlier supervisor found; called before any domain is handled."""
        with self._lock:
            for uuid, mode in modes.items():
                self._holders.setdefault(uuid, {})[domain] = mode

    def acquire(self, domain: DomainId, uuid: str) -> int | None:
        """Note that the domain uses the GPU, and return its mode without MPS; None if it has none.

        If modes are not to be changed, it notes nothing and returns None.
        """
        if not self._change:
            return None
        with self.using(), self._lock:
            holders = self._holders.get(uuid, {})
            mode = next(iter(holders.values()), None)
            if mode is None:
                mode = self._nvml.compute_mode(uuid)
            if mode is not None:
                self._holders.setdefault(uuid, {}).setdefault(domain, mode)
            return mode

    def set_exclusive(self, uuid: str) -> None:
        """Let only one process use the GPU. Can be repeated."""
        if not self._change:
            return
        with self.using(), self._lock:
            if self._nvml.compute_mode(uuid) != EXCLUSIVE_PROCESS:
                self._nvml.set_compute_mode(uuid, EXCLUSIVE_PROCESS)
                log.info("compute mode set", gpu=uuid, mode="EXCLUSIVE_PROCESS")

    def release(self, domain: DomainId, uuid: str) -> None:
        """Note that the domain no longer uses the GPU; after the last one, restore its mode.

        A mode that something else has set meanwhile stays. If NVML refuses, the domain still counts
        as a user of the GPU.
        """
        with self.using(), self._lock:
            holders = self._holders.get(uuid, {})
            if domain in holders and len(holders) == 1:
                mode = holders[domain]
                if mode != self._nvml.compute_mode(uuid) == EXCLUSIVE_PROCESS:
                    self._nvml.set_compute_mode(uuid, mode)
                    log.info("compute mode restored", gpu=uuid, mode=mode)
            holders.pop(domain, None)
            if not holders:
                self._holders.pop(uuid, None)
