"""The GPU driver over time: NVML is opened once it is there, and reopened when hardware changes.

What NVML sees is fixed when it is initialised, so the kernel is asked first: /proc/driver/nvidia,
the names of the device nodes, and which GPUs are being taken from the driver. If that has changed
since the last look (a GPU added or removed, the driver reloaded), NVML is closed and opened again.
Otherwise it stays open, because opening it wakes GPUs without persistence mode, which takes seconds
each. It also stays open while it is lent for making or destroying MIG instances, and while a GPU
hangs in a call: that GPU is then sick, and the others still answer (nvml/calls.py). A GPU that
somebody has open cannot be reset. So while a GPU waits for the reset that changes its MIG mode,
NVML is closed after each look and opened when it is needed. If only others switch modes, the same
is done while a GPU waits for a mode that needs no reset.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dra_driver.devices.driver_root.modprobe import how_to_load
from dra_driver.devices.load import GpuLoad
from dra_driver.devices.mig.partitions import awaits_reset
from dra_driver.devices.model import Gpu, GpuEvent, GpuUuid, Inventory, MigMode, MigSlot, SickGpu
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.devices.nvml.mig import MigCalls
from dra_driver.devices.passthrough.bus import is_vfio
from dra_driver.devices.pci import numa_node, pci_order, pcie_root
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DeviceError, LostError, SilenceError, TransientError
from dra_driver.host.files import entries_of, text_of

T = TypeVar("T")

_MOST_LOOKS_WITHOUT_REOPENING = 16
_LONGEST_LOAN_SECONDS = 10.0

# The display part of a DGX Station; it cannot compute, and NVIDIA's tools leave it out too.
_DISPLAY_ONLY = ("DGX Display", "NVIDIA DGX Display")


def discover(nvml: NvmlLibrary, sys_root: Path) -> Inventory:
    """Return the inventory of all GPUs, from NVML's facts and those of /sys.

    A GPU that cannot be described does not hide the others. GPUs are in order of PCI address, so
    that equal machines give equal inventories. Raises DeviceError if the driver as a whole cannot
    be asked.
    """
    gpus: list[Gpu] = []
    sick: list[SickGpu] = []
    for index in range(nvml.gpu_count()):
        try:
            gpu = nvml.gpu_facts(index)
        except DeviceError as error:
            sick.append(
                SickGpu(
                    index=index,
                    reason=str(error),
                    is_silent=isinstance(error, SilenceError),
                    is_lost=isinstance(error, LostError),
                )
            )
        else:
            if gpu.product_name not in _DISPLAY_ONLY:
                place = sys_root, gpu.pci_address
                gpu = replace(gpu, pcie_root=pcie_root(*place), numa_node=numa_node(*place))
                gpus.append(gpu)
    return Inventory(
        driver_version=nvml.driver_version(),
        cuda_version=nvml.cuda_version(),
        gpus=tuple(sorted(gpus, key=lambda gpu: pci_order(gpu.pci_address))),
        sick=tuple(sick),
    )


def _owned(gpu: Gpu, made_here: AbstractSet[MigSlot], turned_on: AbstractSet[GpuUuid]) -> Gpu:
    """Return a GPU on which the instances and the MIG mode made by this driver are marked."""
    if gpu.mig is None or gpu.mig_mode is not MigMode.ENABLED:
        return gpu
    instances = tuple(
        replace(instance, made_here=instance.slot in made_here) for instance in gpu.mig.instances
    )
    mig = replace(gpu.mig, instances=instances, turned_on_here=gpu.uuid in turned_on)
    return replace(gpu, mig=mig)


class DriverSession:
    """Looks at the machine again and again. For any thread; looks take turns.

    Methods that ask NVML raise DeviceError if it refuses or the GPU does not answer, and
    TransientError while it is not open.
    """

    def __init__(  # noqa: PLR0913 (all that a look depends on)
        self,
        *,
        driver_root: Path,
        dev: Path,
        proc_root: Path,
        sys_root: Path,
        made_here: Callable[[], AbstractSet[MigSlot]] = frozenset,
        turned_on: Callable[[], AbstractSet[GpuUuid]] = frozenset,
        leave_out: Callable[[Inventory], Inventory] = lambda inventory: inventory,
        calls: NvmlCalls | None = None,
        lets_go: Callable[[Gpu], bool] = awaits_reset,
        with_passthrough: Callable[[Inventory], Inventory] = lambda inventory: inventory,
    ) -> None:
        """Take where to look; nothing is opened yet.

        Paths are as this process sees them. `made_here` says where this driver has made MIG devices
        for claims, from before the first call that makes a device until after the last call that
        destroys it. `turned_on` likewise says which GPUs' MIG mode it has turned on.
        `leave_out` takes the excluded GPUs out of an inventory. `lets_go` tells whether a GPU waits
        for everybody to close it, including this process. `with_passthrough` adds the GPUs that
        virtual machines can have.
        """
        self._driver_root = driver_root
        self._dev = dev
        self._proc_root = proc_root
        self._proc = proc_root / "driver" / "nvidia"
        self._sys_root = sys_root
        self._calls = calls or NvmlCalls(clock=time.monotonic)
        self._opening: NvmlLibrary | None = None
        self._lets_go = lets_go
        self._with_passthrough = with_passthrough
        self._looking = threading.Lock()
        self._made_here = made_here
        self._turned_on = turned_on
        self._leave_out = leave_out
        self._library: NvmlLibrary | None = None
        self._resting: NvmlLibrary | None = None  # closed, and opened again when it is needed
        self._lent = threading.Condition()
        self._borrowers = 0
        self._seen: tuple[object, ...] = ()
        self._looks_while_sick = 0

    def look(self) -> Inventory:
        """Look at all GPUs.

        Raises DeviceError if the driver is missing or does not answer; the next look tries again.
        """
        with self._looking:
            present = self._present()
            if (present != self._seen or self._is_time_to_reopen()) and self.close():
                self._seen = present
            # Asked before and after the look, to include what is made or destroyed during it.
            slots, turned_on = set(self._made_here()), set(self._turned_on())
            inventory = self._seen_by_nvml()
            slots |= self._made_here()
            turned_on |= self._turned_on()
            gpus = tuple(_owned(gpu, slots, turned_on) for gpu in inventory.gpus)
            inventory = self._with_passthrough(replace(inventory, gpus=gpus))
            inventory = self._leave_out(inventory)
            self._looks_while_sick = self._looks_while_sick + 1 if inventory.sick else 0
            if any(self._lets_go(gpu) for gpu in inventory.gpus):
                self.rest()
            return inventory

    def _seen_by_nvml(self) -> Inventory:
        """Return what NVML sees: nothing if no driver is loaded and VFIO drivers have all GPUs."""
        try:
            return self._look()
        except DeviceError:
            nothing = Inventory(driver_version=None, cuda_version=None)
            cards = self._with_passthrough(nothing).passthrough
            are_away = bool(cards) and all(is_vfio(card.driver) for card in cards)
            # If a GPU is left for the driver, it is being loaded, as in an upgrade.
            if running_driver(self._proc_root) is not None or not are_away:
                raise
            return nothing

    @contextmanager
    def mig(self) -> Iterator[MigCalls]:
        """Lend the MIG calls of the open library, which stays open meanwhile."""
        with self._lent:
            library = self._opened()
            if library is None:
                raise TransientError("the GPU driver is not open now; this is retried")
            self._borrowers += 1
        try:
            yield library.mig
        finally:
            with self._lent:
                self._borrowers -= 1
                self._lent.notify_all()

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's compute mode (`NvmlLibrary.compute_mode`)."""
        return self._ask(lambda library: library.compute_mode(uuid))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's compute mode; it lasts until the driver is reloaded."""
        self._ask(lambda library: library.set_compute_mode(uuid, mode))

    def memory_limit(self, uuid: str, cgroup: Path) -> int | None:
        """Return a control group's memory limit on a GPU, or that of the nearest group above."""
        return self._ask(lambda library: library.memory_limit(uuid, cgroup))

    def set_memory_limit(self, uuid: str, cgroup: Path, hard_bytes: int | None) -> None:
        """Limit a control group's GPU memory in bytes; it is read back."""
        self._ask(lambda library: library.set_memory_limit(uuid, cgroup, hard_bytes))

    def knows_memory_limits(self) -> bool:
        """Tell whether the driver is new enough for memory limits; if not, none is in force."""
        return self._ask(lambda library: library.knows_memory_limits())

    def can_limit_memory(self, uuid: str, cgroup: Path | None) -> str | None:
        """Return why control groups below one cannot be limited on a GPU; None if they can."""
        return self._ask(lambda library: library.can_limit_memory(uuid, cgroup))

    def next_event(self, seconds: float) -> GpuEvent | None:
        """Return the next event (`GpuEvents.wait`). For one thread. Does not open NVML."""
        return self._if_open().events.wait(seconds)

    def gpu_count(self) -> int:
        """Return how many GPUs NVML counts. Does not open NVML."""
        return self._if_open().gpu_count()

    def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
        """Return who uses the GPU at a position. Does not open NVML."""
        return self._if_open().gpu_load(index, sampled=sampled)

    def _if_open(self) -> NvmlLibrary:
        library = self._library
        if library is None:
            raise TransientError("the GPU driver is not open now")
        return library

    def close(self) -> bool:
        """Close NVML until the next look. Returns False if it is lent or hangs for too long."""
        with self._lent:
            if not self._lent.wait_for(lambda: not self._borrowers, _LONGEST_LOAN_SECONDS):
                return False
            library, self._library, self._resting = self._library, None, None
        if library is None or library.close():
            return True
        # A call hangs, so the library is still open.
        self._library = library
        return False

    def silences(self) -> Mapping[str, float]:
        """Return for how many seconds each GPU (by index) and NVML have been silent; 0 if not."""
        return self._calls.silences()

    def _ask(self, question: Callable[[NvmlLibrary], T]) -> T:
        library = self._library or self._opened()
        try:
            if library is not None:
                return question(library)
        except DeviceError:
            if library is self._library:
                raise
        raise TransientError("the GPU driver is being reopened; this is retried")

    def rest(self) -> None:
        """Close NVML until somebody needs it, unless it is lent or hangs."""
        with self._lent:
            if self._library is None or self._borrowers:
                return
            # Removed before it is closed, so that callers are told to try again meanwhile.
            library, self._library = self._library, None
            if library.close():
                self._resting = library
            else:
                self._library = library

    def _opened(self) -> NvmlLibrary | None:
        """Return the library, open; None if there is none, or a resting one cannot be opened."""
        with self._lent:
            if self._library is None and self._resting is not None:
                try:
                    self._resting.open()
                except DeviceError:
                    return None
                self._library, self._resting = self._resting, None
                self._opening = None
            return self._library

    def _look(self) -> Inventory:
        if (open_library := self._opened()) is not None:
            try:
                return discover(open_library, self._sys_root)
            except DeviceError:
                # The library may be stale, for example after a reload of the driver: open it again.
                if not self.close():
                    raise
        library = self._opening or self._resting
        if library is None:
            path = find_library(self._driver_root, running_driver(self._proc_root))
            library = NvmlLibrary(path, self._calls)
        self._opening = library
        try:
            library.open()
        except SilenceError:
            raise  # it may still open, and no other can be opened until then
        except DeviceError as error:
            self._opening = self._resting = None
            if running_driver(self._proc_root) is None or (self._dev / "nvidiactl").exists():
                raise
            raise DeviceError(
                f"{self._dev} has no device nodes of the GPU driver: {how_to_load(self._proc_root)}"
            ) from error
        with self._lent:
            self._opening = self._resting = None
            self._library = library
        try:
            return discover(library, self._sys_root)
        except DeviceError:
            self.close()
            raise

    def _is_time_to_reopen(self) -> bool:
        """Tell whether to reopen NVML because a sick GPU may have recovered: ever more rarely."""
        looks = self._looks_while_sick
        return looks > 0 and (looks.bit_count() == 1 or looks % _MOST_LOOKS_WITHOUT_REOPENING == 0)

    def _present(self) -> tuple[object, ...]:
        version = text_of(self._proc / "version")
        names = sorted(entries_of(self._dev))
        nodes = tuple(name for name in names if name.removeprefix("nvidia").isdecimal())
        gpus = tuple(sorted(entries_of(self._proc / "gpus")))
        # The link to the driver disappears first. Then the kernel lets nobody else open the GPU and
        # waits for everybody who has it open, such as NVML here (nv_pci_remove_helper).
        functions = self._sys_root / "bus" / "pci" / "devices"
        leaving = tuple(name for name in gpus if not (functions / name / "driver").is_symlink())
        return version, gpus, leaving, nodes
