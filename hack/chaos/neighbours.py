"""The well-behaved tenants of a soak: each holds a pod all the time, and starts and ends others.

What they notice of a hostile neighbour is recorded, a sentence each.
"""

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from testbed import mps
from testbed.api import ApiStatusError, Object
from testbed.claims import claim, gpu_config, mig_profile
from testbed.commands import TestbedError, wait_until
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode
from testbed.pods import is_ready

from chaos.greed import GREEDY_MIB, MODEST_MIB, computing
from chaos.odd_claims import only, with_configs
from chaos.workloads import MIG_CLASS, NAMESPACE, SHARE_CLASS, pod_of

MOST_S = 45.0
"""Seconds that no start may take: after a failure a kubelet waits a minute or more."""

_LEAST_S = 30.0
"""Seconds that every start may take: a busy machine needs twenty, with or without attacks."""

_FACTOR = 5.0
_BACK_S = 20.0
_TOLD_S = 15.0
"""Seconds until a claim's status is written: usually it takes one."""

_PATIENCE_S = 150.0
"""Seconds to wait for a start: longer than a kubelet's pause after a failure."""


@dataclass(slots=True)
class Noticed:
    """What tenants noticed, each thing once. For any thread."""

    things: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, thing: str) -> None:
        """Record a thing."""
        with self._lock:
            if thing not in self.things:
                self.things.append(thing)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant: what its long-running pod claims, and what its short-lived pods claim."""

    name: str
    stays: Object
    comes: tuple[Object, ...]
    gpu: str = ""
    """The GPUs of which its long-running pod has memory."""

    mib: int = 0


def tenants(gpus: Sequence[str]) -> tuple[Tenant, ...]:
    """The three tenants; `gpus` are theirs by UUID: two in turn, one for MIG, one for shares."""
    first, second, parent, shared = gpus
    long = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    whole = claim("", selectors=only([second]))
    slice_ = [*mig_profile("1g.10gb"), *only([parent], "parentUUID")]
    mig = claim("", device_class=MIG_CLASS, selectors=slice_)
    share = claim("", device_class=SHARE_CLASS, selectors=only([shared]))
    stays = with_configs(claim("", selectors=only([first])), long)
    return (
        Tenant("turns", stays, (whole, with_configs(whole, long)), first, GREEDY_MIB),
        Tenant("mig", mig, (mig,)),
        Tenant("mps", share, (share,), shared, MODEST_MIB),
    )


class Neighbour:
    """One tenant at work on a node."""

    def __init__(self, node: GpuNode, tenant: Tenant, noticed: Noticed, seed: int) -> None:
        self._node = node
        self._api = node.cluster.api
        self._tenant = tenant
        self._noticed = noticed
        self._chance = random.Random(f"{tenant.name} {seed}")  # noqa: S311
        self._stays = f"{tenant.name}-stays"
        self._number = 0
        self._before: object = None
        self._memory = ExitStack()
        self.calm: list[float] = []
        """Seconds that its pods' starts took without the hostile tenant."""

        self.starts: list[float] = []
        """The same with the hostile tenant."""

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self._tenant.name

    @property
    def bound(self) -> float:
        """Seconds that a start may take: several times the longest without the hostile tenant."""
        return min(MOST_S, max(_LEAST_S, _FACTOR * max(self.calm)))

    def settle(self, starts: int) -> None:
        """Start the long-running pod, and some others, before the hostile tenant begins."""
        self._make(self._stays, self._tenant.stays)
        self._start(self._stays)
        self._before = self._facts()
        if self._tenant.gpu:
            pod = self._api.get("Pod", self._stays, NAMESPACE)
            own, by_mps = self._tenant, self._tenant.name == "mps"
            self._memory.enter_context(computing(self._node, pod, own.gpu, own.mib, by_mps=by_mps))
        for _ in range(starts):
            self.calm.append(self._come_and_go())

    def work(self, stopping: threading.Event) -> None:
        """Start and end pods until told to stop; check the long-running one meanwhile."""
        while not stopping.is_set():
            try:
                seconds = self._come_and_go()
                self.starts.append(seconds)
                if seconds > self.bound:
                    self._notice(f"a pod took {seconds:.0f} s to start, {self.bound:.0f} at most")
                if (facts := self._facts()) != self._before:
                    self._notice(f"its long-running pod was {self._before}, and is {facts}")
                    self._before = facts
                self._check(self._stays)
            except (TestbedError, ApiStatusError, OSError) as error:
                self._notice(str(error))
                self._drop(f"{self._tenant.name}-{self._number}")

    def end(self) -> None:
        """Delete the long-running pod, and check whether its devices are given back."""
        self._memory.close()
        self._end(self._stays)

    def _notice(self, what: str) -> None:
        self._noticed.add(f"{time.strftime('%H:%M:%S')} tenant {self.name}: {what}")

    def _come_and_go(self) -> float:
        self._number += 1
        name = f"{self._tenant.name}-{self._number}"
        self._make(name, self._chance.choice(self._tenant.comes))
        seconds = self._start(name)
        self._check(name)
        time.sleep(self._chance.uniform(0, 3))
        self._end(name)
        return seconds

    def _make(self, name: str, body: Object) -> None:
        self._api.create(body | {"metadata": {"name": name}}, NAMESPACE)
        self._api.create(pod_of(name, name), NAMESPACE)

    def _start(self, name: str) -> float:
        """Wait until a pod is ready; return the seconds."""
        began = time.monotonic()
        wait_until(
            lambda: is_ready(self._api.get("Pod", name, NAMESPACE)),
            f"{name} to run",
            timeout=_PATIENCE_S,
        )
        return time.monotonic() - began

    def _end(self, name: str) -> None:
        """Delete a pod and its claim, and wait until its devices are given back."""
        uid = self._api.get("ResourceClaim", name, NAMESPACE)["metadata"]["uid"]
        self._drop(name)
        wait_until(
            lambda: not self._api.find("Pod", name, NAMESPACE), f"{name} to go", timeout=_PATIENCE_S
        )
        place = self._node.place
        wait_until(
            lambda: uid not in " ".join((*place.records(), *place.marks(), *place.cdi_files())),
            f"what {name} had to be given back",
            timeout=_BACK_S,
        )

    def _drop(self, name: str) -> None:
        self._api.delete("Pod", name, NAMESPACE)
        self._api.delete("ResourceClaim", name, NAMESPACE)

    def _check(self, name: str) -> None:
        """Record what the API server wrongly says about a pod and its claim."""
        about = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
        for event in self._api.all("Event", NAMESPACE, **about):
            self._notice(f"{event.get('reason')} of {name}: {event.get('message')}")
        wait_until(
            lambda: self._is_well(name),
            f"the status of claim {name} to say that it is ready and healthy",
            timeout=_TOLD_S,
        )

    def _is_well(self, name: str) -> bool:
        """Whether all devices are healthy according to the status of claim and pod."""
        stored = self._api.get("ResourceClaim", name, NAMESPACE)["status"]
        devices = [each for each in stored.get("devices", []) if each["driver"] == DRIVER_NAME]
        statuses = self._api.get("Pod", name, NAMESPACE)["status"].get("containerStatuses", [])
        told = [
            each.get("health", "Healthy")
            for status in statuses
            for container in status.get("allocatedResourcesStatus", [])
            for each in container.get("resources", [])
        ]
        said = [
            {each["type"]: each["status"] for each in device.get("conditions", [])}
            for device in devices
        ]
        well = {"Ready": "True", "Healthy": "True"}
        return bool(said) and all(health == well for health in said) and set(told) <= {"Healthy"}

    def _facts(self) -> object:
        """What must not change for the long-running pod: its container, and its MPS daemon."""
        (status,) = self._api.get("Pod", self._stays, NAMESPACE)["status"]["containerStatuses"]
        uid = self._api.get("ResourceClaim", self._stays, NAMESPACE)["metadata"]["uid"]
        members = self._node.place.mps.glob(f"members/*/{uid}")
        domains = {path.parent.name for path in members}
        processes = mps.processes(self._node.place.plugins)
        daemons = sorted(pid for pid, domain in processes.items() if domain in domains)
        return status["containerID"], status["restartCount"], daemons
