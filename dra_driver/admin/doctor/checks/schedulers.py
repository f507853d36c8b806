"""Schedulers besides Kubernetes' own, and which published slices they cannot handle.

KAI-Scheduler and Kueue are recognised by the API groups of their CRDs; KAI-Scheduler's version by
its operator's image (KAI-Scheduler#2100). docs/works-with.md has more. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dra_driver.admin.doctor.checks.finding import Seen, info, ok, warning
from dra_driver.admin.doctor.facts.cluster_facts import containers
from dra_driver.host.words import count, named
from dra_driver.kube.fields import Object, mapping, objects, text

KAI_GROUP = "kai.scheduler"
KUEUE_GROUP = "kueue.x-k8s.io"

KAI_LAST_WITHOUT_COUNTERS = 0, 17, 0
"""The last release whose allocator does not support counters (its issue 2100)."""

_KAI_OPERATOR = "kai-operator"
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)\.([0-9]+)")


class Kai(Struct, frozen=True, kw_only=True):
    """KAI-Scheduler; `version` is its image's tag, empty if unknown."""

    version: str = ""

    @property
    def name(self) -> str:
        """Its name, with the version if that is known."""
        return f"KAI-Scheduler {self.version}".rstrip()

    @property
    def knows_counters(self) -> bool:
        """Whether it is known to be new enough to support counters."""
        match = _VERSION.match(self.version)
        return match is not None and (
            tuple(int(number) for number in match.groups()) > KAI_LAST_WITHOUT_COUNTERS
        )


def kai_version(deployments: Iterable[Object]) -> str:
    """Return the version of KAI-Scheduler by its operator's image; empty if none is found."""
    for deployment in deployments:
        if text(deployment, "metadata", "name") == _KAI_OPERATOR:
            for container in containers(deployment):
                _, colon, tag = text(container, "image").partition("@")[0].rpartition(":")
                if colon and "/" not in tag:
                    return tag
    return ""


def judged(*, kai: Kai | None, kueue: bool, slices: Sequence[Object]) -> Iterator[Seen]:
    """Check whether the installed schedulers can handle the published devices."""
    if kai is not None:
        yield _of_kai(kai, slices)
    if kueue:
        yield info(
            "Kueue is installed, and admits no workload with a claim for a DeviceClass that its "
            "Configuration does not map",
            "map the driver's DeviceClasses in deviceClassMappings, by count or by the counter "
            "memory: docs/works-with.md#kueue",
        )
    if kai is None and not kueue:
        yield ok("neither KAI-Scheduler nor Kueue is installed")


def _of_kai(kai: Kai, slices: Sequence[Object]) -> Seen:
    nodes: set[str] = set()
    devices = 0
    for slice_ in slices:
        spec = mapping(slice_, "spec")
        consuming = [
            device for device in objects(spec, "devices") if device.get("consumesCounters")
        ]
        if consuming:
            nodes.add(text(slice_, "spec", "nodeName"))
            devices += len(consuming)
    if not devices:
        return ok(f"{kai.name} is installed, and no published device consumes counters")
    if kai.knows_counters:
        return info(
            f"{kai.name} is installed; it places pods on the devices of {named(sorted(nodes))}"
            " that consume counters only with the feature gate DRAPartitionableDevices, and "
            "counts each as a GPU in its queues",
            "set feature-gates in the args of its SchedulingShards; if its queues' quotas should "
            "count whole GPUs, offer only these there (--mig=existing, and no shares): "
            "docs/works-with.md#kai-scheduler",
        )
    last = ".".join(map(str, KAI_LAST_WITHOUT_COUNTERS))
    return warning(
        f"{kai.name} is installed, and up to {last} it places no pod on a device that consumes "
        f"counters: {count(devices, 'device')} of {named(sorted(nodes))}",
        f"update it to a release after {last}, or offer no counters there (--mig=existing, "
        "--whole-gpus-beside-shares=never): docs/works-with.md#kai-scheduler",
    )
