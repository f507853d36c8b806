"""Kueue beside this driver: each sentence of its section in docs/works-with.md, on a real cluster.

Its manager runs on this host, and the page's manifests are what is applied. Pods are held by a
scheduler that there is not, except where a test says so: what Kueue admits is asked here.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from testbed.api import Api, Object, thing
from testbed.claims import claim, gpu_config, opaque
from testbed.commands import REPOSITORY, TestbedError, wait_until
from testbed.driver import DRIVER_NAME
from testbed.manifests import installed
from testbed.node import GpuNode
from testbed.pods import container, make_namespace, wait_running

from e2e.conftest import missing
from e2e.kubernetes import cluster_of
from e2e.needs import cannot_run
from kueue import Request, Source, charge
from neighbours.kueue_manager import KueueManager
from resource_nvidia_com.quantity import Quantity

pytestmark = [pytest.mark.neighbours, pytest.mark.leaves("a cluster, for all of these tests")]

QUEUE = "research"
JOBS = f"/apis/batch/v1/namespaces/{QUEUE}/jobs"
WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{QUEUE}/workloads"
GIB = 1024**3
H100 = 81152 * 1024**2
"""What a whole H100 takes of the counter `memory`, in bytes."""

BEHIND_GPU = "gpu.resource.nvidia.com"
"""The class behind `nvidia.com/gpu`, and of shares."""

SHARES = {"version": "v1", "sharing": {"timeSlicing": {"resources": [
    {"name": "nvidia.com/gpu", "replicas": 10, "devices": ["7"]}
]}}}  # fmt: skip


def page() -> tuple[Object, Object]:
    """The page's Configuration and ClusterQueue."""
    text = (REPOSITORY / "docs" / "works-with.md").read_text()
    section = text.partition("\n## Kueue\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    config, queue = (one for block in blocks for one in yaml.safe_load_all(block))
    return config, queue


CONFIG, CLUSTER_QUEUE = page()
(MAPPING,) = CONFIG["resources"]["deviceClassMappings"]
MEMORY = str(MAPPING["name"])


def mapping(**changes: object) -> Object:
    """The page's Configuration with a changed mapping; what is set to None is taken out."""
    changed = {key: value for key, value in (MAPPING | changes).items() if value is not None}
    return CONFIG | {"resources": {"deviceClassMappings": [changed]}}


BY_DEVICES = mapping(sources=None)
WITH_SHARES = mapping(deviceClassNames=[*MAPPING["deviceClassNames"], BEHIND_GPU])


def request(device_class: str = DRIVER_NAME, selector: str = "", **more: object) -> Object:
    """One request of a claim template, as `exactly` has it."""
    selectors = {"selectors": [{"cel": {"expression": selector}}]} if selector else {}
    return {"deviceClassName": device_class, **selectors, **more}


def mig(profile: str = "") -> Object:
    """A request for a MIG device, by the expression that the page recommends."""
    selector = f"device.attributes['gpu.nvidia.com'].?profile.orValue('') == '{profile}'"
    return request("mig.nvidia.com", selector if profile else "")


def memory(amount: int) -> dict[str, str]:
    """A charge by memory, in bytes, as Kueue writes it."""
    return {MEMORY: str(Quantity.of_bytes(amount))}


class Kueue:
    """A namespace whose jobs pass through Kueue, on a node of eight H100."""

    def __init__(self, node: GpuNode, manager: KueueManager) -> None:
        self.api: Api = node.cluster.api
        self.node = node
        self.manager = manager
        self._settings = self._usual = node.driver_settings
        self._names = iter(range(10**6))

    def set(self, config: Object, quota: Object, *, gates: str = "", **settings: str) -> None:
        """Run Kueue with a configuration and one queue, and the driver with more settings."""
        if (wanted := self._usual | settings) != self._settings:
            self.node.restart_driver(wanted)
            self._settings = wanted
        self.manager.run(config, gates=gates)
        queue = {"apiVersion": quota["apiVersion"], "kind": "LocalQueue"}
        queue["metadata"] = {"name": QUEUE, "namespace": QUEUE}
        queue["spec"] = {"clusterQueue": quota["metadata"]["name"]}
        flavor = {"apiVersion": quota["apiVersion"], "kind": "ResourceFlavor"}
        flavor["metadata"] = {"name": "default-flavor"}
        text = yaml.safe_dump_all([flavor, quota, queue])
        self.node.cluster.kubectl("apply", "-f", "-", stdin=text)

    def template(self, *requests: Object, **spec: object) -> str:
        """Make a ResourceClaimTemplate; return its name."""
        name = f"template-{next(self._names)}"
        named = [
            {"name": f"r{number}", **(one if "firstAvailable" in one else {"exactly": one})}
            for number, one in enumerate(requests)
        ]
        body = {"spec": {"devices": {"requests": named, **spec}}}
        self.api.create(thing("ResourceClaimTemplate", name, spec=body), QUEUE)
        return name

    def job(self, *requests: Object, runs: bool = False, **spec: object) -> str:
        """Make a job whose pod asks by a claim template; return the job's UID."""
        source = {"resourceClaimTemplateName": self.template(*requests, **spec)}
        return self.job_of(source, runs=runs)

    def job_of(
        self,
        source: Object | None = None,
        *,
        limits: Mapping[str, str] | None = None,
        runs: bool = False,
    ) -> str:
        """Make a job whose pod has a claim, or limits; return the job's UID."""
        name = f"job-{next(self._names)}"
        resources: Object = {"limits": dict(limits or {})}
        spec: Object = {"restartPolicy": "Never"}
        if source is not None:
            spec["resourceClaims"] = [{"name": "gpu", **source}]
            resources["claims"] = [{"name": "gpu"}]
        if not runs:
            spec["schedulerName"] = "nobody"
        spec["containers"] = [container("ctr", resources)]
        job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": spec}}}
        job["metadata"] = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}}
        return str(json.loads(self.api.request("POST", JOBS, job))["metadata"]["uid"])

    def admitted(self, job: str) -> Object:
        """Wait until a job is admitted; return what it is charged, as text by resource."""
        admission = self._wait(job, lambda status: status.get("admission"), "to be admitted")
        (pods,) = admission["podSetAssignments"]
        charged: Object = pods["resourceUsage"]
        return charged

    def waits(self, job: str, why: str) -> str:
        """Wait until Kueue says why it does not admit a job; return all it says."""

        def look(status: Object) -> str:
            for one in status.get("conditions", []):
                if (one["type"], one["status"]) == ("QuotaReserved", "False"):
                    return str(one["message"]) if why in one["message"] else ""
            return ""

        return str(self._wait(job, look, f"to wait, since {why}"))

    def refused(self, job: str, why: str) -> None:
        """Wait until Kueue says why; what it tries again has an internal error."""
        assert "Internal error" not in self.waits(job, why)

    def clear(self) -> None:
        """Delete all jobs, and what was made for them."""
        self.api.request("DELETE", JOBS, {"propagationPolicy": "Background"})
        for kind in ("Pod", "ResourceClaimTemplate", "ResourceClaim"):
            self.api.delete_all(kind, QUEUE)
        wait_until(
            lambda: not self._all(WORKLOADS) and not self.api.all("ResourceClaim", QUEUE),
            "jobs and claims to go",
            timeout=120,
        )

    def modelled(self, *exactly: Object) -> int:
        """What tests/kueue.py, by which other tests go, says that requests are charged."""
        classes = {one["metadata"]["name"]: one["spec"] for one in installed("DeviceClass")}
        slices = [{"spec": spec} for spec in self.node.slices()]
        found = 0
        for one in exactly:
            every = [*classes[one["deviceClassName"]]["selectors"], *one.get("selectors", [])]
            selectors = [selector["cel"]["expression"] for selector in every]
            own = Request(selectors=selectors, count=one.get("count", 1))
            found += charge(slices, own, Source())
        return found

    def _all(self, path: str) -> list[Object]:
        items: list[Object] = json.loads(self.api.request("GET", path))["items"]
        return items

    def _wait(self, job: str, look: Any, what: str) -> Any:
        label = f"{WORKLOADS}?labelSelector=kueue.x-k8s.io/job-uid={job}"
        found: list[Object] = []

        def seen() -> Any:
            found[:] = self._all(label)
            return look(found[0].get("status", {})) if found else None

        try:
            return wait_until(seen, f"the job {what}", timeout=60)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{found}\n{self.manager.said()}") from error


def quota(resource: str, amount: str) -> Object:
    """The page's ClusterQueue, with a quota of another resource."""
    flavor = {"name": "default-flavor", "resources": [{"name": resource, "nominalQuota": amount}]}
    group = {"coveredResources": [resource], "flavors": [flavor]}
    return {**CLUSTER_QUEUE, "spec": {**CLUSTER_QUEUE["spec"], "resourceGroups": [group]}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    if reason := missing():
        cannot_run(reason)
    folder = tmp_path_factory.mktemp("kueue")
    shares = folder / "shares.yaml"
    node = GpuNode(
        cluster_of(os.environ.get("E2E_CLUSTER", "neighbours")),
        folder / "node",
        driver_env={"RESCAN_INTERVAL": "1", "SHARE_CONFIG": str(shares)},
    )
    shares.write_text("version: v1\n")
    node.clear()
    manager = KueueManager(node.cluster, folder / "kueue")
    try:
        node.up(print)
        node.credentials.keep_fresh()
        manager.install()
        make_namespace(node.cluster.api, QUEUE)
        admin = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        node.cluster.api.patch("Namespace", QUEUE, admin)
        yield Kueue(node, manager)
    finally:
        manager.stop()
        node.down()


@pytest.fixture
def kueue(running: Kueue) -> Iterator[Kueue]:
    yield running
    running.clear()


# By number of devices


def test_devices_of_mapped_classes_are_counted_and_what_is_admitted_runs(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"))
    runs = kueue.job(request(count=2), runs=True)
    assert kueue.admitted(runs) == {MEMORY: "2"}
    wait_running(kueue.api, QUEUE)
    assert kueue.admitted(kueue.job(request())) == {MEMORY: "1"}
    kueue.waits(kueue.job(request()), f"insufficient unused quota for {MEMORY}")


def test_a_mig_device_counts_as_one(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"), MIG="on-demand")
    assert kueue.admitted(kueue.job(mig("1g.10gb"), mig("3g.40gb"))) == {MEMORY: "2"}


def test_a_class_that_is_not_mapped_is_refused(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"))
    kueue.refused(
        kueue.job(request(BEHIND_GPU)),
        f"DeviceClass {BEHIND_GPU} is not mapped in DRA configuration",
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"firstAvailable": [{"name": "a", "deviceClassName": DRIVER_NAME}]}, "FirstAvailable"),
        (request(allocationMode="All"), "AllocationMode 'All' is not supported"),
        (request(adminAccess=True), "AdminAccess is not supported"),
    ],
)
def test_uncounted_requests_are_refused(kueue: Kueue, asked: Object, why: str) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"))
    kueue.refused(kueue.job(asked), why)


def test_a_pod_that_names_a_claim_is_refused(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"))
    kueue.api.create(claim("mine"), QUEUE)
    job = kueue.job_of({"resourceClaimName": "mine"})
    kueue.refused(job, "does not support use of resource claims")


def test_constraints_and_configs_are_passed_over(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"))
    job = kueue.job(
        request(count=2),
        constraints=[{"matchAttribute": "gpu.nvidia.com/productName"}],
        config=opaque(gpu_config(strategy="TimeSlicing")),
    )
    assert kueue.admitted(job) == {MEMORY: "2"}


def test_a_selector_that_fails_on_a_device_of_the_class_refuses_the_workload(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"), MIG="on-demand")
    failing = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    kueue.refused(kueue.job(request(DRIVER_NAME, failing)), "CEL evaluation failed")
    # What the class itself leaves out does not count: each MIG device has a profile.
    assert kueue.admitted(kueue.job(request("mig.nvidia.com", failing))) == {MEMORY: "1"}


def test_a_selector_that_too_few_devices_meet_leaves_the_workload_waiting(kueue: Kueue) -> None:
    kueue.set(BY_DEVICES, quota(MEMORY, "3"), MIG="on-demand")
    kueue.waits(kueue.job(mig("9g.90gb")), "0 device(s) match in the cluster but 1 requested")


# By resource name


def test_a_resource_name_has_a_quota_without_a_mapping(kueue: Kueue) -> None:
    without = {key: CONFIG[key] for key in ("apiVersion", "kind")}
    kueue.set(without, quota("nvidia.com/gpu", "3"))
    job = kueue.job_of(limits={"nvidia.com/gpu": "2"})
    assert kueue.admitted(job) == {"nvidia.com/gpu": "2"}
    over = kueue.job_of(limits={"nvidia.com/gpu": "2"})
    kueue.waits(over, "insufficient unused quota for nvidia.com/gpu")


def test_a_resource_name_whose_class_has_sources_is_not_admitted(kueue: Kueue) -> None:
    kueue.set(WITH_SHARES, CLUSTER_QUEUE, MEMORY_COUNTERS="true")
    job = kueue.job_of(limits={"nvidia.com/gpu": "1"})
    # Right after its start Kueue may not know yet that a class serves the name: then it says that
    # the queue has none of it, and else that the class has counters.
    kueue.waits(job, "resource nvidia.com/gpu ")


# By memory


def test_without_counters_a_workload_waits_until_there_are_some(kueue: Kueue) -> None:
    kueue.set(CONFIG, CLUSTER_QUEUE)
    job = kueue.job(request())
    kueue.waits(job, 'matched devices have no consumesCounters entry for counter "memory"')
    kueue.set(CONFIG, CLUSTER_QUEUE, MEMORY_COUNTERS="true")
    assert kueue.admitted(job) == memory(H100)


def test_whole_gpus_are_charged_their_memory(kueue: Kueue) -> None:
    kueue.set(CONFIG, CLUSTER_QUEUE, MEMORY_COUNTERS="true")
    assert kueue.admitted(kueue.job(request(count=8))) == memory(8 * H100)
    assert kueue.modelled(request(count=8)) == 8 * H100
    kueue.waits(kueue.job(request()), f"insufficient unused quota for {MEMORY}")


@pytest.mark.parametrize("profile", ["1g.10gb", "3g.40gb", ""])
def test_mig_devices_are_charged_the_largest_that_they_could_be(kueue: Kueue, profile: str) -> None:
    kueue.set(CONFIG, CLUSTER_QUEUE, MIG="on-demand")
    amount = {"1g.10gb": 9984, "3g.40gb": 40448, "": 81152}[profile] * 1024**2
    assert kueue.admitted(kueue.job(mig(profile))) == memory(amount)
    assert kueue.modelled(mig(profile)) == amount


def test_shares_are_charged_their_part_where_the_claim_says_how_large_it_is(kueue: Kueue) -> None:
    shares = kueue.node.folder.parent / "tenths.yaml"
    shares.write_text(yaml.safe_dump(SHARES))
    kueue.set(WITH_SHARES, CLUSTER_QUEUE, MEMORY_COUNTERS="true", SHARE_CONFIG=str(shares))
    tenth = "device.attributes['gpu.nvidia.com'].?replicas.orValue(0) == 10"
    one = request(BEHIND_GPU, tenth)
    part = kueue.modelled(one)
    assert H100 // 11 < part <= H100 // 10
    assert kueue.admitted(kueue.job(one)) == memory(part)
    # Without that it might be a whole GPU of those that are not divided.
    assert kueue.admitted(kueue.job(request(BEHIND_GPU))) == memory(H100)
    # These have no `replicas`.
    failing = "device.attributes['gpu.nvidia.com'].replicas == 10"
    kueue.refused(kueue.job(request(BEHIND_GPU, failing)), "CEL evaluation failed")


def test_parts_are_charged_what_they_ask_for(kueue: Kueue) -> None:
    (source,) = MAPPING["sources"]
    by_capacity = mapping(sources=[{"capacity": source["counter"]}])
    gate = "KueueDRAIntegrationConsumableCapacity=true"
    with pytest.raises(TestbedError, match="KueueDRAIntegrationConsumableCapacity to be enabled"):
        kueue.manager.run(by_capacity)
    kueue.set(by_capacity, CLUSTER_QUEUE, gates=gate, CONSUMABLE_SHARES="unlimited")
    part = request(capacity={"requests": {"memory": "10Gi"}}, count=2)
    assert kueue.admitted(kueue.job(part)) == memory(20 * GIB)
