"""Processes of a cluster: started, recognised, signalled, waited for.

A process is only touched if it certainly belongs to the cluster. There are three signs, all in
/proc: the pid file's pid together with its start time (the pid may since belong to another
process); the variable that every component is started with, which shims inherit from containerd;
and for containers, which inherit nothing, a root file system in the cluster's state folder.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.state import write_whole

PROC = Path("/proc")
# Set in the environment of every component to its cluster's state folder.
MARK = "DRA_CLUSTER_STATE_OF_THIS_PROCESS"
POLL_S = 0.05
REMEDIES = {
    "inotify_init: too many open files": (
        "fs.inotify.max_user_instances of this machine is used up: take other clusters down, or "
        "raise it (sysctl fs.inotify.max_user_instances=1024)."
    ),
}
"""Advice on error messages of components that have none."""
KILL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live process: its pid, and its start in clock ticks since the machine's boot."""

    pid: int
    started: int


def running(pid: int) -> Running | None:
    """The process with this pid, unless it is gone or a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Running(pid=pid, started=int(fields[19]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One component's process: its pid file, its log, and the mark it carries."""

    name: str
    state: Path

    @property
    def log(self) -> Path:
        return self.state / "logs" / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.state / "pids" / f"{self.name}.json"

    def process(self) -> Running | None:
        """The component's process, if it runs."""
        try:
            record = json.loads(self._record.read_text())
            current = running(record["pid"])
            return current if current and current.started == record["started"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> Running:
        """Start the component in a session of its own, unless it runs already."""
        current = self.process()
        if current is not None:
            return current
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                argv,
                cwd="/",
                env={**env, MARK: str(self.state)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # The child outlives this command on purpose; this keeps Python from warning of it.
        # One that ended is a zombie until this command ends; `running` counts it as gone.
        child.returncode = 0
        current = self.note(child.pid)
        if current is None:
            raise ClusterError(f"{self.name} ended at once: {self.last_words()}")
        return current

    def note(self, pid: int) -> Running | None:
        """Record which process is the component, and return it; None if it has ended."""
        current = running(pid)
        if current is not None:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._record, json.dumps({"pid": pid, "started": current.started}))
        return current

    def stop(self, with_signal: int, grace_s: float) -> int | None:
        """End the component; return the signal that ended it, or None if it did not run.

        Like a kubelet with a pod, it kills what still runs after the grace period: an API server
        waits a whole minute for its watches to end. Raises ClusterError if it still runs.
        """
        current = self.process()
        if current is None:
            return None
        for number, patience_s in ((with_signal, grace_s), (signal.SIGKILL, KILL_S)):
            send(current, number)
            if wait_gone([current], patience_s):
                self._record.unlink(missing_ok=True)
                return number
        raise ClusterError(f"{self.name} (pid {current.pid}) cannot be killed; look at /proc")

    def last_words(self, lines: int = 8) -> str:
        """The end of the log, with advice if there is some, for an error message."""
        with suppress(OSError):
            said = self.log.read_text(errors="replace").splitlines()[-lines:]
            advice = [do for words, do in REMEDIES.items() if any(words in line for line in said)]
            return "\n".join((*said, *advice))
        return "(it wrote no log)"


def send(process: Running, with_signal: int) -> None:
    """Signal a process, if it is still the same one."""
    if running(process.pid) == process:
        with suppress(ProcessLookupError):
            os.kill(process.pid, with_signal)


def wait_gone(processes: Iterable[Running], timeout_s: float) -> bool:
    """Wait until none of the processes runs; return False when time is up."""
    return wait_until(
        lambda: all(running(process.pid) != process for process in processes), timeout_s
    )


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> bool:
    """Ask again and again until a condition holds; return False when time is up."""
    end = time.monotonic() + timeout_s
    while True:
        if condition():
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)


def owned(state: Path, cgroup_folders: Iterable[Path] = ()) -> list[Running]:
    """Every process that belongs to the cluster with this state folder."""
    in_cgroups = set(_pids_in(cgroup_folders))
    pids = []
    for entry in PROC.iterdir():
        pid = int(entry.name) if entry.name.isdigit() else 0
        if pid <= 1 or pid == os.getpid():
            continue
        if pid in in_cgroups or _is_marked(entry, state) or _is_container_of(entry, state):
            current = running(pid)
            if current is not None:
                pids.append(current)
    return pids


def kill_owned(
    state: Path, cgroup_folders: Callable[[], list[Path]], timeout_s: float
) -> list[Running]:
    """Kill every process of a cluster until none is left; return those that are left."""
    left: list[Running] = []

    def none_left() -> bool:
        nonlocal left
        left = owned(state, cgroup_folders())
        for process in left:
            send(process, signal.SIGKILL)
        return not left

    wait_until(none_left, timeout_s)
    return left


def _pids_in(cgroup_folders: Iterable[Path]) -> Iterable[int]:
    for folder in cgroup_folders:
        with suppress(OSError):
            yield from map(int, (folder / "cgroup.procs").read_text().split())


def _is_marked(entry: Path, state: Path) -> bool:
    try:
        environment = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={state}".encode() in environment


def _is_container_of(entry: Path, state: Path) -> bool:
    """Whether a process's root is in the state folder (an overlay or a bind mount)."""
    try:
        lines = (entry / "mountinfo").read_text().splitlines()
    except OSError:
        return False
    inside = f"{state}/"
    for line in lines:
        fields, _, source = line.partition(" - ")
        _, _, _, root, mount_point, *_ = fields.split(" ")
        if mount_point == "/":
            return root.startswith(inside) or f"upperdir={inside}" in source
    return False
