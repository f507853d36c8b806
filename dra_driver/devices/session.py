"""The driver over time: opened when it is there, opened anew when the hardware has changed.

In: the roots. Out: an `Inventory` at each look. What NVML sees is fixed at its initialisation, so
the kernel's own word is read first: /proc/driver/nvidia and the names of the device nodes. If that
differs from last time (a GPU added or removed, the driver reloaded), NVML is closed and opened.
Opening is avoided otherwise: it wakes GPUs without persistence mode, which takes seconds each.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dra_driver.devices.discovery import discover
from dra_driver.devices.model import Inventory
from dra_driver.devices.nvml import NvmlLibrary, find_library
from dra_driver.devices.pci import PciBus
from dra_driver.errors import DeviceError, TransientError

T = TypeVar("T")

_MOST_LOOKS_WITHOUT_REOPENING = 16


class DriverSession:
    """Looks at the machine again and again, on one thread; compute modes are for any."""

    def __init__(
        self,
        *,
        driver_root: Path,
        dev: Path,
        proc_root: Path,
        sys_root: Path,
        open_library: Callable[[Path], NvmlLibrary] = NvmlLibrary,
    ) -> None:
        """Take where to look; nothing is opened yet.

        Args:
            driver_root: the driver root as this process sees it.
            dev: the folder with the device nodes, usually /dev.
            proc_root: the folder that is mounted as /proc.
            sys_root: the folder that is mounted as /sys.
            open_library: makes the door to NVML from the library's path.
        """
        self._driver_root = driver_root
        self._dev = dev
        self._proc = proc_root / "driver" / "nvidia"
        self._pci = PciBus(sys_root)
        self._open_library = open_library
        self._library: NvmlLibrary | None = None
        self._seen: tuple[object, ...] = ()
        self._looks_while_sick = 0

    def look(self) -> Inventory:
        """Look at all GPUs.

        Raises:
            DeviceError: the driver is missing or does not answer; the next look tries again.
        """
        present = self._present()
        if present != self._seen or self._is_time_to_reopen():
            self.close()
        self._seen = present
        inventory = self._look()
        self._looks_while_sick = self._looks_while_sick + 1 if inventory.sick else 0
        return inventory

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's compute mode: 0 default, 2 prohibited, 3 exclusive process; None: none.

        For any thread.

        Raises:
            DeviceError: NVML refuses.
            TransientError: NVML is not open at this moment.
        """
        return self._ask(lambda library: library.compute_mode(uuid))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's compute mode; it lasts until the driver is reloaded. For any thread.

        Raises:
            DeviceError: NVML refuses.
            TransientError: NVML is not open at this moment.
        """
        self._ask(lambda library: library.set_compute_mode(uuid, mode))

    def close(self) -> None:
        """Close NVML; the next look opens it again."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _ask(self, question: Callable[[NvmlLibrary], T]) -> T:
        library = self._library
        try:
            if library is not None:
                return question(library)
        except DeviceError:
            if library is self._library:
                raise
        raise TransientError("the NVIDIA driver is being opened anew; this is tried again")

    def _look(self) -> Inventory:
        if self._library is not None:
            try:
                return discover(self._library, self._pci)
            except DeviceError:
                # The library may be stale, after a reload of the driver for one. Start afresh.
                self.close()
        library = self._open_library(find_library(self._driver_root))
        library.open()
        self._library = library
        try:
            return discover(library, self._pci)
        except DeviceError:
            self.close()
            raise

    def _is_time_to_reopen(self) -> bool:
        """Tell whether a sick GPU may be seen well by a fresh NVML: ever more rarely."""
        looks = self._looks_while_sick
        return looks > 0 and (looks.bit_count() == 1 or looks % _MOST_LOOKS_WITHOUT_REOPENING == 0)

    def _present(self) -> tuple[object, ...]:
        try:
            version = (self._proc / "version").read_text()
        except OSError:
            version = ""
        nodes = [name for name in _names(self._dev) if name.removeprefix("nvidia").isdecimal()]
        return version, _names(self._proc / "gpus"), tuple(nodes)


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return ()
