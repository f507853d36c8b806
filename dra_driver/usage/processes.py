"""Processes of the node by PID, as procfs has them, and the names of containers by their ids.

PIDs are used again after a process has ended. So everything is read through one open folder of
procfs, which belongs to one process only; and a process that began after NVML was asked is not the
one that NVML meant. A name is a tenant's text, and is made harmless; the text of /proc/PID/cgroup
is read strictly.
"""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dra_driver.devices.holders import harmless
from dra_driver.host.process import first_procfs
from dra_driver.sharing.pod_groups import classes, is_top

_LONGEST_STAT = 4096

FOLDER = "var/log/containers"
_MOST_LINKS = 20_000
_LINK = re.compile(
    r"(?P<pod>[a-z0-9][a-z0-9.-]{0,252})_(?P<namespace>[a-z0-9][a-z0-9-]{0,62})"
    r"_(?P<name>[a-z0-9][a-z0-9-]{0,62})-(?P<id>[0-9a-f]{64})\.log"
)

LONGEST_TEXT = 64 * 1024

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_ID = "[0-9a-f]{64}"
_CONTAINER = re.compile(
    f"(?:crio-)?({_ID})|(?:cri-containerd|crio|docker)-({_ID})\\.scope", re.ASCII
)
_FLAT = re.compile(
    rf"(?:[A-Za-z0-9_.-]+-)?kubepods(?:-burstable|-besteffort)?-pod({_UID})\.slice"
    rf":(?:cri-containerd|crio|docker):({_ID})"
)
_SLICE = ".slice"
_OF_USERS = frozenset({"user.slice", "machine.slice"})


class PodProcess(Struct, frozen=True, kw_only=True):
    """The pod and the container of a process, which may be in none of the pod's containers.

    The UID of a static pod is a hash of 32 characters.
    """

    pod_uid: str
    container_id: str | None


class SeenProcess(Struct, frozen=True, kw_only=True):
    """A process. `start_ticks` is its start since the boot; `pod` is None if it is of no pod."""

    pid: int
    parent: int
    name: str
    start_ticks: int
    pod: PodProcess | None


class ContainerName(Struct, frozen=True, kw_only=True):
    """The name of a container, and its pod."""

    namespace: str
    pod: str
    name: str


class Processes:
    """Looks processes up. For any thread."""

    def __init__(self, *procs: Path) -> None:
        """Take where procfs may be mounted; the first that shows this process is read."""
        self._proc = first_procfs(*procs)

    def see(self, pid: int, *, before: int) -> SeenProcess | None:
        """Return a process; None if it has ended, or began later than that many ticks.

        If this process may not look at it, only its existence is known.
        """
        try:
            folder = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _seen(folder, pid, before)
        except (OSError, ValueError, IndexError):
            return None  # it has ended meanwhile
        finally:
            os.close(folder)


def now_ticks() -> int:
    """Return the time since the boot in the unit of processes' starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _seen(folder: int, pid: int, before: int) -> SeenProcess | None:
    stat = _read(folder, "stat", _LONGEST_STAT)
    # The name is in brackets, and may have brackets and blanks in it.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    start_ticks = int(fields[19])
    if start_ticks > before:
        return None
    return SeenProcess(
        pid=pid,
        parent=int(fields[1]),
        name=harmless(name),
        start_ticks=start_ticks,
        pod=pod_process(_read(folder, "cgroup", LONGEST_TEXT)),
    )


def _read(folder: int, name: str, most: int) -> str:
    """Read a file of a process; one that is too long is cut, and then means nothing."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        data = b""
        while len(data) < most and (more := os.read(descriptor, most - len(data))):
            data += more
    finally:
        os.close(descriptor)
    return data.decode(errors="replace")


def pod_process(text: str) -> PodProcess | None:
    """Return the pod and container that the text of a /proc/PID/cgroup names, or None.

    It is from cgroup v1, v2, or both. If the paths of several hierarchies name different pods,
    none of them is believed.
    """
    places = {place for line in text.split("\n") if (place := _of_path(line.split(":", 2)[-1]))}
    if len({at.pod_uid for at in places}) != 1:
        return None
    containers = {at.container_id for at in places if at.container_id is not None}
    (uid,) = {at.pod_uid for at in places}
    return PodProcess(pod_uid=uid, container_id=containers.pop() if len(containers) == 1 else None)


def _of_path(path: str) -> PodProcess | None:
    """Read a path from its top to the first container: below that, tenants can make groups.

    The kubelet and the container runtime make the upper part:

        cgroupfs  [/…]/kubepods[/burstable|/besteffort]/pod<uid>/[crio-]<id>
        systemd   [/…]/[<root>-]kubepods.slice[/…-<class>.slice]/…-pod<uid with _ for ->.slice/
                  cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope
        a runtime without systemd below a kubelet with it
                  /…/kubepods[-<class>]-pod<uid with _ for ->.slice:cri-containerd:<id>

    In `user.slice` users of the node make groups, which belong to no pod, whatever their names.
    """
    parts = path.split("/")
    if parts[0] != "" or ".." in parts:
        return None  # of another namespace of control groups, where names mean something else
    above = ""
    for place, part in enumerate(parts[1:], start=1):
        if part in _OF_USERS:
            return None
        if match := _FLAT.fullmatch(part):
            return PodProcess(pod_uid=_uid(match[1]), container_id=match[2])
        if is_top(part, above):
            return _below(part, parts[place + 1 :])
        above = part
    return None


def _below(top: str, parts: list[str]) -> PodProcess | None:
    stem = top.removesuffix(_SLICE)
    if parts and parts[0] in classes(top):
        stem = parts[0].removesuffix(_SLICE)
        parts = parts[1:]
    before, after = (f"{stem}-", _SLICE) if top.endswith(_SLICE) else ("", "")
    pattern = f"{re.escape(before)}pod({_UID}){re.escape(after)}"
    match = re.fullmatch(pattern, parts[0]) if parts else None
    if match is None:
        return None
    container = container_id(parts[1]) if len(parts) > 1 else None
    return PodProcess(pod_uid=_uid(match[1]), container_id=container)


def container_id(name: str) -> str | None:
    """Return the id of the container that a group in a pod's group is of, None if it is of none.

    CRI-O may put the container's monitor beside it (conmon_cgroup), in crio-conmon-<id>[.scope].
    """
    match = _CONTAINER.fullmatch(name)
    return None if match is None else match[1] or match[2]


def _uid(text: str) -> str:
    return text.replace("_", "-")


def container_names(*folders: Path) -> Mapping[str, ContainerName]:
    """Return the names of containers by id, from the first folder that exists; none without one.

    The kubelet makes a link for each container, for log collectors (pkg/kubelet/kuberuntime):

        <pod>_<namespace>_<container>-<container id>.log

    Only the links' names are read. The kubelet cuts a name that is too long for a file, and with it
    the id: such a container has no name here.
    """
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                links = [entry.name for entry, _ in zip(entries, range(_MOST_LINKS), strict=False)]
        except OSError:
            continue
        return {
            match["id"]: ContainerName(
                namespace=match["namespace"], pod=match["pod"], name=match["name"]
            )
            for match in map(_LINK.fullmatch, links)
            if match
        }
    return {}
