"""Measures how fast the scheduler places waiting pods.

The scheduler is frozen (SIGSTOP) while pods and claims are made, so that their creation is not
measured. The clock runs from the scheduler's continuation until the last pod is bound.
"""

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from testbed.api import Object
from testbed.commands import wait_until
from testbed.pods import PODS

from bench.fleet.loads import NAMESPACE, Workload, pod
from bench.fleet.stage import AT_ONCE, Stage
from bench.timings import cpu_seconds
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig

_TIDY_S = 300.0
PATIENCE_S = 300.0
"""Seconds to wait for pods without a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A point in time: a clock, and the CPU seconds of each component."""

    at: float
    cpu: Mapping[str, float]


def start_scheduler(stage: Stage) -> None:
    """Start the scheduler and wait until it has seen all slices: it places a pod only then."""
    stage.cluster.start("kube-scheduler")
    stage.api.create(pod("first", {}), NAMESPACE)
    wait_until(
        lambda: stage.api.get("Pod", "first", NAMESPACE)["spec"].get("nodeName"),
        "the scheduler to place a first pod",
        timeout=_TIDY_S,
    )
    _remove(stage)


def place(stage: Stage, work: Workload) -> Object:
    """Create a load, wait until it is placed, and remove it; return how long the placing took."""
    with closing(from_kubeconfig(stage.kubeconfig)) as client:
        with _frozen(stage.cluster.pid("kube-scheduler")):
            _create(stage, work)
            version = _version(client)
            before = _now(stage)
        count = 0
        for _ in bound(client, version, PATIENCE_S):
            count += 1
            if count == len(work.pods):
                break
        after = _now(stage)
    _remove(stage)
    return placed(before, after, count, len(work.pods))


def placed(before: Taken, after: Taken, count: int, pods: int) -> Object:
    """Return how long a load took; if not all of its pods were placed, only how many were."""
    taken: Object = {"pods": pods, "placed": count}
    if count < pods:
        return taken
    seconds = after.at - before.at
    return taken | {
        "seconds": round(seconds, 2),
        "pods_per_second": round(count / seconds, 2),
        "cpu_ms_per_pod": {
            name: round(1000 * (after.cpu[name] - before.cpu[name]) / count, 1)
            for name in after.cpu
        },
    }


def _now(stage: Stage) -> Taken:
    cpu = {name: cpu_seconds(pid) for name, pid in stage.pids().items()}
    return Taken(at=time.perf_counter(), cpu=cpu)


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _create(stage: Stage, work: Workload) -> None:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="create") as pool:
        for things in (work.claims, work.pods):
            list(pool.map(lambda thing: stage.api.create(thing, NAMESPACE), things))


def _version(client: KubeClient) -> str:
    """Return the version from which a watch sees changes of pods from now on."""
    metadata = client.list(PODS, query={"limit": "1"}, timeout=30)["metadata"]
    return str(metadata["resourceVersion"]) if isinstance(metadata, dict) else ""


def bound(client: KubeClient, version: str, patience: float) -> Iterator[str]:
    """Yield the names of pods as they get a node, until time is up.

    A busy API server ends watches before their time. The next one begins where the last one ended.
    """
    end = time.monotonic() + patience
    seen = set()
    while (left := end - time.monotonic()) > 0:
        query = {"resourceVersion": version, "timeoutSeconds": str(math.ceil(left))}
        for event in client.watch(PODS, query=query):
            changed: Object = event["object"]  # type: ignore[assignment]  # the stream checked it
            version = changed["metadata"]["resourceVersion"]
            name = changed["metadata"].get("name")
            if event["type"] == "MODIFIED" and changed["spec"].get("nodeName") and name not in seen:
                seen.add(name)
                yield name


def _remove(stage: Stage) -> None:
    """Remove pods and claims; the controller manager takes the allocations back."""
    api = stage.api
    for kind in ("Pod", "ResourceClaim"):
        api.delete_all(kind, NAMESPACE)
    wait_until(
        lambda: not api.all("Pod", NAMESPACE) and not api.all("ResourceClaim", NAMESPACE),
        "pods and claims to be gone",
        timeout=_TIDY_S,
        interval=0.5,
    )
