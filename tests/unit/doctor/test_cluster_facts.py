"""What doctor asks of an API server, and that it stores nothing."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import pytest

from dra_driver.admin.api.objects import DEVICE_CLASSES
from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.admin.doctor.facts.cluster_facts import Cluster, Feature
from dra_driver.admin.doctor.facts.shipped import PERMISSIONS
from dra_driver.admin.doctor.sources import Sources
from dra_driver.errors import AccessError, InvalidError, NotFoundError
from dra_driver.kube.client import Answer
from dra_driver.kube.resource import NODES, Call, Resource
from published import device, slices

Object = dict[str, Any]
NODE = {"metadata": {"name": "node-1"}}


class Api:
    """An API server as a dict; `lacks` are fields that it drops, `refuses` what it raises."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Object]] = {"nodes": [NODE, {"metadata": {"name": "b"}}]}
        self.lacks: set[str] = set()
        self.refuses: dict[str, Exception] = {}
        self.allows = lambda attributes: True
        self.date: str | None = formatdate(usegmt=True)
        self.asked: list[str] = []
        self.reviews: list[Object] = []
        self.gates: Object = {}

    def read(self, call: Call, *, timeout: float) -> Answer:
        self._ask(call.path)
        if call.subresource:
            return Answer(body={"kubeletconfig": {"featureGates": self.gates}}, date=None)
        return Answer(body={"gitVersion": "v1.37.1"}, date=self.date)

    def list(self, resource: Resource, *, query: Mapping[str, str], timeout: float) -> Object:
        self._ask(resource.plural)
        return {"items": self.stored.get(resource.plural, [])}

    def create(
        self,
        resource: Resource,
        body: Mapping[str, object],
        *,
        dry_run: bool = False,
        timeout: float,
    ) -> Object:
        self._ask(f"create {resource.plural}")
        sent: Object = dict(body)
        if "reviews" in resource.plural:
            self.reviews.append(sent["spec"])
            return {"status": {"allowed": self.allows(sent["spec"]["resourceAttributes"])}}
        assert dry_run, "nothing may be stored"
        spec = {key: value for key, value in sent["spec"].items() if key not in self.lacks}
        if "devices" in spec:
            spec["devices"] = [
                {key: value for key, value in one.items() if key not in self.lacks}
                for one in spec["devices"]
            ]
        return sent | {"spec": spec}

    def close(self) -> None:
        self._ask("close")

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.refuses:
            raise self.refuses[what]


@pytest.fixture
def api() -> Api:
    return Api()


def cluster(api: Api, node: str = "", *, is_driver: bool = False) -> Cluster:
    return Cluster(api, node=node, is_driver=is_driver, timeout=1.0)


def test_the_servers_clock_is_read_from_its_answer(api: Api) -> None:
    api.date = formatdate(time.time() + 600, usegmt=True)
    ahead = cluster(api).server().ahead_seconds
    assert ahead is not None
    assert 590 < ahead < 610


@pytest.mark.parametrize(
    ("field", "feature"),
    [
        ("consumesCounters", Feature.COUNTERS),
        ("taints", Feature.TAINTS),
        ("allowMultipleAllocations", Feature.CONSUMABLE),
        ("extendedResourceName", Feature.EXTENDED_RESOURCE),
    ],
)
def test_a_field_that_is_dropped_is_a_feature_that_lacks(
    api: Api, field: str, feature: Feature
) -> None:
    api.lacks = {field}
    assert cluster(api).features().has == dict.fromkeys(Feature, True) | {feature: False}


def test_a_server_that_wants_counters_elsewhere_is_without_them(api: Api) -> None:
    api.refuses["create resourceslices"] = InvalidError("no", status=422)
    facts = cluster(api).features()
    assert facts.has == {Feature.COUNTERS: False, Feature.EXTENDED_RESOURCE: True}
    assert facts.refused.keys() == {Feature.TAINTS, Feature.CONSUMABLE}


def test_each_list_is_asked_for_once_and_a_refusal_too(api: Api) -> None:
    one = cluster(api, "node-1")
    assert one.nodes() == [NODE]
    assert len(one.every(NODES)) == 2
    assert api.asked.count("nodes") == 1

    api.refuses["deviceclasses"] = AccessError("no", status=403)
    for _ in range(2):
        with pytest.raises(AccessError):
            one.every(DEVICE_CLASSES)
    assert api.asked.count(DEVICE_CLASSES.plural) == 1


def test_kubelets_of_nodes_with_gpus_are_asked_first(api: Api) -> None:
    api.stored["nodes"] = [{"metadata": {"name": f"n{number}"}} for number in range(9)]
    api.stored["resourceslices"] = slices([device("gpu-0")], node="n8")
    api.gates = {"DynamicResourceAllocation": False, "odd": "x"}
    facts = cluster(api).kubelets()
    assert next(iter(facts.gates)) == "n8"
    assert facts.gates["n8"] == {"DynamicResourceAllocation": False}
    assert (len(facts.gates), facts.not_asked) == (5, 4)
    assert "/api/v1/nodes/n8/proxy/configz" in api.asked


def test_kubelets_that_may_not_be_asked_are_named(api: Api) -> None:
    refusal = AccessError("no", status=403)
    api.refuses["/api/v1/nodes/b/proxy/configz"] = refusal
    facts = cluster(api).kubelets()
    assert facts.gates.keys() == {"node-1"}
    assert facts.refused is refusal


def test_the_drivers_own_pod_asks_about_itself(api: Api) -> None:
    api.allows = lambda attributes: attributes["verb"] != "watch"
    (seen,) = Sources(places=None, cluster=cluster(api, is_driver=True)).permissions()
    assert seen.severity is Severity.ERROR
    assert "watch nodes" in seen.text
    assert "watch resourceslices.resource.k8s.io" in seen.text
    assert len(api.reviews) == len(PERMISSIONS)
    assert all("user" not in review for review in api.reviews)


def test_anybody_else_asks_about_the_account_of_the_daemonset(api: Api) -> None:
    container = {"image": "dra-driver", "command": ["dra-driver", "kubelet-plugin"]}
    pod = {"serviceAccountName": "sa", "containers": [container]}
    api.stored["daemonsets"] = [
        {"metadata": {"namespace": "gpu", "name": "d"}, "spec": {"template": {"spec": pod}}}
    ]
    (seen,) = Sources(places=None, cluster=cluster(api)).permissions()
    assert seen.severity is Severity.OK
    assert {review["user"] for review in api.reviews} == {"system:serviceaccount:gpu:sa"}
    assert "system:serviceaccounts:gpu" in api.reviews[0]["groups"]


def test_without_a_daemonset_nobody_is_asked_about(api: Api) -> None:
    (seen,) = Sources(places=None, cluster=cluster(api)).permissions()
    assert seen.severity is Severity.UNKNOWN
    assert api.reviews == []


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3", ""])
def test_taint_rules_are_read_in_the_version_that_is_served(api: Api, version: str) -> None:
    def page(kind: Resource, **_: object) -> Object:
        if kind.version != version:
            raise NotFoundError("404 page not found", status=404)
        return {"items": [{"kind": "DeviceTaintRule"}]}

    api.list = page
    assert len(cluster(api).taint_rules()) == (1 if version else 0)
