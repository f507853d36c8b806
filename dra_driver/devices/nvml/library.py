"""The NVML library: together with the other modules of this folder, the only adapter to pynvml.

Facts that a card does not have are None; every other refusal is a `DeviceError` with NVML's own
words and what to do. nvmlInit fixes which GPUs a process sees, so a change of hardware needs
`close` and `open`, which devices/session.py decides.

pynvml keeps one library per process in a module variable. It is set here, from an absolute path, so
that LD_LIBRARY_PATH does not matter. Only one `NvmlLibrary` can be open at a time. NVML may be
called from several threads; a call is given up on when its GPU hangs (calls.py).
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pynvml
from msgspec.structs import replace

from dra_driver.devices.driver_root import libraries, rooted
from dra_driver.devices.load import GpuLoad
from dra_driver.devices.model import Gpu, GpuUuid, MigFacts, MigMode, is_gpu_uuid
from dra_driver.devices.nvml.calls import NVML, OPEN_SECONDS, NvmlCalls
from dra_driver.devices.nvml.errors import NOT_TOLD, nvml_errors, optional
from dra_driver.devices.nvml.health import GpuEvents, read_vitals
from dra_driver.devices.nvml.load import memory_v2, read_load
from dra_driver.devices.nvml.memory_limits import FIRST_DRIVER, obstacle, read_limit, write_limit
from dra_driver.devices.nvml.mig import MigCalls, mig_mode
from dra_driver.devices.nvml.nvlink import NvLinkReader, read_fabric
from dra_driver.devices.pci import pci_address
from dra_driver.errors import DeviceError, SilenceError

T = TypeVar("T")

CLOSE_SECONDS = 10.0
"""How long calls under way have to end; if they do not, the library is not closed."""

_STEM = "libnvidia-ml"
LIBRARY = f"{_STEM}.so.1"

# As go-nvlib spells them, because these texts are attribute values that claims select by.
_BRANDS: Mapping[int | None, str] = MappingProxyType(
    {
        pynvml.NVML_BRAND_QUADRO: "Quadro",
        pynvml.NVML_BRAND_TESLA: "Tesla",
        pynvml.NVML_BRAND_NVS: "NVS",
        pynvml.NVML_BRAND_GRID: "Grid",
        pynvml.NVML_BRAND_GEFORCE: "GeForce",
        pynvml.NVML_BRAND_TITAN: "Titan",
        pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
        pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
        pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
        pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
        pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
        pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
        pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
        pynvml.NVML_BRAND_NVIDIA: "Nvidia",
        pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
        pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
    }
)
_ARCHITECTURES: Mapping[int | None, str] = MappingProxyType(
    {
        pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
        pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
        pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
        pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
        pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
        pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
        pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
        pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
        pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
        13: "Rubin",  # NVML_DEVICE_ARCH_RUBIN is missing in older pynvml
    }
)
_ADDRESSING_MODES: Mapping[int | None, str] = MappingProxyType({0: "None", 1: "HMM", 2: "ATS"})
_UNKNOWN = "Unknown"


def find_library(driver_root: Path, running: str | None = None) -> Path:
    """Return the path of the NVML library under a driver root, with its links followed.

    `running` is the version of the running GPU driver, if it is known. A library of another
    version, such as one left behind by an upgrade, is not used, because it would not work. Raises
    DeviceError if there is none, or the root cannot be read.
    """
    try:
        own = libraries.locate(driver_root, f"{_STEM}.so.{running}") if running else ()
        paths = own or libraries.locate(driver_root, LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"{driver_root} cannot be searched for {LIBRARY}: {error.strerror}"
            f" ({error.filename}); check the mount of the driver root"
        ) from error
    if not paths:
        raise DeviceError(
            f"{LIBRARY} not found under {driver_root} (looked in {libraries.SEARCHED});"
            " install the GPU driver, or point --nvidia-driver-root at where it is"
        )
    fitting = own or [path for path in paths if not running or libraries.version_of(path) is None]
    if not fitting:
        raise DeviceError(
            f"{_STEM}.so.{running} of the running GPU driver {running} is not under"
            f" {driver_root}, which has {paths[0]}; complete the driver's upgrade or reboot the"
            " node, or point --nvidia-driver-root at the libraries of the running driver"
        )
    return rooted.outside(driver_root, fitting[0])


class NvmlLibrary:
    """One NVML library of this process. Calls may come from any thread, and none waits forever.

    Methods that ask NVML raise DeviceError if it refuses or has no such GPU, and SilenceError if
    the GPU does not answer. GPUs are named by their position in NVML or by UUID.
    """

    def __init__(self, path: Path, calls: NvmlCalls | None = None) -> None:
        """Take the library's path, and what makes the calls; a process should have only one."""
        self.path = path
        self.mig = MigCalls(self)
        self._calls = calls or NvmlCalls(clock=time.monotonic)
        self._is_open = False
        self._index_of: dict[str, int] = {}
        self.events = GpuEvents(self._calls, lambda: dict(self._index_of))
        self._limitable: set[tuple[str, Path]] = set()
        self._nvlinks = NvLinkReader(self._calls)

    def open(self) -> None:
        """Load and initialise the library if it is closed; may be repeated after a SilenceError."""
        self._calls.about(NVML, self._open, OPEN_SECONDS)

    def _open(self) -> None:
        if self._is_open:
            return
        try:
            library = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise DeviceError(
                f"{self.path} cannot be loaded: {error};"
                " check that the driver is for this machine's architecture"
            ) from error
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (of the previous library)
        with nvml_errors():
            pynvml.nvmlInit()
        self.mig.forget()
        self._index_of.clear()
        self._limitable.clear()
        self._nvlinks.forget()
        self.events.forget()
        self._is_open = True

    def close(self) -> bool:
        """Shut the library down, if it is open; a failure is ignored.

        Returns False if calls are under way that do not end: then it stays open.
        """
        with self._calls.none_under_way(CLOSE_SECONDS) as is_quiet:
            if not is_quiet:
                return False
            try:
                self._calls.about(NVML, self._close, OPEN_SECONDS)
            except SilenceError:
                return False
        return True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.events.forget()
            # If this fails, the driver has gone already, and there is nothing left to release.
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def driver_version(self) -> str:
        """Return the version of the GPU driver, such as `535.261.03`."""
        return str(self._ask(NVML, pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int]:
        """Return the highest CUDA version the driver supports, as (major, minor)."""
        version = int(self._ask(NVML, pynvml.nvmlSystemGetCudaDriverVersion))
        return version // 1000, version % 1000 // 10

    def gpu_count(self) -> int:
        """Return how many GPUs NVML counts, lost ones included."""
        return int(self._ask(NVML, pynvml.nvmlDeviceGetCount))

    def gpu_facts(self, index: int) -> Gpu:
        """Return NVML's facts about the GPU at a position; those from /sys are not included.

        Raises DeviceError if NVML refuses a fact without which the GPU cannot be given out.
        """
        facts = self._ask(str(index), lambda: self._facts(index))
        wiring = self._nvlinks.wiring(
            index,
            facts.uuid,
            fabric=facts.fabric,
            in_mig_mode=facts.mig_mode is MigMode.ENABLED,
            handle=lambda: pynvml.nvmlDeviceGetHandleByIndex(index),
        )
        return replace(facts, nvlinks=wiring.links, fabric=wiring.fabric)

    def gpu_load(self, index: int, *, sampled: bool = True) -> GpuLoad:
        """Return who uses the GPU at a position and how much; how busy they are if `sampled`."""

        def load() -> GpuLoad:
            return read_load(pynvml.nvmlDeviceGetHandleByIndex(index), index, sampled=sampled)

        return self._ask(str(index), load)

    def _ask(self, subject: str, question: Callable[[], T]) -> T:
        def ask() -> T:
            with nvml_errors():
                return question()

        return self._calls.about(subject, ask)

    def ask_gpu(self, uuid: str, question: Callable[[object], T]) -> T:
        """Return the answer to a question about a GPU's handle."""
        return self._ask(self._subject(uuid), lambda: question(self.handle(uuid)))

    def _facts(self, index: int) -> Gpu:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle, absent=NOT_TOLD)
        persistence = optional(pynvml.nvmlDeviceGetPersistenceMode, handle)
        uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
        if not is_gpu_uuid(uuid):
            raise ValueError(f"{uuid!r} is not the UUID of a GPU")
        self._index_of[uuid] = index
        fabric = read_fabric(handle)
        architecture = optional(pynvml.nvmlDeviceGetArchitecture, handle)
        addressing = optional(pynvml.nvmlDeviceGetAddressingMode, handle)
        return Gpu(
            index=index,
            minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
            uuid=uuid,
            pci_address=pci_address(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            product_name=str(pynvml.nvmlDeviceGetName(handle)),
            brand=_BRANDS.get(optional(pynvml.nvmlDeviceGetBrand, handle), _UNKNOWN),
            architecture=_ARCHITECTURES.get(architecture, _UNKNOWN),
            cuda_compute_capability=(int(major), int(minor)),
            memory_bytes=None if memory is None else int(memory.total),
            memory_reserved_bytes=_reserved_bytes(handle),
            mig_mode=mig_mode(handle),
            addressing_mode=_ADDRESSING_MODES.get(addressing),
            is_persistent=None if persistence is None else bool(persistence),
            mig=self._mig(handle, uuid, architecture),
            fabric=fabric if fabric is not None and fabric.state else None,
            vitals=read_vitals(handle, fabric),
        )

    def _mig(self, handle: object, uuid: GpuUuid, architecture: int | None) -> MigFacts | None:
        modes = optional(pynvml.nvmlDeviceGetMigMode, handle)
        if modes is None:
            return None
        is_on, will_be_on = (mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in modes)
        instances, problem = self.mig.look(handle, uuid) if is_on else ((), None)
        return MigFacts(
            profiles=self.mig.profiles(handle, uuid),
            pending_mode=MigMode.ENABLED if will_be_on else MigMode.DISABLED,
            needs_reset=architecture is None or architecture < pynvml.NVML_DEVICE_ARCH_HOPPER,
            is_virtual=optional(pynvml.nvmlDeviceGetVirtualizationMode, handle)
            == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
            instances=instances,
            problem=problem,
        )

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's compute mode: 0 default, 2 prohibited, 3 exclusive process.

        None for a card that has no compute modes.
        """
        mode = self.ask_gpu(uuid, lambda gpu: optional(pynvml.nvmlDeviceGetComputeMode, gpu))
        return None if mode is None else int(mode)

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set a GPU's compute mode, until the driver is reloaded; needs root.

        Raises DeviceError if NVML refuses, as it always does for a GPU in MIG mode.
        """
        self.ask_gpu(uuid, lambda gpu: pynvml.nvmlDeviceSetComputeMode(gpu, mode))

    def memory_limit(self, uuid: str, group: Path) -> int | None:
        """Return the memory limit that holds for a control group on a GPU (`read_limit`)."""
        return self.ask_gpu(uuid, lambda gpu: read_limit(gpu, group))

    def set_memory_limit(self, uuid: str, group: Path, hard_bytes: int | None) -> None:
        """Set or clear a control group's memory limit on a GPU, in bytes (`write_limit`)."""

        def limit() -> None:
            with nvml_errors():
                write_limit(self.handle(uuid), group, hard_bytes)

        self.in_time(uuid, limit)

    def knows_memory_limits(self) -> bool:
        """Tell whether the driver is new enough for memory limits; if not, none is in force."""
        branch = self.driver_version().partition(".")[0]
        return not branch.isdecimal() or int(branch) >= FIRST_DRIVER

    def can_limit_memory(self, uuid: str, group: Path | None) -> str | None:
        """Return why control groups below `group` cannot be limited on a GPU; None if they can.

        `group` must not be the root; it is None without cgroup v2. A group that NVML has accepted
        once is not tried again while the library is open.
        """
        if not self.knows_memory_limits():
            return f"the GPU driver {self.driver_version()} is older than R{FIRST_DRIVER}"
        if group is None:
            return "the node has no control groups of cgroup v2, or this process does not see them"
        return self.ask_gpu(uuid, lambda gpu: self._limit_obstacle(gpu, uuid, group))

    def _limit_obstacle(self, handle: object, uuid: str, group: Path) -> str | None:
        if mig_mode(handle) is MigMode.ENABLED:
            return "the GPU is in MIG mode, in which the GPU driver limits no memory"
        if (uuid, group) in self._limitable:
            return None
        reason = obstacle(handle, group)
        if reason is None:
            self._limitable.add((uuid, group))
        return reason

    def in_time(self, uuid: str, call: Callable[[], T]) -> T:
        """Make a call that changes a GPU, with the full time limit even if another is silent."""
        return self._calls.about(self._subject(uuid), call, self._calls.answer_seconds)

    def _subject(self, uuid: str) -> str:
        """Return the subject of calls about a GPU: its index once that is known, as in looks."""
        return str(self._index_of.get(uuid, uuid))

    def handle(self, uuid: str) -> object:
        """Return a GPU's handle, by its index if known: by UUID, NVML may ask other GPUs first."""
        index = self._index_of.get(uuid)
        if index is None:
            return pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return pynvml.nvmlDeviceGetHandleByIndex(index)


def _reserved_bytes(handle: object) -> int:
    """Return how much of a GPU's memory the driver keeps for itself; 0 if NVML does not say.

    Version 1 of the call counts it as used, in a number that changes with every process.
    """
    memory = optional(memory_v2, handle, absent=NOT_TOLD)
    return 0 if memory is None else min(int(memory.reserved), int(memory.total))
