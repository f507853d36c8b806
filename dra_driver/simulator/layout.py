"""The simulated machine's shared state, byte for byte as the C library maps it.

Out: ctypes structures and the enumerations that index into them. `nvml/state.h` is
the same layout in C; a test compares the two through the library's `nvmlSimulatorLayout`.

A number is one signed 64-bit word, `ABSENT` if the card lacks the fact (NVML then returns
NOT_SUPPORTED). A text is a NUL-terminated string, empty when absent.
"""

import ctypes
import enum
from typing import Any, ClassVar

MAGIC = b"NVMLSIM"
LAYOUT_VERSION = 7
STATE_OFFSET = 4096
MAX_GPUS = 32
MAX_FAULTS = 64
MAX_EVENTS = 256
MAX_LINKS = 36
MAX_PROCESSES = 512
MAX_MEMORY_LIMITS = 256
MAX_ALLOCATIONS = 128
MAX_GROUP_DEPTH = 16
MAX_MIG_PROFILES = 24
MAX_GPU_INSTANCES = 15
MAX_COMPUTE_INSTANCES = 8
MIG_NAME_SIZE = 32
UUID_SIZE = 48
TEXT_SIZE = 96
PATH_SIZE = 256
VERSION_SIZE = 80
ABSENT = -(2**63)
NOT_A_MIG_INSTANCE = 0xFFFFFFFF
"""NVML's instance number for what is on a whole GPU."""


Fact = enum.IntEnum(
    "Fact",
    """
    MINOR BRAND ARCHITECTURE COMPUTE_MAJOR COMPUTE_MINOR
    PCI_DOMAIN PCI_BUS PCI_DEVICE PCI_DEVICE_ID PCI_SUBSYSTEM_ID
    PCIE_ROOT PCIE_SWITCH HOST_NUMA_NODE NUMA_NODE CPU_FIRST CPU_COUNT
    MEMORY_TOTAL MEMORY_RESERVED MEMORY_USED BAR1_TOTAL BAR1_USED
    ADDRESSING_MODE MODULE_ID BOARD_ID MULTI_GPU_BOARD VIRTUALIZATION_MODE
    ECC_CURRENT ECC_PENDING PERSISTENCE_MODE COMPUTE_MODE TIME_SLICE
    MIG_CURRENT MIG_PENDING MIG_MAX_DEVICES
    MIG_UNITS MIG_RESET_TO_SWITCH MIG_COMPUTE_REV1
    FABRIC_STATE FABRIC_STATUS FABRIC_CLIQUE FABRIC_HEALTH C2C_MODE
    EVENT_TYPES RECOVERY_ACTION SLOWDOWN
    TEMPERATURE TEMPERATURE_MEMORY TEMPERATURE_SHUTDOWN TEMPERATURE_SLOWDOWN
    TEMPERATURE_MAX TEMPERATURE_MEMORY_MAX
    POWER_USAGE POWER_LIMIT POWER_DEFAULT POWER_MIN POWER_MAX
    CLOCK_GRAPHICS CLOCK_SM CLOCK_MEMORY CLOCK_VIDEO
    MAX_CLOCK_GRAPHICS MAX_CLOCK_SM MAX_CLOCK_MEMORY MAX_CLOCK_VIDEO
    APPLICATION_GRAPHICS APPLICATION_MEMORY
    PCIE_GENERATION PCIE_GENERATION_MAX PCIE_WIDTH PCIE_WIDTH_MAX
    FAN_SPEED PERFORMANCE_STATE UTILIZATION_GPU UTILIZATION_MEMORY
    CORES MEMORY_BUS_WIDTH DISPLAY_MODE DISPLAY_ACTIVE
    ECC_CORRECTED ECC_UNCORRECTED ECC_UNCORRECTED_VOLATILE RETIRED_PAGES
    ROWS_CORRECTABLE ROWS_UNCORRECTABLE ROWS_PENDING ROWS_FAILED ROW_BANKS
    """,
    start=0,
)

Text = enum.IntEnum(
    "Text",
    """
    UUID NAME SERIAL BOARD_PART_NUMBER VBIOS PCI_BUS_ID
    INFOROM_IMAGE INFOROM_OEM INFOROM_ECC INFOROM_POWER GSP_FIRMWARE
    """,
    start=0,
)


# The engines that MIG instances get shares of.
Engine = enum.IntEnum(
    "Engine",
    "MULTIPROCESSORS COPY_ENGINES DECODERS ENCODERS JPEG_ENGINES OFA_ENGINES",
    start=0,
)

# What enforces memory limits of control groups: nothing or the driver.
MemoryBackend = enum.IntEnum("MemoryBackend", "OFF MISC", start=0)

# The NVML list that a process is in.
ProcessKind = enum.IntEnum("ProcessKind", "COMPUTES DRAWS BY_MPS", start=0)

# What a fault does to the calling process.
Kill = enum.IntEnum("Kill", "NEVER BEFORE AFTER", start=0)


_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64


def _of(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Return fields of the same type."""
    return [(name, kind) for name in names.split()]


class TextRecord(ctypes.Structure):
    """One text of a GPU."""

    _fields_: ClassVar = [("value", ctypes.c_char * TEXT_SIZE)]
    value: bytes


class LinkEnd(enum.IntEnum):
    """What an NVLink leads to, as NVML numbers it."""

    GPU = 0
    SWITCH = 2
    NOTHING = 0xFF


class LinkRecord(ctypes.Structure):
    """One NVLink of a GPU. `kind` is a LinkEnd; a link to nothing has no `remote_bus_id`."""

    _fields_: ClassVar = [
        *_of(_U32, "present active kind version remote_device_id"),
        ("remote_bus_id", ctypes.c_char * 28),
    ]


class MigProfileRecord(ctypes.Structure):
    """One GPU instance profile of a GPU. Bit n of `starts` is a place."""

    _fields_: ClassVar = [
        *_of(_U32, "id index slices instances size starts memory_mib capabilities"),
        ("engines", _U32 * len(Engine)),
        ("name", ctypes.c_char * MIG_NAME_SIZE),
    ]


class ComputeInstanceRecord(ctypes.Structure):
    """One compute instance; `start` and `size` count compute slices."""

    _fields_: ClassVar = [
        *_of(_U32, "present profile_id start size mig_index reserved"),
        ("uuid", ctypes.c_char * UUID_SIZE),
    ]


class GpuInstanceRecord(ctypes.Structure):
    """One GPU instance; `start` and `size` count memory slices."""

    _fields_: ClassVar = [
        *_of(_U32, "present profile start size"),
        ("changed_ms", _U64),
        ("compute", ComputeInstanceRecord * MAX_COMPUTE_INSTANCES),
    ]


class ProcessRecord(ctypes.Structure):
    """One process on a GPU, or on one of its instances. Its load is in percent."""

    _fields_: ClassVar = [
        *_of(_U32, "active slot gpu_instance compute_instance pid kind"),
        ("memory", _U64),
        *_of(_U32, "memory_hidden sm memory_access encoder decoder reserved"),
        ("sampled_us", _U64),
    ]


class GroupRecord(ctypes.Structure):
    """A control group, by its directory."""

    _fields_: ClassVar = [("device", ctypes.c_uint64), ("inode", ctypes.c_uint64)]


class MemoryLimitRecord(ctypes.Structure):
    """A control group's limit on a GPU that the driver itself enforces, in bytes."""

    _fields_: ClassVar = [
        *_of(_U32, "active slot"),
        ("group", GroupRecord),
        *_of(_U64, "soft hard"),
    ]


class AllocationRecord(ctypes.Structure):
    """GPU memory of a process, and the limit that it is charged to."""

    _fields_: ClassVar = [
        *_of(_U32, "active slot pid charged"),
        ("bytes", _U64),
    ]


class GpuRecord(ctypes.Structure):
    """One GPU slot of the machine."""

    _fields_: ClassVar = [
        *_of(_U32, "present lost"),
        ("facts", _I64 * len(Fact)),
        ("texts", TextRecord * len(Text)),
        ("fabric_cluster", ctypes.c_uint8 * 16),
        ("links", LinkRecord * MAX_LINKS),
        *_of(_U32, "mig_profile_count reserved"),
        ("mig_profiles", MigProfileRecord * MAX_MIG_PROFILES),
        ("instances", GpuInstanceRecord * MAX_GPU_INSTANCES),
    ]


class FaultRecord(ctypes.Structure):
    """One injected fault; `active` is written last."""

    _fields_: ClassVar = [
        ("function", ctypes.c_char * 64),
        *_of(_I32, "slot code"),
        *_of(_I64, "remaining skip"),
        *_of(_U32, "delay_ms kill active reserved"),
    ]


class EventRecord(ctypes.Structure):
    """One event of the ring; event number n lies at n modulo MAX_EVENTS."""

    _fields_: ClassVar = [
        *_of(_U64, "sequence type data"),
        *_of(_U32, "slot gpu_instance compute_instance reserved"),
    ]


class StateRecord(ctypes.Structure):
    """The whole machine."""

    _fields_: ClassVar = [
        ("magic", ctypes.c_char * 8),
        *_of(_U32, "layout_version size gpu_count driver_loaded cuda_driver_version change"),
        *_of(_U32, "caps_major device_nodes late_files_ms memory_backend mig_change_ms reserved"),
        *_of(_U64, "next_event pid_namespace"),
        ("driver_version", ctypes.c_char * VERSION_SIZE),
        ("nvml_version", ctypes.c_char * VERSION_SIZE),
        ("library_folder", ctypes.c_char * PATH_SIZE),
        ("cgroup_root", ctypes.c_char * PATH_SIZE),
        ("faults", FaultRecord * MAX_FAULTS),
        ("events", EventRecord * MAX_EVENTS),
        ("processes", ProcessRecord * MAX_PROCESSES),
        ("memory_limits", MemoryLimitRecord * MAX_MEMORY_LIMITS),
        ("allocations", AllocationRecord * MAX_ALLOCATIONS),
        ("gpus", GpuRecord * MAX_GPUS),
    ]


# Names as nvmlSimulatorLayout prints them.
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "sim_state": StateRecord,
    "sim_gpu": GpuRecord,
    "sim_fault": FaultRecord,
    "sim_event": EventRecord,
    "sim_link": LinkRecord,
    "sim_process": ProcessRecord,
    "sim_group": GroupRecord,
    "sim_memory_limit": MemoryLimitRecord,
    "sim_allocation": AllocationRecord,
    "sim_mig_profile": MigProfileRecord,
    "sim_gpu_instance": GpuInstanceRecord,
    "sim_compute_instance": ComputeInstanceRecord,
}


def clear(place: ctypes.Structure) -> None:
    """Clear a record."""
    ctypes.memset(ctypes.addressof(place), 0, ctypes.sizeof(place))


def describe() -> dict[str, tuple[int, ...]]:
    """Describe this module's layout as `nvmlSimulatorLayout` describes the library's.

    Returns:
        `structure` → (size,), `structure.field` → (offset, size), `fact.NAME` → (number,),
        `text.NAME` and `engine.NAME` → (number,). Sizes and offsets in bytes.
    """
    lines: dict[str, tuple[int, ...]] = {}
    for name, structure in STRUCTURES.items():
        lines[name] = (ctypes.sizeof(structure),)
        for field, *_ in structure._fields_:
            if field != "reserved":
                place = getattr(structure, field)
                lines[f"{name}.{field}"] = (place.offset, place.size)
    lines |= {f"fact.{fact.name}": (fact.value,) for fact in Fact}
    lines |= {f"text.{text.name}": (text.value,) for text in Text}
    lines |= {f"engine.{engine.name}": (engine.value,) for engine in Engine}
    return lines
