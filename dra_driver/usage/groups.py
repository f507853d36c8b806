"""Which pod and container a process belongs to: the text of /proc/PID/cgroup, read strictly. Pure.

In: that text, of cgroup v1, v2, or both. Out: the pod's UID and the container's id, or nothing. The
kubelet and the container runtime make the upper part of a path, and a tenant can only make groups
below its own container's. So a path is read from its top, and ends at the first container:

    cgroupfs  [/…]/kubepods[/burstable|/besteffort]/pod<uid>/[crio-]<id>
    systemd   [/…]/[<root>-]kubepods.slice[/…-<class>.slice]/…-pod<uid with _ for ->.slice/
              cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope
    a runtime without systemd below a kubelet with it
              /…/kubepods[-<class>]-pod<uid with _ for ->.slice:cri-containerd:<id>

What users of the node itself may make groups in (`user.slice`) is no pod's, whatever it is called.
Where the paths of several hierarchies name different pods, none of them is believed.
"""

import re
from dataclasses import dataclass

LONGEST_TEXT = 64 * 1024

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_ID = "[0-9a-f]{64}"
_CLASSES = ("burstable", "besteffort")
_POD = re.compile(f"pod({_UID})")
_CONTAINER = re.compile(
    f"(?:crio-)?({_ID})|(?:cri-containerd|crio|docker)-({_ID})\\.scope", re.ASCII
)
_FLAT = re.compile(
    rf"(?:[A-Za-z0-9_.-]+-)?kubepods(?:-burstable|-besteffort)?-pod({_UID})\.slice"
    rf":(?:cri-containerd|crio|docker):({_ID})"
)
_PODS = "kubepods"
_SLICE = ".slice"
_OF_USERS = frozenset({"user.slice", "machine.slice"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProcess:
    """The pod and the container of a process. A process of a pod may be in none of its containers.

    The UID of a static pod is a hash of 32 characters.
    """

    pod_uid: str
    container_id: str | None


def pod_process(text: str) -> PodProcess | None:
    """Return the pod and container that the text of a /proc/PID/cgroup is about, None for none."""
    found = {one for line in text.split("\n") if (one := _of_path(line.split(":", 2)[-1]))}
    if len({one.pod_uid for one in found}) != 1:
        return None
    containers = {one.container_id for one in found if one.container_id is not None}
    (uid,) = {one.pod_uid for one in found}
    return PodProcess(pod_uid=uid, container_id=containers.pop() if len(containers) == 1 else None)


def _of_path(path: str) -> PodProcess | None:
    parts = path.split("/")
    if parts[0] != "" or ".." in parts:
        return None  # of another namespace of control groups, where names mean something else
    above = ""
    for place, part in enumerate(parts[1:], start=1):
        if part in _OF_USERS:
            return None
        if match := _FLAT.fullmatch(part):
            return PodProcess(pod_uid=_uid(match[1]), container_id=match[2])
        if _is_top(part, above):
            return _below(part, parts[place + 1 :])
        above = part
    return None


def _is_top(part: str, above: str) -> bool:
    """Tell whether a group is the one of all pods; systemd puts the slices above into its name."""
    if part == _PODS:
        return True
    return part.endswith(_SLICE) and part.removesuffix(_SLICE) in (
        _PODS,
        f"{above.removesuffix(_SLICE)}-{_PODS}",
    )


def _below(top: str, parts: list[str]) -> PodProcess | None:
    """Read what is below the group of all pods."""
    is_slice = top.endswith(_SLICE)
    stem = top.removesuffix(_SLICE)
    if parts and parts[0] in [_child(stem, name, is_slice=is_slice) for name in _CLASSES]:
        stem = parts[0].removesuffix(_SLICE)
        parts = parts[1:]
    if not parts:
        return None
    name = parts[0]
    if is_slice:
        if not (name.startswith(f"{stem}-") and name.endswith(_SLICE)):
            return None
        name = name.removeprefix(f"{stem}-").removesuffix(_SLICE)
    match = _POD.fullmatch(name)
    if match is None:
        return None
    container = _CONTAINER.fullmatch(parts[1]) if len(parts) > 1 else None
    return PodProcess(
        pod_uid=_uid(match[1]),
        container_id=(container[1] or container[2]) if container else None,
    )


def _child(stem: str, name: str, *, is_slice: bool) -> str:
    return f"{stem}-{name}{_SLICE}" if is_slice else name


def _uid(text: str) -> str:
    return text.replace("_", "-")
