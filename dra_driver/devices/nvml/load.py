"""What NVML says about who uses a GPU, and how busy it is; only reads.

What a card lacks is None. Rules (nvml.h, and the source of the kernel module): utilisation is the
share of the last sample period, up to a second long, in which any kernel ran, or memory was read or
written. A GPU in MIG mode does not report it. Processes are in three lists, and a process may be in
several (dcgm-exporter#478). The size of a list is asked for first, so the list may have
grown when it is read. PIDs are those of this process's PID namespace. A process outside it is left
out, but its samples are not: their PID means another process here. In MIG mode there are no
samples. A sample may have a value that is not a percentage, and samples are repeated for a while
after their process is idle or has ended. Usage that NVML does not attribute to an MPS client is
attributed to its server, which is in the list of processes that compute (docs/hardware.md).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pynvml

from dra_driver.devices.load import GpuLoad, GpuProcess, Memory, MigLoad, ProcessKind
from dra_driver.devices.nvml.errors import NOT_TOLD, optional

SAMPLED_SECONDS = 5.0
"""The age up to which samples count."""

_NO_INSTANCE = 0xFFFFFFFF
_ATTEMPTS = 3
_LISTS = (
    (ProcessKind.GRAPHICS, pynvml.nvmlDeviceGetGraphicsRunningProcesses),
    (ProcessKind.COMPUTE, pynvml.nvmlDeviceGetComputeRunningProcesses),
    (ProcessKind.MPS, pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
)
_NOTHING_NEW = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""The codes for no new samples: pynvml raises success if there are none at all."""


def read_load(handle: Any, index: int, *, sampled: bool = True) -> GpuLoad:
    """Return who uses a GPU and how much. Raises NVMLError only if it is out of reach.

    Asking how busy processes are takes ten times as long as everything else (3 ms on an H100), so
    it is left out without `sampled`.
    """
    rates = optional(pynvml.nvmlDeviceGetUtilizationRates, handle, absent=NOT_TOLD)
    return GpuLoad(
        index=index,
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        product_name=str(pynvml.nvmlDeviceGetName(handle)),
        memory=read_memory(handle),
        busy=None if rates is None else _share(int(rates.gpu)),
        processes=_processes(handle, _samples(handle) if sampled else None),
        migs=tuple(_migs(handle)),
    )


def _processes(handle: Any, samples: dict[int, float] | None) -> tuple[GpuProcess, ...]:
    """Merge the lists, so that a process in several of them has its memory only once."""
    processes: dict[tuple[int, int | None, int | None], GpuProcess] = {}
    for kind, ask in _LISTS:
        for process in _again(ask, handle) or ():
            if process.pid == 0:
                continue
            key = (
                int(process.pid),
                instance_number(process.gpuInstanceId),
                instance_number(process.computeInstanceId),
            )
            known = processes.get(key)
            amounts = [known.memory_bytes if known else None, process.usedGpuMemory]
            processes[key] = GpuProcess(
                pid=key[0],
                kind=kind,
                memory_bytes=max((int(each) for each in amounts if each is not None), default=None),
                sm=_busy(kind, samples, key[0]),
                gpu_instance=key[1],
                compute_instance=key[2],
            )
    return tuple(processes[key] for key in sorted(processes, key=lambda key: key[0]))


def _busy(kind: ProcessKind, samples: dict[int, float] | None, pid: int) -> float | None:
    """Return how busy a process is; without a sample it is 0, or None for an MPS client."""
    if samples is None:
        return None
    return samples.get(pid, None if kind is ProcessKind.MPS else 0.0)


def _samples(handle: Any) -> dict[int, float] | None:
    """Return how busy processes were recently, by PID; None if NVML does not say for this GPU."""
    since = int((time.time() - SAMPLED_SECONDS) * 1e6)  # noqa: TID251 (NVML's clock)
    try:
        samples = _again(lambda gpu: pynvml.nvmlDeviceGetProcessUtilization(gpu, since), handle)
    except pynvml.NVMLError as error:
        if error.value in _NOTHING_NEW:
            return {}
        raise
    if samples is None:
        return None
    latest: dict[int, tuple[int, float]] = {}
    for sample in samples:
        share = _share(int(sample.smUtil))
        if sample.timeStamp > since and share is not None:
            known = latest.get(int(sample.pid), (0, 0.0))
            latest[int(sample.pid)] = max(known, (int(sample.timeStamp), share))
    return {pid: share for pid, (_, share) in latest.items()}


def _migs(handle: Any) -> Iterator[MigLoad]:
    most = optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, absent=NOT_TOLD) or 0
    for number in range(most):
        # The numbers have gaps, and a device may disappear while it is asked.
        with suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            yield MigLoad(
                uuid=str(pynvml.nvmlDeviceGetUUID(mig)),
                gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(mig)),
                compute_instance=int(pynvml.nvmlDeviceGetComputeInstanceId(mig)),
                memory=read_memory(mig),
            )


def read_memory(handle: Any) -> Memory | None:
    """Return the memory of a GPU or MIG device; version 1 of the call counts reserved as used.

    None for a whole GPU in MIG mode if this process may not monitor all of it.
    """
    memory = optional(memory_v2, handle, absent=NOT_TOLD) or optional(
        pynvml.nvmlDeviceGetMemoryInfo, handle, absent=NOT_TOLD
    )
    return memory and Memory(total_bytes=int(memory.total), used_bytes=int(memory.used))


def memory_v2(handle: object) -> Any:
    """Return a GPU's memory by version 2 of the call, which has reserved memory apart."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _again(ask: Callable[[Any], Any], handle: Any) -> Any:
    """Ask, and ask again if a list has grown meanwhile; None if NVML does not tell."""
    for _ in range(_ATTEMPTS):
        with suppress(pynvml.NVMLError_InsufficientSize):
            return optional(ask, handle, absent=NOT_TOLD)
    return None


def _share(percent: int) -> float | None:
    return percent / 100 if percent <= 100 else None


def instance_number(number: int | None) -> int | None:
    """Return the id of a MIG instance; None if NVML says that there is none."""
    return None if number is None or number == _NO_INSTANCE else int(number)
