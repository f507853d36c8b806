"""Pods with GPUs that start one after another, and how long each of them took.

What an upgrade of the driver must not be seen in: no pod's first preparation fails, and none waits
as a kubelet makes it wait that has no driver to ask, which tries again after a minute or more.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from testbed.commands import wait_until

from e2e.scene import NAMESPACE, Scene

PATIENCE_S = 180
"""For one pod: longer than a kubelet waits that has failed once."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One pod: when it was made, and for how long it was waited until it ran."""

    pod: str
    made: float
    seconds: float

    def overlaps(self, span: Span) -> bool:
        """Whether any of the wait was within a span of time."""
        return self.made < span[1] and self.made + self.seconds > span[0]


@dataclass(slots=True, kw_only=True)
class Starts:
    """The pods that were started so far."""

    done: list[Start] = field(default_factory=list)
    loop: "Future[None]"

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more pods run that are yet to be made, or the loop has failed."""
        now = time.monotonic()

        def enough() -> bool:
            return self.loop.done() or sum(one.made > now for one in self.done) >= count

        wait_until(enough, f"{count} more pod starts", timeout=count * PATIENCE_S)

    def within(self, spans: list[Span]) -> list[list[Start]]:
        """The starts that overlap each span."""
        return [[one for one in self.done if one.overlaps(span)] for span in spans]

    def outside(self, spans: list[Span]) -> list[Start]:
        """The starts that overlap none."""
        return [one for one in self.done if not any(map(one.overlaps, spans))]


@contextmanager
def starting_pods(scene: Scene) -> Iterator[Starts]:
    """Start pods with GPUs meanwhile, one after another; yields what was started.

    A pod whose first preparation fails is an error at the end, though it runs a minute later.
    """
    template = scene.template("each")
    stop, warnings = threading.Event(), list[str]()

    def start() -> None:
        begun.wait()
        while not stop.is_set():
            made = time.monotonic()
            pod = scene.pod(f"each-{len(starts.done)}", templates=[template])
            scene.running(pod, timeout=PATIENCE_S)
            seconds = time.monotonic() - made
            events = scene.api.all("Event", NAMESPACE, fieldSelector=f"involvedObject.name={pod}")
            warnings.extend(
                f"{pod}: {event['reason']}: {event['message']}"
                for event in events
                if event["type"] == "Warning" and event["reason"] != "FailedScheduling"
            )
            scene.delete(pod)
            starts.done.append(Start(pod=pod, made=made, seconds=seconds))

    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        starts = Starts(loop=pool.submit(start))
        begun.set()
        try:
            yield starts
        finally:
            stop.set()
            starts.loop.result(timeout=PATIENCE_S + 60)
    assert warnings == []


def too_long(some: list[Start], usual: list[Start]) -> list[Start]:
    """Those of some that waited longer than load explains, which makes the usual ones wait too.

    A kubelet that has no driver to ask tries again after a minute or more.
    """
    limit = 2 * max(one.seconds for one in usual) + 30
    return [one for one in some if one.seconds > limit]


def summary(starts: list[Start]) -> str:
    """How many there were, with their median and the longest, for people."""
    seconds = [start.seconds for start in starts]
    return (
        f"{len(starts)} starts, median {statistics.median(seconds):.1f} s, "
        f"longest {max(seconds):.1f} s"
    )
