"""What NVML says of how a GPU is doing: what is read at each look, and what it reports by itself.

Comes from devices/nvml/health.py, goes to health/. A value is None where the card or its driver
does not say, which is no sign of anything. Numbers mean what nvml.h says.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What one look read.

    Attributes:
        recovery_action: what the driver wants done, NVML_GPU_RECOVERY_ACTION_*; 0 is nothing.
        rows_pending: memory is to be replaced by spare memory at the next reset.
        rows_failed: that has failed once, for good.
        uncorrected: errors of memory that could not be corrected, since the driver was loaded.
        slowdown: why clocks are lower than they could be, nvmlClocksEventReason*.
        fabric_state: how far it has come in joining its NVLink fabric; 0 if it has none.
        fabric_status: how that ended, an nvmlReturn_t.
    """

    recovery_action: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    uncorrected: int | None = None
    slowdown: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceId:
    """A GPU instance by NVML's number, and if only one of its compute instances is meant that."""

    gpu_instance: int
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """What NVML reported of a GPU.

    Attributes:
        gpu: its UUID.
        xid: the XID; None for an event of another kind, which says only that it is time to look.
        instance: the MIG instance that it is about; None for the whole GPU.
    """

    gpu: str
    xid: int | None = None
    instance: InstanceId | None = None
