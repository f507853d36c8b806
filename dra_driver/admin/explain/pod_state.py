"""What a pod's status shows: that no scheduler handled it, or why its containers do not start.

A container's state has the reason why it waits, and the state before shows how it ended; a
runtime's messages name the file or the CDI device that is missing. Pure.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from dra_driver.kube.fields import Object, mapping, number, objects, text

_DEFAULT_SCHEDULER = "default-scheduler"
_PATIENCE = timedelta(minutes=1)
"""How long the cluster's own scheduler may take to handle a new pod."""

_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_NO_FILE = re.compile(r"no such file or directory", re.IGNORECASE)
_MOUNTED = re.compile(r'mounting "(/[^"]+)"')
_PATH = re.compile(r"(?<![\w./=-])/[^\s\"'`:,;)]+")


class Finding(Struct, frozen=True, kw_only=True):
    """An obstacle. `advice` lists possible changes; any one helps."""

    title: str
    details: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def unseen(pod: Object, now: datetime) -> str:
    """Return that no scheduler has handled a pod, by its status; empty if one has, or may yet.

    A scheduler that finds no node sets the condition PodScheduled.
    """
    conditions = [text(each, "type") for each in objects(pod, "status", "conditions")]
    if "PodScheduled" in conditions or text(pod, "status", "phase") not in ("", "Pending"):
        return ""
    scheduler = scheduler_of(pod)
    seen = f"no scheduler named {scheduler} has handled the pod: "
    if scheduler != _DEFAULT_SCHEDULER:
        return f"{seen}run it, or create the pod again without spec.schedulerName"
    made = text(pod, "metadata", "creationTimestamp")
    if not made or now - datetime.fromisoformat(made) < _PATIENCE:
        return ""
    return f"{seen}check that kube-scheduler runs"


def scheduler_of(pod: Object) -> str:
    """Return the name of the scheduler that should place a pod."""
    return text(pod, "spec", "schedulerName") or _DEFAULT_SCHEDULER


def not_started(pod: Object) -> Iterator[Finding]:
    """Yield which containers of a pod on its node do not start, or do not stay up, and why."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for status in objects(pod, "status", kind):
            if finding := _of_container(pod, status):
                yield finding


def _of_container(pod: Object, status: Object) -> Finding | None:
    waiting = mapping(status, "state", "waiting")
    ended = mapping(status, "lastState", "terminated") or mapping(status, "state", "terminated")
    reason = text(waiting, "reason")
    failed = text(ended, "reason") in _NOT_STARTED
    if reason in _USUAL and not (failed and mapping(status, "state", "terminated")):
        return None
    name = text(status, "name")
    details = [text(waiting, "message")]
    if ended and text(ended, "message") != details[0]:
        code, how = number(ended, "exitCode"), text(ended, "reason")
        why = f": {message}" if (message := text(ended, "message")) else ""
        details.append(f"it last ended with exit code {code} ({how}){why}")
    details = [" ".join(detail.split()) for detail in details if detail]
    return Finding(
        title=f"container {name} does not start or stay up: {reason or text(ended, 'reason')}",
        details=tuple(details),
        advice=tuple(_advice(pod, name, reason, " ".join(details))),
    )


def _advice(pod: Object, container: str, reason: str, messages: str) -> Iterator[str]:
    node = text(pod, "spec", "nodeName")
    if file := missing_file(messages):
        yield (
            f"{node} has no {file}, which the container should get: run `dra-driver doctor` there; "
            "after an update of the GPU driver, restart this driver's pod there, which writes the "
            "CDI specs of claims again"
        )
    elif "CDI device" in messages:
        yield f"the runtime does not find the claim's devices: run `dra-driver doctor` on {node}"
    elif "Image" in reason:
        yield "correct the image's name, or the pull secret"
    elif reason == "CrashLoopBackOff":
        where = f"--namespace {text(pod, 'metadata', 'namespace')} {text(pod, 'metadata', 'name')}"
        yield f"read its log: kubectl logs {where} --container {container} --previous"


def missing_file(message: str) -> str:
    """Return the node's file that a runtime did not find; empty if it is a program of the image."""
    end = _NO_FILE.search(message)
    if end is None or "exec: " in message:
        return ""
    if mounted := _MOUNTED.search(message):
        return mounted[1]
    paths = [path for path in _PATH.findall(message[: end.start()]) if "/proc/" not in path]
    return paths[-1] if paths else ""
