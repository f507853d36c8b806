"""The state file of a simulated machine, read and written from Python.

In: a path, and what a caller wants changed. Out: the bytes that the C library has mapped in every
process, so running drivers, nvidia-smi and containers see a change at once.

Writers hold an exclusive flock on the file and never replace it: containers have this inode
bind-mounted. Event waiters sleep on a futex, which every event and every loss wakes.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from dra_driver.errors import SetupError, StateError
from dra_driver.simulator import build, health, layout
from dra_driver.simulator.layout import (
    NOT_A_MIG_INSTANCE,
    Engine,
    Fact,
    Kill,
    LinkEnd,
    MemoryBackend,
    Text,
)
from dra_driver.simulator.processes import occupy, vacate
from dra_driver.simulator.profile import MigProfile, Process

FILE_PREFIX = "libnvidia-simulator.so."
FOR_EVER = -1
ANY_GPU = -1
EVENT_XID = 0x8

_SIZE = ctypes.sizeof(layout.StateRecord)
_FUTEX_WAKE = 1
_FUTEX_CALL = {"x86_64": 202, "aarch64": 98}
_EVERYONE = 2**31 - 1
_GRAPHICS = 2
"""NVML's bit for a MIG profile's capability to draw."""


class Fault(Struct, frozen=True, kw_only=True):
    """An injected fault.

    Attributes:
        function: NVML function name as exported, or "*" for all.
        slot: the GPU's slot, or ANY_GPU.
        code: NVML return code; 0 only delays.
        skip: how many calls succeed before.
        times: how often it strikes, or FOR_EVER.
        delay_ms: milliseconds to sleep before the return.
        kill: whether the calling process is killed, before or after the call has its effect.
    """

    function: str = "*"
    slot: int = ANY_GPU
    code: int = 0
    skip: int = 0
    times: int = FOR_EVER
    delay_ms: int = 0
    kill: Kill = Kill.NEVER


class LinkTo(Struct, frozen=True, kw_only=True):
    """One NVLink: `remote_device` is NVML's type of the device at its end, at address `remote`."""

    to: LinkEnd = LinkEnd.NOTHING
    version: int
    remote: str = ""
    remote_device: int = 0


class GpuFacts(Struct, frozen=True, kw_only=True):
    """Everything in the state about one GPU. Facts that are not given are absent."""

    facts: dict[Fact, int]
    texts: dict[Text, str]
    links: Sequence[LinkTo] = ()
    mig: Sequence[MigProfile] = ()
    residents: Sequence[Process] = ()
    fabric_cluster: bytes = bytes(16)


class Driver(Struct, frozen=True, kw_only=True):
    """Versions that the driver reports, and where and how it makes files.

    `cuda_version` is 1000 * major + 10 * minor, `library_folder` relative to the driver root.
    `caps_major` and `device_nodes` say how nodes of MIG capabilities are made, `memory_backend`
    what enforces memory limits of the control groups below `cgroup_root`, and `mig_change_ms` how
    long it takes to make or destroy an instance.
    """

    version: str
    cuda_version: int
    library_folder: str
    caps_major: int = 0
    device_nodes: bool = False
    memory_backend: MemoryBackend = MemoryBackend.OFF
    mig_change_ms: int = 0
    cgroup_root: str = ""


def create(path: Path, driver: Driver, gpus: Sequence[GpuFacts]) -> None:
    """Write a new state file with a loaded driver and all `gpus` present.

    Raises SetupError if there are more GPUs than the layout has slots, or a text is too long.
    """
    if len(gpus) > layout.MAX_GPUS:
        raise SetupError(
            f"the machine has {len(gpus)} GPUs; the simulator holds at most {layout.MAX_GPUS}"
        )
    record = layout.StateRecord()
    record.magic = layout.MAGIC
    record.layout_version = layout.LAYOUT_VERSION
    record.size = _SIZE
    record.gpu_count = len(gpus)
    record.driver_loaded = 1
    record.cuda_driver_version = driver.cuda_version
    record.driver_version = _field(driver.version, layout.VERSION_SIZE)
    # NVML's own version is the CUDA major version in front of the driver's.
    record.nvml_version = _field(
        f"{driver.cuda_version // 1000}.{driver.version}", layout.VERSION_SIZE
    )
    record.library_folder = _field(driver.library_folder, layout.PATH_SIZE)
    record.caps_major = driver.caps_major
    record.device_nodes = int(driver.device_nodes)
    record.memory_backend = driver.memory_backend
    record.mig_change_ms = driver.mig_change_ms
    record.cgroup_root = _field(driver.cgroup_root, layout.PATH_SIZE)
    record.pid_namespace = Path("/proc/self/ns/pid").stat().st_ino
    for slot, gpu in enumerate(gpus):
        _fill(record.gpus[slot], gpu)
        occupy(record, slot, gpu.residents)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(build.library_page("libnvidia-simulator.so.1") + bytes(record))
    temporary.chmod(0o644)  # its writers may change settings, as root may on a real node
    temporary.rename(path)


def find(folder: Path) -> Path:
    """Return the state file in a driver's library folder. Raises SetupError if there is none."""
    files = [path for path in folder.glob(f"{FILE_PREFIX}*") if not path.is_symlink()]
    if not files:
        raise SetupError(f"no simulated machine in {folder}: no file {FILE_PREFIX}*")
    return max(files, key=lambda path: len(path.name))


def _field(text: str, size: int) -> bytes:
    data = text.encode()
    if len(data) >= size:
        raise SetupError(f"the text {text!r} is too long: {len(data)} bytes, at most {size - 1}")
    return data


def _fill(record: layout.GpuRecord, gpu: GpuFacts) -> None:
    record.present = 1
    for fact in Fact:
        record.facts[fact] = gpu.facts.get(fact, layout.ABSENT)
    for text, value in gpu.texts.items():
        record.texts[text].value = _field(value, layout.TEXT_SIZE)
    record.fabric_cluster[:] = gpu.fabric_cluster
    for number, link in enumerate(gpu.links):
        place = record.links[number]
        place.present, place.active = 1, int(link.to is not LinkEnd.NOTHING)
        place.kind = link.to
        place.version = link.version
        place.remote_device_id = link.remote_device
        place.remote_bus_id = link.remote.encode()
    record.mig_profile_count = len(gpu.mig)
    for number, profile in enumerate(gpu.mig):
        _fill_profile(record.mig_profiles[number], profile)


def _fill_profile(record: layout.MigProfileRecord, profile: MigProfile) -> None:
    for name in ("id", "index", "slices", "instances", "size", "memory_mib"):
        setattr(record, name, getattr(profile, name))
    record.starts = sum(1 << start for start in profile.starts)
    record.capabilities = _GRAPHICS if profile.graphics else 0
    record.name = _field(profile.name, layout.MIG_NAME_SIZE)
    for engine in Engine:
        record.engines[engine] = getattr(profile, engine.name.lower())


class State:
    """An open state file. Use as a context manager; reads and writes go to the shared mapping.

    Raises StateError if the file is missing, short, or of another layout.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as cause:
            raise StateError(
                f"cannot open the simulated machine's state {path}: {cause.strerror}"
            ) from cause
        try:
            # The record keeps the mapping alive, which is unmapped with the last reference.
            self._record = layout.StateRecord.from_buffer(
                mmap.mmap(file, _SIZE, offset=layout.STATE_OFFSET)
            )
        except ValueError as cause:
            raise StateError(f"the state file {path} is too short for a machine") from cause
        finally:
            os.close(file)
        if self._record.magic != layout.MAGIC or (
            (self._record.layout_version, self._record.size) != (layout.LAYOUT_VERSION, _SIZE)
        ):
            version = self._record.layout_version
            raise StateError(
                f"{path} is not a machine of this simulator (layout {version}, this one has "
                f"{layout.LAYOUT_VERSION}); make it again with `simulate down` and `simulate up`"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        if hasattr(self, "_record"):
            del self._record

    # Reading

    @property
    def driver_version(self) -> str:
        """The driver's version, for instance 535.261.03."""
        return bytes(self._record.driver_version).decode()

    @property
    def driver_loaded(self) -> bool:
        """Whether nvmlInit finds a driver."""
        return bool(self._record.driver_loaded)

    @property
    def cgroup_root(self) -> str:
        """The root folder of the control groups; empty for the mount of cgroup2."""
        return bytes(self._record.cgroup_root).decode()

    @property
    def late_files_ms(self) -> int:
        """The delay in milliseconds until a MIG instance's files appear."""
        return int(self._record.late_files_ms)

    @property
    def slots(self) -> range:
        """The slots of the machine, empty ones included."""
        return range(self._record.gpu_count)

    def slot_of(self, uuid: str) -> int:
        """Return the slot of the GPU with that UUID.

        Raises SetupError if no GPU of this machine has it.
        """
        for slot in self.slots:
            if self.text(slot, Text.UUID).lower() == uuid.lower():
                return slot
        known = ", ".join(self.text(slot, Text.UUID) for slot in self.slots)
        raise SetupError(f"no simulated GPU has the UUID {uuid!r}; there are {known}")

    def fact(self, slot: int, fact: Fact) -> int | None:
        """Return a number of a GPU, None when the card does not have it."""
        value = int(self._record.gpus[slot].facts[fact])
        return None if value == layout.ABSENT else value

    def text(self, slot: int, text: Text) -> str:
        """Return a text of a GPU, empty when the card does not have it."""
        return bytes(self._record.gpus[slot].texts[text].value).decode()

    def present(self, slot: int) -> bool:
        """Whether the card is in the machine."""
        return bool(self._record.gpus[slot].present)

    def lost(self, slot: int) -> bool:
        """Whether the card has fallen off the bus."""
        return bool(self._record.gpus[slot].lost)

    def faults(self) -> list[Fault]:
        """Return the faults that are still active."""
        return [
            Fault(
                function=bytes(record.function).decode(),
                slot=record.slot,
                code=record.code,
                skip=record.skip,
                times=record.remaining,
                delay_ms=record.delay_ms,
                kill=Kill(record.kill),
            )
            for record in self._record.faults
            if record.active and record.remaining != 0
        ]

    # Writing

    @contextlib.contextmanager
    def locked(self) -> Iterator[layout.StateRecord]:
        """Hold the writers' lock and yield the raw record."""
        # A separate descriptor, because flock belongs to the open file, which threads would share.
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._record
        finally:
            os.close(file)

    def set_fact(self, slot: int, fact: Fact, value: int | None) -> None:
        """Set a number of a GPU; None removes the fact."""
        with self.locked() as record:
            record.gpus[slot].facts[fact] = layout.ABSENT if value is None else value

    def set_present(self, slot: int, present: bool) -> None:
        """Insert or remove a card."""
        with self.locked() as record:
            record.gpus[slot].present = int(present)
            self._wake(record)

    def set_lost(self, slot: int, lost: bool) -> None:
        """Let a card fall off the bus, or bring it back."""
        with self.locked() as record:
            record.gpus[slot].lost = int(lost)
            self._wake(record)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Load or unload the driver, as nvmlInit sees it."""
        with self.locked() as record:
            record.driver_loaded = int(loaded)

    def set_late_files(self, milliseconds: int) -> None:
        """Set the delay of a MIG instance's files."""
        with self.locked() as record:
            record.late_files_ms = milliseconds

    def add_fault(self, fault: Fault) -> None:
        """Inject a fault.

        Raises SetupError if all places for faults are taken, or the function's name is too long.
        """
        function = _field(fault.function, 64)
        with self.locked() as record:
            for place in record.faults:
                if place.active and place.remaining != 0:
                    continue
                place.active = 0
                place.function = function
                place.slot = fault.slot
                place.code = fault.code
                place.remaining = fault.times
                place.skip = fault.skip
                place.delay_ms = fault.delay_ms
                place.kill = fault.kill
                place.active = 1
                return
        raise SetupError(
            f"all {layout.MAX_FAULTS} places for faults are taken; clear some with "
            "`simulate fault clear`"
        )

    def clear_faults(self, function: str | None = None) -> None:
        """Remove the faults of one function, or all."""
        with self.locked() as record:
            for place in record.faults:
                if function is None or bytes(place.function).decode() == function:
                    place.active = 0

    def emit_event(
        self,
        slot: int,
        *,
        event_type: int,
        data: int,
        gpu_instance: int = NOT_A_MIG_INSTANCE,
        compute_instance: int = NOT_A_MIG_INSTANCE,
    ) -> None:
        """Append an event and wake all waiters."""
        with self.locked() as record:
            number = record.next_event
            event = record.events[number % layout.MAX_EVENTS]
            event.sequence = number
            event.type = event_type
            event.data = data
            event.slot = slot
            event.gpu_instance = gpu_instance
            event.compute_instance = compute_instance
            record.next_event = number + 1
            self._wake(record)

    def reset_gpu(self, slot: int) -> None:
        """Remove what a reset of one GPU ends: instances, processes, volatile modes.

        A pending MIG mode becomes the current one.
        """
        with self.locked() as record:
            gpu = record.gpus[slot]
            gpu.lost = 0
            health.reset(gpu)
            health.retrain(record, slot)
            for fact in (Fact.COMPUTE_MODE, Fact.TIME_SLICE):
                if gpu.facts[fact] != layout.ABSENT:
                    gpu.facts[fact] = 0
            clear_mig(record, slot)
            self._wake(record)

    def forget_mig(self) -> None:
        """Remove the MIG instances and modes that do not survive a reload of the driver."""
        with self.locked() as record:
            for slot in range(record.gpu_count):
                clear_mig(record, slot, is_reload=True)

    def reset_volatile(self) -> None:
        """Remove what does not survive a reboot: volatile modes, losses, faults and events."""
        with self.locked() as record:
            for slot in range(record.gpu_count):
                gpu = record.gpus[slot]
                gpu.lost = 0
                health.boot(gpu)
                health.retrain(record, slot)
                for fact in (Fact.COMPUTE_MODE, Fact.TIME_SLICE, Fact.PERSISTENCE_MODE):
                    if gpu.facts[fact] != layout.ABSENT:
                        gpu.facts[fact] = 0
                clear_mig(record, slot, is_reload=True)
                gpu.facts[Fact.ECC_CURRENT] = gpu.facts[Fact.ECC_PENDING]
            for place in record.faults:
                place.active = 0
            record.driver_loaded = 1
            self._wake(record)

    def _wake(self, record: layout.StateRecord) -> None:
        record.change = (record.change + 1) % 2**32
        number = _FUTEX_CALL.get(platform.machine())
        if number is None:
            return  # waiters look again every second
        address = ctypes.addressof(record) + layout.StateRecord.change.offset
        ctypes.CDLL(None, use_errno=True).syscall(
            ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(_EVERYONE), None, None, ctypes.c_int(0),
        )  # fmt: skip


def clear_mig(record: layout.StateRecord, slot: int, *, is_reload: bool = False) -> None:
    """End a GPU's instances and the processes on it, and make a pending MIG mode the current one.

    Instances survive neither a reset nor a reload of the driver. A reload also ends the MIG mode,
    except on cards that need a reset to change it: they keep it in their InfoROM.
    """
    gpu = record.gpus[slot]
    if is_reload and gpu.facts[Fact.MIG_RESET_TO_SWITCH] == 0:
        gpu.facts[Fact.MIG_PENDING] = 0
    vacate(record, slot)
    for instance in gpu.instances:
        instance.present = 0
        for compute in instance.compute:
            compute.present = 0
    gpu.facts[Fact.MIG_CURRENT] = gpu.facts[Fact.MIG_PENDING]
