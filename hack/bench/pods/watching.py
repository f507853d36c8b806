"""When things happened to pods and their claims, as a client of the API server sees it.

In: the events of two watches, of pods and of claims. Out: seconds since 1970 for each mark of a
pod, and what a pod's claims are. The API's own timestamps have whole seconds only. A claim belongs
to the pod that its owner reference names, be it made of a template or by the scheduler.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from testbed.api import Object
from testbed.commands import TestbedError
from testbed.pods import PODS

from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import Resource
from dra_driver.kube.watch import Changed, Listed, Watch

CLAIMS = Resource(group="resource.k8s.io", version="v1", plural="resourceclaims", namespaced=True)


class Mark(StrEnum):
    """What happens to a pod; `Seen.at` says when."""

    CREATED = "created"
    CLAIMED = "claimed"
    """Its claim is there."""
    ALLOCATED = "allocated"
    """Its claim has a device."""
    SCHEDULED = "scheduled"
    RUNNING = "running"
    """The API says that its container runs."""
    DELETED = "deleted"
    """The API server has taken the request to delete it."""
    GONE = "gone"
    """It is no more in the API."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What is known of one pod: when each mark was, and its claim's UID."""

    at: dict[Mark, float] = field(default_factory=dict)
    claim: str = ""


class Sightings:
    """What was seen of all pods, by name. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._seen: dict[str, Seen] = {}

    def of(self, pod: str) -> Seen:
        """What was seen of a pod so far."""
        with self._changed:
            return self._of(pod)

    def mark(self, pod: str, mark: Mark) -> None:
        """Note that something has happened to a pod just now; the first time counts."""
        with self._changed:
            self._of(pod).at.setdefault(mark, self._clock())
            self._changed.notify_all()

    def missing(self, pods: Iterable[str], mark: Mark) -> list[str]:
        """The pods to which something has not happened yet."""
        with self._changed:
            return [pod for pod in pods if mark not in self._of(pod).at]

    def wait(self, pods: Iterable[str], mark: Mark, seconds: float) -> list[str]:
        """Wait until something has happened to all pods; return those to which it has not."""
        names = tuple(pods)
        with self._changed:
            self._changed.wait_for(lambda: not self.missing(names, mark), seconds)
            return self.missing(names, mark)

    def tell_pods(self, told: Listed | Changed) -> None:
        """Take what a watch of pods tells."""
        if isinstance(told, Listed):  # the start, or after a gap in the watch
            there = {_name(pod) for pod in told.items}
            with self._changed:
                known = [name for name, one in self._seen.items() if Mark.SCHEDULED in one.at]
            for name in known:
                if name not in there:
                    self.mark(name, Mark.GONE)
            for pod in told.items:
                self._tell_pod(pod)
        elif told.type == "DELETED":
            self.mark(_name(told.object), Mark.GONE)
        else:
            self._tell_pod(told.object)

    def tell_claims(self, told: Listed | Changed) -> None:
        """Take what a watch of claims tells."""
        for claim in told.items if isinstance(told, Listed) else (told.object,):
            self._tell_claim(claim)

    def _tell_pod(self, pod: Object) -> None:
        if pod["spec"].get("nodeName"):
            self.mark(_name(pod), Mark.SCHEDULED)
        statuses = pod.get("status", {}).get("containerStatuses", [])
        if any("running" in status.get("state", {}) for status in statuses):
            self.mark(_name(pod), Mark.RUNNING)

    def _tell_claim(self, claim: Object) -> None:
        metadata = claim["metadata"]
        for owner in metadata.get("ownerReferences", []):
            if owner["kind"] != "Pod":
                continue
            self.mark(owner["name"], Mark.CLAIMED)
            with self._changed:
                self._of(owner["name"]).claim = metadata["uid"]
            if claim.get("status", {}).get("allocation"):
                self.mark(owner["name"], Mark.ALLOCATED)

    def _of(self, pod: str) -> Seen:
        return self._seen.setdefault(pod, Seen())


def _name(pod: Mapping[str, object]) -> str:
    metadata: Object = pod["metadata"]  # type: ignore[assignment]  # every object has it
    return str(metadata["name"])


@contextmanager
def watching(kubeconfig: Path, namespace: str) -> Iterator[Sightings]:
    """Watch the pods and claims of a namespace for as long as the body runs.

    Raises TestbedError if a watch did not end.
    """
    sightings = Sightings()
    selectors = {"fieldSelector": f"metadata.namespace={namespace}"}
    with closing(from_kubeconfig(kubeconfig)) as client:
        watches = [
            Watch(
                client,
                resource,
                selectors=selectors,
                tell=tell,
                clock=time.monotonic,
                random=random.random,
            )
            for resource, tell in (
                (PODS, sightings.tell_pods),
                (CLAIMS, sightings.tell_claims),
            )
        ]
        for watch in watches:
            watch.start()
        try:
            yield sightings
        finally:
            ended = [watch.stop(10) for watch in watches]
    if not all(ended):
        raise TestbedError("a watch of the API server did not end within 10 s")
