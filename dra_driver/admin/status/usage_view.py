"""Who uses the GPUs, for people on a terminal and for programs. Pure.

Names are shortened if a line would be too long for the terminal; without one, and in the document,
they are complete.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dra_driver.admin.output import aligned
from dra_driver.devices.load import Memory
from dra_driver.host.words import named
from dra_driver.usage.model import DeviceUse, GpuUse, NodeUse, Process, User, added

NARROWEST = 80
_COLUMNS = ("POD", "CONTAINER", "DEVICE", "MEMORY", "LIMIT", "SM", "PROCESSES", "CLAIM")
_SHRINKABLE = (0, 1, 2, 6)
"""Not the last: claims are left out if they would make other columns narrower."""
_SHORTEST = 9
_BAR = 20
_MIB, _GIB = 1024**2, 1024**3
_MOST_NAMED = 3


class Selected(Struct, frozen=True, kw_only=True):
    """Which GPUs are shown: all of them where `indices` is None."""

    indices: frozenset[int] | None = None

    def __contains__(self, index: object) -> bool:
        return self.indices is None or index in self.indices


EVERYTHING = Selected()


def lines(use: NodeUse, *, width: int | None, of: Selected = EVERYTHING) -> list[str]:
    """Return lines for people; none is wider than the terminal, or than 80 if that is narrower.

    Without a terminal (a width of None), nothing is shortened.
    """
    width = None if width is None else max(width, NARROWEST)
    shown: list[str] = []
    for gpu in use.gpus:
        if gpu.load.index in of:
            shown += ["", *_gpu_lines(gpu, width)]
    for index, reason in use.silent.items():
        if index in of:
            shown += ["", f"GPU {index}  not known: {reason}"]
    return shown[1:] if shown else ["no GPU on this node"]


def _gpu_lines(gpu: GpuUse, width: int | None) -> Iterator[str]:
    load = gpu.load
    facts = [f"GPU {load.index}", load.product_name, gpu.name, load.uuid]
    yield _cut("  ".join(facts), width)
    busy = "MIG mode: NVML reports no utilisation" if load.busy is None else f"busy {load.busy:.0%}"
    if load.memory is not None:
        yield f"  {_bar(load.memory)}  {_of(load.memory)}, {busy}"
    rows = [row for device in gpu.devices for row in _rows(gpu, device)]
    if not rows:
        yield "  not in use"
        return
    table = aligned((_COLUMNS, *rows)) if width is None else _table((_COLUMNS, *rows), width - 2)
    yield from (f"  {line}" for line in table)


def _rows(gpu: GpuUse, device: DeviceUse) -> Iterator[tuple[str, ...]]:
    whole = device.uuid == gpu.load.uuid
    own = device.memory.total_bytes if device.memory and not whole else None
    for user in device.users:
        yield (
            _who(user),
            user.container or user.container_id[:13] or "-",
            ", ".join(_short(name, gpu.name) for name in user.devices or (device.name,)),
            _size(user.memory_bytes) if user.processes else "-",
            _limit(user, own),
            _share(user.sm) if user.processes else "-",
            _processes(user.processes),
            ", ".join(user.claims) or "-",
        )
    for owner, processes in (("MPS server", device.servers), ("no pod", device.others)):
        if processes:
            yield (
                f"({owner})",
                "-",
                _short(device.name, gpu.name),
                _size(added(process.memory_bytes for process in processes)),
                "-",
                _share(User(processes=processes).sm),
                _processes(processes),
                "-",
            )


def _who(user: User) -> str:
    """Return the pod with its namespace; a claim without a known pod by its own name."""
    if not user.pod_uid:
        groups = f" of PodGroup {', '.join(user.pod_groups)}" if user.pod_groups else ""
        return f"(claim {', '.join(user.claims)}{groups})"
    return f"{user.namespace or '?'}/{user.pod or user.pod_uid}"


def _short(device: str, gpu: str) -> str:
    """Return the name of a device below the GPU's line, without the GPU's own name."""
    return "whole" if device == gpu else device.removeprefix(gpu).lstrip("- ")


def _limit(user: User, own: int | None) -> str:
    """Return how much memory a container may use: its limit, or all of its MIG device."""
    amount = own if user.limit_bytes is None else user.limit_bytes
    if amount is None:
        return "-"
    return _size(amount) + (" (over)" if (user.memory_bytes or 0) > amount else "")


def _processes(processes: Sequence[Process]) -> str:
    return named((f"{process.pid} {process.name}" for process in processes), _MOST_NAMED) or "none"


def _size(amount: int | None) -> str:
    """Return an amount of memory in MiB or GiB; an unknown one is `?`."""
    if amount is None:
        return "?"
    return f"{amount / _GIB:.1f} GiB" if amount >= _GIB else f"{amount / _MIB:.0f} MiB"


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def _of(memory: Memory) -> str:
    used, total = memory.used_bytes / _GIB, memory.total_bytes / _GIB
    return f"{used:.1f} of {total:.1f} GiB"


def _bar(memory: Memory) -> str:
    full = round(_BAR * memory.used_bytes / max(memory.total_bytes, 1))
    return f"[{'#' * min(full, _BAR):.<{_BAR}}]"


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return aligned lines; the widest columns are narrowed, if they may be, until they fit.

    Before that, the last column is left out.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) > width - 2 * (len(widths) - 1):
        widths.pop()
        rows = [row[:-1] for row in rows]
    room = width - 2 * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(_SHRINKABLE, key=lambda number: widths[number])
        if widths[widest] <= _SHORTEST:
            break
        widths[widest] -= 1
    return [
        "  ".join(
            _cut(cell, most).ljust(most) for cell, most in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def document(use: NodeUse, of: Selected = EVERYTHING) -> Mapping[str, object]:
    """Return the usage for programs."""
    return {
        "seesProcesses": use.sees_processes,
        "gpus": [_gpu_json(gpu) for gpu in use.gpus if gpu.load.index in of],
        "notKnown": [
            {"index": index, "reason": reason}
            for index, reason in use.silent.items()
            if index in of
        ],
    }


def _gpu_json(gpu: GpuUse) -> Mapping[str, object]:
    return {
        "index": gpu.load.index,
        "name": gpu.name,
        "uuid": gpu.load.uuid,
        "productName": gpu.load.product_name,
        "memory": _memory_json(gpu.load.memory),
        "utilization": gpu.load.busy,
        "devices": [_device_json(device) for device in gpu.devices],
    }


def _device_json(device: DeviceUse) -> Mapping[str, object]:
    return {
        "name": device.name,
        "uuid": device.uuid,
        "type": str(device.kind),
        "memory": _memory_json(device.memory),
        "users": [_user_json(user) for user in device.users],
        "mpsServers": [_process_json(server) for server in device.servers],
        "others": [_process_json(other) for other in device.others],
    }


def _user_json(user: User) -> Mapping[str, object]:
    return {
        "claims": list(user.claims),
        "devices": list(user.devices),
        "namespace": user.namespace,
        "pod": user.pod,
        "podUID": user.pod_uid,
        "podGroups": list(user.pod_groups),
        "container": user.container,
        "containerID": user.container_id,
        "memoryBytes": user.memory_bytes,
        "limitBytes": user.limit_bytes,
        "smUtilization": user.sm,
        "processes": [_process_json(process) for process in user.processes],
    }


def _process_json(process: Process) -> Mapping[str, object]:
    return {
        "pid": process.pid,
        "name": process.name,
        "kind": process.kind,
        "memoryBytes": process.memory_bytes,
        "smUtilization": process.sm,
    }


def _memory_json(memory: Memory | None) -> Mapping[str, int] | None:
    if memory is None:
        return None
    return {"totalBytes": memory.total_bytes, "usedBytes": memory.used_bytes}
