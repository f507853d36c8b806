"""What a test puts on the cluster and asks of it; at the end it checks that nothing is left.

All scenes share a namespace, since making one takes longer than most tests.
"""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from testbed import mps
from testbed.api import Api, Object
from testbed.commands import TestbedError, wait_until
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode
from testbed.pods import container, explain, gpus_seen, make_namespace, wait_gone, wait_running

NAMESPACE = "e2e"

_SETTLED_S = 2.0  # the driver looks at its GPUs once a second here, and writes at once

_numbers = itertools.count(1)


class Scene:
    """Pods and claims of one test. Names that tests use get a number, so that none comes twice."""

    def __init__(self, node: GpuNode) -> None:
        self.node = node
        self.api: Api = node.cluster.api
        self._number = next(_numbers)
        self._made: list[Object] = []
        self._slices = slice_facts(self.api)
        self._settings = node.machine.settings()

    @staticmethod
    def prepare(node: GpuNode) -> None:
        """Make the namespace of all scenes, if it lacks, and wait until pods can be made in it."""
        if node.cluster.api.find("Namespace", NAMESPACE, None) is None:
            make_namespace(node.cluster.api, NAMESPACE)

    def name(self, name: str) -> str:
        """The name in the cluster of what this scene calls `name`."""
        return f"{name}-{self._number}"

    # Making things

    def claim(self, name: str = "claim", **request: object) -> str:
        """Make a ResourceClaim for `request`; return its name."""
        return self.make("ResourceClaim", name, {"spec": claim_spec(**request)})

    def template(self, name: str = "template", **request: object) -> str:
        """Make a ResourceClaimTemplate; return its name."""
        return self.make("ResourceClaimTemplate", name, {"spec": {"spec": claim_spec(**request)}})

    def pod(
        self,
        name: str = "pod",
        *,
        claims: Sequence[str] = (),
        templates: Sequence[str] = (),
        containers: Sequence[str] = ("ctr",),
        limits: Mapping[str, int] | None = None,
        **more: object,
    ) -> str:
        """Make a pod all of whose containers have all of its claims; return its name."""
        sources = [{"resourceClaimName": claim} for claim in claims]
        sources += [{"resourceClaimTemplateName": template} for template in templates]
        entries = [{"name": f"gpus-{number}", **one} for number, one in enumerate(sources)]
        resources: Object = {"claims": [{"name": entry["name"]} for entry in entries]}
        if limits:
            resources["limits"] = {resource: str(count) for resource, count in limits.items()}
        spec = {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": entries,
            "containers": [container(one, resources) for one in containers],
            **more,
        }
        return self.make("Pod", name, {"spec": spec})

    def delete(self, *pods: str) -> None:
        """Delete pods and wait until they are gone."""
        for pod in pods:
            self.api.delete("Pod", pod, NAMESPACE)
        wait_gone(self.api, NAMESPACE, pods)

    def again(self) -> None:
        """Make everything once more, after it was deleted: same names, new objects."""
        for thing in self._made:
            self.api.create(thing, NAMESPACE)

    def make(self, kind: str, name: str, body: Mapping[str, object]) -> str:
        """Make a Pod, Deployment, ResourceClaim or template of one; return its name there."""
        version = {"Pod": "v1", "Deployment": "apps/v1"}.get(kind, "resource.k8s.io/v1")
        full = self.name(name)
        metadata = {"name": full}
        thing = {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
        self.api.create(thing, NAMESPACE)
        self._made.append(thing)
        return full

    # Asking

    def running(self, *pods: str, timeout: float = 120) -> list[Object]:
        """Wait until the pods run; return them as the API has them."""
        return wait_running(self.api, NAMESPACE, pods, timeout=timeout)

    def gpus(self, pod: str, ctr: str = "ctr") -> tuple[str, ...]:
        """The UUIDs that `nvidia-smi -L` lists in a container."""
        return gpus_seen(self.node.cluster, pod, ctr, NAMESPACE)

    def run_in(self, pod: str, *command: str, ctr: str = "ctr") -> str:
        """Run a program in a pod's container and return what it printed."""
        where = ("exec", "--namespace", NAMESPACE, pod, "--container", ctr)
        return self.node.cluster.kubectl(*where, "--", *command)

    def end_container(self, pod: str) -> None:
        """End a pod's container; a moment later, as the end takes this very command with it."""
        self.run_in(pod, "bash", "-c", "(sleep 0.5; kill 1) >/dev/null 2>&1 &")

    def restart_containers(self, *pods: str) -> None:
        """End each pod's only container for the first time, and wait until it runs again."""
        for pod in pods:
            self.end_container(pod)

        def restarted() -> bool:
            found = [self.api.get("Pod", pod, NAMESPACE)["status"] for pod in pods]
            containers = [one for status in found for one in status["containerStatuses"]]
            return all(one["restartCount"] == 1 and one["ready"] for one in containers)

        wait_until(restarted, "the containers to be restarted", timeout=90)

    def container_ids(self, *pods: str) -> dict[str, str]:
        """The ids of the pods' containers; a container that was restarted has another."""
        ids = {}
        for pod in pods:
            for status in self.api.get("Pod", pod, NAMESPACE)["status"]["containerStatuses"]:
                ids[f"{pod}/{status['name']}"] = f"{status['containerID']}#{status['restartCount']}"
        return ids

    def unschedulable(self, pod: str) -> str:
        """Wait until the scheduler has found no place for the pod; return its words."""

        def look() -> str | None:
            for one in self.api.get("Pod", pod, NAMESPACE)["status"].get("conditions", []):
                if one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable":
                    return str(one["message"])
            return None

        return wait_until(look, f"{pod} to be unschedulable", timeout=120)

    def warning(self, pod: str, reason: str, *, timeout: float = 120) -> str:
        """Wait for a pod's warning event with the given reason; return its message."""

        def look() -> str | None:
            selector = f"involvedObject.name={pod},reason={reason}"
            events = self.api.all("Event", NAMESPACE, fieldSelector=selector)
            return events[-1]["message"] if events else None

        return wait_until(look, f"the event {reason} of {pod}", timeout=timeout)

    def published(self, *, timeout: float = 120) -> None:
        """Wait until exactly the devices are published that were when the scene began."""

        def same() -> bool:
            found = slice_facts(self.api)
            # All of one generation: of several slices each is written by itself.
            pools = [one["spec"]["pool"] for one in found]
            is_whole = all(
                (pool["generation"], pool["resourceSliceCount"])
                == (pools[0]["generation"], len(pools))
                for pool in pools
            )
            return is_whole and devices(found) == devices(self._slices)

        wait_until(same, "the driver's slices to be as before", timeout=timeout)

    def rewritten(self) -> None:
        """Accept that slices were written since the scene began, but not that devices changed."""

        def settled() -> list[Object] | None:
            self.published()
            found = slice_facts(self.api)
            time.sleep(_SETTLED_S)
            return found if found == slice_facts(self.api) else None

        self._slices = wait_until(settled, "the slices to be left alone", timeout=60)

    # The end

    def clear(self) -> None:
        """Delete what the scene made, and wait until pods and claims are gone."""
        for thing in reversed(self._made):
            self.api.delete(thing["kind"], thing["metadata"]["name"], NAMESPACE)
        pods = [thing["metadata"]["name"] for thing in self._made if thing["kind"] == "Pod"]
        wait_gone(self.api, NAMESPACE, pods)
        wait_until(
            lambda: not self.api.all("ResourceClaim", NAMESPACE), "all claims to go", timeout=60
        )
        self._made.clear()

    def end(self, *, rewritten: bool = False) -> None:
        """Delete what the scene made, and check that nothing is left on the cluster or the node.

        Slices may have been written meanwhile only if it is said; their devices are as before.
        """
        self.clear()
        if rewritten:
            # MIG mode that could not be turned off, as a program had the GPU open, is tried again.
            with suppress(TestbedError):
                wait_until(lambda: not self.node.place.left_over(), "cleanups to end", timeout=10)
        left = self.node.place.left_over()
        assert left == [], left
        assert mps.processes(self.node.place.plugins) == {}
        if rewritten:
            self.published()
        else:
            assert slice_facts(self.api) == self._slices
        assert self.node.machine.settings() == self._settings
        assert self.node.machine.mig_devices() == ()

    def explain(self) -> str:
        """Say how the scene's pods are, and what the driver said last."""
        pods = self.api.all("Pod", NAMESPACE)
        logs = [self.node.driver.tail(60)]
        if self.node.can_run_mps:
            logs.append(self.node.supervisor.tail(30))
        return "\n".join([*(explain(self.api, pod) for pod in pods), *logs])


def claim_spec(**request: object) -> Object:
    """The spec of a claim with one request, named `gpu`, for whole GPUs."""
    exactly = {"deviceClassName": DRIVER_NAME, **request}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def cel(expression: str) -> list[Object]:
    """The selectors of a request with one CEL expression."""
    return [{"cel": {"expression": expression}}]


def slice_facts(api: Api) -> list[Object]:
    """The driver's ResourceSlices, with all that tells whether one was written again."""
    facts = [
        {
            "name": one["metadata"]["name"],
            "uid": one["metadata"]["uid"],
            "resourceVersion": one["metadata"]["resourceVersion"],
            "spec": one["spec"],
        }
        for one in api.all("ResourceSlice")
        if one["spec"]["driver"] == DRIVER_NAME
    ]
    return sorted(facts, key=lambda fact: str(fact["name"]))


def devices(slices: Sequence[Object]) -> list[str]:
    """The devices of slices, each as JSON, sorted."""
    return sorted(
        json.dumps(device, sort_keys=True)
        for one in slices
        for device in one["spec"].get("devices") or ()
    )
