"""What driver, MPS supervisor and kernel need over a soak, and whether it stays flat.

The last quarter of the samples is compared with the second: the first is warm-up.
"""

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.driver import resident_memory
from testbed.mounts import mounts_below

_MIB = 1024**2
_CGROUPS = Path("/sys/fs/cgroup")
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_LONG_S = 20 * 60
"""In less than that memory still warms up, and other programs on the machine weigh more."""

Sample = Mapping[str, float]
"""What was needed at one moment, by the row of the table."""


@dataclass(frozen=True, slots=True)
class Row:
    """What may be added between the second quarter and the last, and a tenth of what was there."""

    more: float
    judged_from: float = 0.0
    """Seconds that a soak has to last for it to be judged; in shorter ones it is shown."""


_OURS: Mapping[str, Row] = {
    # Python's allocator and gRPC's buffers come and go by a few MiB; a KiB that is lost with each
    # pod start or connection adds up to tens of them in an hour.
    "memory, MiB": Row(8, _LONG_S),
    "kernel memory of its group, MiB": Row(8),
    # Connections of probes, API watches and running calls, at the moment of a sample.
    "open files": Row(8),
    "threads": Row(6),
}
_SHARED: Mapping[str, Row] = {
    # Full or not, by what the tenant did last. That it is emptied is looked at in the end.
    "files in MPS's tmpfs": Row(0, math.inf),
    "MiB in MPS's tmpfs": Row(0, math.inf),
    # Caches are dropped before. Pods and the cluster's own stores make the rest vary.
    "machine: Slab, MiB": Row(48, _LONG_S),
    "machine: SUnreclaim, MiB": Row(32, _LONG_S),
}


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our containers: its first process, and the folder of its control group for memory."""

    name: str
    pid: int
    group: Path

    @classmethod
    def find(cls, name: str, container_id: str) -> "Ours":
        """Find them by the container's id. Raises ValueError if it does not run."""
        plain = container_id.rpartition("/")[2]
        found = {pid: text for pid, text in _groups() if plain in text}
        pid = min(found)
        path = next(
            line.split(":", 2)[2]
            for line in found[pid].splitlines()
            if line.startswith("0::/") or ":memory:" in line
        )
        mounted = _CGROUPS / "memory"
        return cls(name, pid, (mounted if mounted.exists() else _CGROUPS) / path.lstrip("/"))

    def sample(self) -> Sample:
        """What it needs now."""
        process = Path("/proc") / str(self.pid)
        found = {
            "memory, MiB": resident_memory(self.pid)[0] / _MIB,
            "kernel memory of its group, MiB": self._kernel() / _MIB,
            "open files": len(list((process / "fd").iterdir())),
            "threads": len(list((process / "task").iterdir())),
        }
        return {f"{self.name}: {row}": value for row, value in found.items()}

    def peak(self) -> float:
        """The most memory that it has had, in MiB."""
        return resident_memory(self.pid)[1] / _MIB

    def _kernel(self) -> int:
        """Bytes of kernel memory: cgroup v2 tells slab, v1 all of it."""
        with suppress(OSError):
            return int((self.group / "memory.kmem.usage_in_bytes").read_text())
        with suppress(OSError):
            lines = (self.group / "memory.stat").read_text().splitlines()
            return int(dict(map(str.split, lines)).get("slab", 0))
        return 0


def sample(ours: Sequence[Ours], folder: Path) -> Sample:
    """What all needs now; `folder` is MPS's. Drops the kernel's caches of names and inodes."""
    found = {row: value for process in ours for row, value in process.sample().items()}
    with suppress(OSError):
        _DROP_CACHES.write_text("2")
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kernel = {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines}
    found |= {f"machine: {one}, MiB": kernel[one] for one in ("Slab", "SUnreclaim")}
    return {**found, **tmpfs(folder)}


def tmpfs(folder: Path) -> Sample:
    """How many files and MiB are in the tmpfs of MPS, all together."""
    files, size = 0, 0
    for point in {*mounts_below(folder)}:
        with suppress(OSError):
            one = os.statvfs(point)
            files += one.f_files - one.f_ffree
            size += (one.f_blocks - one.f_bfree) * one.f_frsize
    return {"files in MPS's tmpfs": files, "MiB in MPS's tmpfs": size / _MIB}


def _groups() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                yield int(process.name), (process / "cgroup").read_text()


def table(samples: Sequence[Sample], seconds: float) -> tuple[list[str], list[str]]:
    """Return a table's lines, and what is not flat of what is judged in a soak of this length."""
    lines = [f"{'':44} {'2nd quarter':>12} {'last quarter':>12} {'most':>8} {'allowed':>8}"]
    wrong: list[str] = []
    if len(samples) < 4:
        return [*lines, "too few samples"], ["there are too few samples to compare"]
    quarter = len(samples) // 4
    for name in (one for one in samples[0] if all(one in each for each in samples)):
        values = [one[name] for one in samples]
        second = statistics.median(values[quarter : 2 * quarter])
        last = statistics.median(values[-quarter:])
        row = _SHARED.get(name) or _OURS[name.partition(": ")[2]]
        allowed = second * 1.1 + row.more
        judged = seconds >= row.judged_from
        shown = f"{allowed:8.0f}" if judged else f"{'-':>8}"
        lines.append(f"{name:44} {second:12.1f} {last:12.1f} {max(values):8.1f} {shown}")
        if judged and last > allowed:
            wrong.append(f"{name}: {last:.1f} in the last quarter, {second:.1f} in the second")
    return lines, wrong
