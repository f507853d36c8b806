"""What driver, MPS supervisor and kernel use during a soak, and whether it stays flat.

The last quarter of the samples is compared with the second: the first is warm-up.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.driver import resident_memory

_MIB = 1024**2
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_LONG_S = 20 * 60
"""Before that, memory still warms up, and other programs on the machine matter more."""

Sample = Mapping[str, float]
"""What was used at one moment, by the row of the table."""


@dataclass(frozen=True, slots=True)
class Row:
    """The growth allowed from the second quarter to the last, besides a tenth of what there was."""

    more: float
    judged_from: float = 0.0
    """Seconds that a soak has to last to be judged; figures of shorter ones are only shown."""


_ROWS: Mapping[str, Row] = {
    # Python's allocator and gRPC's buffers vary by a few MiB; a leak of a KiB with each pod start
    # or connection adds up to tens of MiB in an hour.
    "memory, MiB": Row(8, _LONG_S),
    # Connections of probes, API watches and running calls, at the moment of a sample.
    "open files": Row(8),
    "threads": Row(6),
    # Caches are dropped before. Pods and the cluster's own stores make the rest vary.
    "Slab, MiB": Row(48, _LONG_S),
    "SUnreclaim, MiB": Row(32, _LONG_S),
}


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our containers, and its first process."""

    name: str
    pid: int

    @classmethod
    def find(cls, name: str, container_id: str) -> "Ours":
        """Find it by the container's id. Raises ValueError if it does not run."""
        plain = container_id.rpartition("/")[2]
        return cls(name, min(pid for pid, text in _groups() if plain in text))

    def sample(self) -> Sample:
        """What it uses now."""
        process = Path("/proc") / str(self.pid)
        return {
            f"{self.name}: memory, MiB": resident_memory(self.pid)[0] / _MIB,
            f"{self.name}: open files": len(list((process / "fd").iterdir())),
            f"{self.name}: threads": len(list((process / "task").iterdir())),
        }

    def peak(self) -> float:
        """Its peak memory, in MiB."""
        return resident_memory(self.pid)[1] / _MIB


def sample(ours: Sequence[Ours]) -> Sample:
    """What all use now. Drops the kernel's caches of names and inodes."""
    values = {row: value for process in ours for row, value in process.sample().items()}
    with suppress(OSError):
        _DROP_CACHES.write_text("2")
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kernel = {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines}
    return {**values, **{f"machine: {key}, MiB": kernel[key] for key in ("Slab", "SUnreclaim")}}


def _groups() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                yield int(process.name), (process / "cgroup").read_text()


def table(samples: Sequence[Sample], seconds: float) -> tuple[list[str], list[str]]:
    """Return a table's lines, and what is judged in a soak of this length and is not flat."""
    lines = [f"{'':44} {'2nd quarter':>12} {'last quarter':>12} {'most':>8} {'allowed':>8}"]
    wrong: list[str] = []
    if len(samples) < 4:
        return [*lines, "too few samples"], ["there are too few samples to compare"]
    quarter = len(samples) // 4
    for name in (key for key in samples[0] if all(key in each for each in samples)):
        values = [each[name] for each in samples]
        second = statistics.median(values[quarter : 2 * quarter])
        last = statistics.median(values[-quarter:])
        row = _ROWS[name.partition(": ")[2]]
        allowed = second * 1.1 + row.more
        judged = seconds >= row.judged_from
        shown = f"{allowed:8.0f}" if judged else f"{'-':>8}"
        lines.append(f"{name:44} {second:12.1f} {last:12.1f} {max(values):8.1f} {shown}")
        if judged and last > allowed:
            wrong.append(f"{name}: {last:.1f} in the last quarter, {second:.1f} in the second")
    return lines, wrong
