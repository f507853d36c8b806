"""What the API reports about a pod: why it does not run, and how long its container ran. Pure.

The API reports times of containers in whole seconds, so the time of a very short command is
imprecise.
"""

from datetime import datetime

from dra_driver.bench.model import Result, Tenant
from dra_driver.errors import SetupError
from dra_driver.kube.fields import Object, mapping, number, objects, text

_OVER = ("Succeeded", "Failed")
_MOST_BYTES = 4096
_PULL_SECONDS = 20.0
"""How long an image may fail to be pulled: the kubelet tries again after 10 s."""
_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff"})


def phase(pod: Object) -> str:
    """Return the phase of a pod; empty for none that is known."""
    return text(pod, "status", "phase")


def is_over(pod: Object) -> bool:
    """Whether its container will not run, or not again."""
    return phase(pod) in _OVER


def why_not_running(pod: Object, events: Object) -> str:
    """Return the reason: of its last warning, of its container, or of its scheduling."""
    notes = [text(item, "note") for item in objects(events, "items")]
    notes += [f"{reason}: {message}" for reason, message in _waiting(pod) if message]
    if notes:
        return notes[-1]
    for condition in objects(pod, "status", "conditions"):
        if text(condition, "status") == "False" and (message := text(condition, "message")):
            return message
    return f"it is {phase(pod) or 'not known'}"


def why_not_pulled(pod: Object, seconds: float) -> str:
    """Return why a pod's image is not there `seconds` after its creation; empty if it may come."""
    over = _NEVER_PULLED | (_NOT_PULLED if seconds > _PULL_SECONDS else frozenset())
    return next((f"{reason}: {said}" for reason, said in _waiting(pod) if reason in over), "")


def termination_message(pod: Object) -> str:
    """Return the container's termination message. Raises SetupError if it is cut off."""
    for container in _containers(pod):
        message = text(mapping(container, "state", "terminated"), "message")
        if len(message.encode()) >= _MOST_BYTES:
            raise SetupError(
                f"the command's output has {_MOST_BYTES} bytes or more, which the API does not "
                "show: make it print its latencies, or fewer lines"
            )
        return message
    return ""


def ended_seconds(tenant: int, pod: Object) -> Tenant:
    """Return a tenant whose work was a user's own command."""
    for container in _containers(pod):
        ended = mapping(container, "state", "terminated")
        if not ended:
            continue
        code = number(ended, "exitCode", default=1)
        if code != 0:
            reason = text(ended, "reason")
            said = f" ({reason})" if reason not in ("", "Error") else ""
            message = " ".join(text(ended, "message").split())
            more = f": {message}" if message else ""
            return Tenant(number=tenant, failure=f"its exit status was {code}{said}{more}")
        began, end = (
            datetime.fromisoformat(text(ended, name)) for name in ("startedAt", "finishedAt")
        )
        took = max((end - began).total_seconds(), 1.0)
        return Tenant(
            number=tenant,
            result=Result(throughput=1 / took, unit="runs", seconds=took, exit_status=code),
        )
    if phase(pod) == "Failed":  # by the kubelet: evicted, or its time was over
        status = mapping(pod, "status")
        said = text(status, "message") or text(status, "reason") or "no reason is given"
        return Tenant(number=tenant, failure=f"its pod failed: {said}")
    return Tenant(number=tenant, failure="it did not end in time: give it more time with --seconds")


def _waiting(pod: Object) -> list[tuple[str, str]]:
    """Return why containers have not started: reasons, with messages."""
    found = [mapping(container, "state", "waiting") for container in _containers(pod)]
    return [(text(waiting, "reason"), text(waiting, "message")) for waiting in found]


def _containers(pod: Object) -> tuple[Object, ...]:
    return objects(pod, "status", "containerStatuses")
