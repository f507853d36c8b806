"""A user's own command, wrapped so that it begins together with the others. Pure.

The wrapper reports that it is ready, waits for the common moment, runs the command, and reports how
long it took. It is bench/tenant/supervised.py where this package is installed; in other images it
is a script for `sh` that prints the same. Both use the clock of /proc/uptime, which all containers
of a machine share.
"""

from collections.abc import Sequence

from dra_driver.bench.workload import Workload

FILE = "{latencies}"
"""In a command's arguments: the file for its latencies. Each tenant has its own."""


_SCRIPT = r"""
file=$1; shift
now() { read -r up _ </proc/uptime; up=${up%.*}${up#*.}0; }
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }
now
printf '\n{"bench":1,"event":"ready","at":%s,"mps":"%s"}\n' \
    "$(seconds "$up")" "$CUDA_MPS_PIPE_DIRECTORY"
until [ -s "$file" ]; do sleep 0.2 2>/dev/null || sleep 1; done
read -r moment <"$file"
moment=${moment%.*}${moment#*.}
until now; [ "$up" -ge "$moment" ]; do sleep 0.02 2>/dev/null || :; done
began=$up
"$@"
status=$?
now
printf '\n{"bench":1,"event":"ended","began":%s,"seconds":%s,"late_seconds":%s}\n' \
    "$(seconds "$began")" "$(seconds $((up - began)))" "$(seconds $((began - moment)))"
exit $status
"""
"""Waits for the file `$1`, which contains the moment, and runs the rest. Times have 3 decimals."""


def words(work: Workload, file: str) -> tuple[str, ...]:
    """Return a command's arguments, with the file for its latencies."""
    if work.latencies is None:
        return work.command
    return tuple(word.replace(FILE, file) for word in work.command)


def writes_file(work: Workload) -> bool:
    """Whether a command writes its latencies to a file instead of its output."""
    return work.latencies is not None and any(FILE in word for word in work.command)


def held_by_sh(start: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command in a script that waits for the moment in the file `start`."""
    return ("sh", "-c", _SCRIPT, "bench", start, *command)
