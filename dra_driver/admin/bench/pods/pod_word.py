"""What the API says of a pod: why it does not run, and how long its container ran. Pure.

In: a pod and its events as dicts. Out: a sentence, or a tenant of a case. The API tells moments of
containers in whole seconds, so a command that is over in a few of them is hardly measured.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dra_driver.admin.bench.model import Result, Tenant

JsonObject = Mapping[str, Any]


def why_not_running(pod: JsonObject, events: JsonObject) -> str:
    """Say the reason: of its last warning, of its container, or of its scheduling."""
    notes = [str(one.get("note", "")) for one in events.get("items") or []]
    status = pod.get("status", {})
    for one in status.get("containerStatuses") or []:
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("message"):
            notes.append(f"{waiting.get('reason', '')}: {waiting['message']}")
    if notes:
        return notes[-1]
    for one in status.get("conditions") or []:
        if one.get("status") == "False" and one.get("message"):
            return str(one["message"])
    return f"it is {status.get('phase', 'not known')}"


def has_begun(pod: JsonObject) -> bool:
    """Whether its container runs or has ended, or the pod never will run it."""
    status = pod.get("status", {})
    states = [one.get("state", {}) for one in status.get("containerStatuses") or []]
    is_over = status.get("phase") in ("Succeeded", "Failed")
    return is_over or any("running" in one or "terminated" in one for one in states)


def ended_seconds(number: int, pod: JsonObject) -> Tenant:
    """Return a tenant whose work was a command of the user's own."""
    for one in pod.get("status", {}).get("containerStatuses") or []:
        ended = one.get("state", {}).get("terminated")
        if ended is None:
            continue
        code = int(ended.get("exitCode", 1))
        if code != 0:
            reason = str(ended.get("reason", ""))
            said = f" ({reason})" if reason not in ("", "Error") else ""
            message = " ".join(str(ended.get("message", "")).split())
            more = f": {message}" if message else ""
            return Tenant(number=number, failure=f"its exit status was {code}{said}{more}")
        took = (_moment(ended["finishedAt"]) - _moment(ended["startedAt"])).total_seconds()
        took = max(took, 1.0)
        return Tenant(
            number=number,
            result=Result(throughput=1 / took, unit="runs", seconds=took, exit_status=code),
        )
    status = pod.get("status", {})
    if status.get("phase") == "Failed":  # by the kubelet: evicted, or its time was over
        said = status.get("message") or status.get("reason") or "nobody says why"
        return Tenant(number=number, failure=f"its pod failed: {said}")
    return Tenant(number=number, failure="it had not ended in time: give it more by --seconds")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
