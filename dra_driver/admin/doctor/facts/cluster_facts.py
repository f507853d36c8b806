"""Facts about the cluster from its API server: lists, trial requests, queries of permissions.

In: a client and the requested node. Out: facts, each asked for once even if many checks need it.
Nothing is stored: objects are created with dryRun=All, and reviews are queries. Each refusal names
the missing permission.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from http import HTTPStatus

from msgspec import Struct

from dra_driver.admin.api.objects import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    POLICIES,
    POLICY_BINDINGS,
    SELF_REVIEWS,
    SUBJECT_REVIEWS,
)
from dra_driver.admin.api.reads import each, taint_rules
from dra_driver.admin.doctor.facts.once import Once
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.validity import why_gone
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import ApiError, DriverError, InvalidError, NotFoundError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import Object, at, mapping, objects, text
from dra_driver.kube.resource import NODES, PODS, RESOURCE_SLICES, VERSION, Call, Resource
from dra_driver.slices.pool import DesiredPool, new_tag
from dra_driver.slices.publish.publication import CONSUMES_COUNTERS
from dra_driver.slices.publish.writes import Kind, differences, slice_body

_PAGE = 100
_MOST_OF_A_REQUEST = 10.0
_MOST_KUBELETS = 5
"""A kubelet's configuration comes through the API server from the kubelet itself."""

_LISTED: Mapping[Resource, Mapping[str, str]] = {
    NODES: {},
    RESOURCE_SLICES: {"fieldSelector": f"spec.driver={DRIVER_NAME}"},
    DAEMON_SETS: {},
    DEPLOYMENTS: {},
    DEVICE_CLASSES: {},
    POLICIES: {},
    POLICY_BINDINGS: {},
}
"""The kinds of objects that are listed, each with its query."""

_TRIAL_NODE = "dra-driver-doctor"
_TRIAL_CLASS = "dra-driver-doctor.nvidia.com"

Subject = tuple[str, str]
"""Namespace and name of a ServiceAccount."""


class Feature(StrEnum):
    """What an API server stores only if a feature gate is on; the values are the gates' names."""

    COUNTERS = "DRAPartitionableDevices"
    TAINTS = "DRADeviceTaints"
    CONSUMABLE = "DRAConsumableCapacity"
    EXTENDED_RESOURCE = "DRAExtendedResource"


_TRIALS: Mapping[Feature, tuple[str, Object]] = {
    Feature.COUNTERS: (
        CONSUMES_COUNTERS,
        {CONSUMES_COUNTERS: [{"counterSet": "trial", "counters": {"trial": {"value": "1"}}}]},
    ),
    Feature.TAINTS: (
        "taints",
        {"taints": [{"key": f"{DRIVER_NAME}/trial", "effect": "NoSchedule"}]},
    ),
    Feature.CONSUMABLE: (
        "allowMultipleAllocations",
        {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "1Gi"}}},
    ),
}
"""For features of slices: a device's field that is dropped without it, and a device with it."""


class ServerFacts(Struct, frozen=True, kw_only=True):
    """The server's version, and how many seconds its clock is ahead of ours, if it is known."""

    version: str
    ahead_seconds: float | None


class FeatureFacts(Struct, frozen=True, kw_only=True):
    """Which features the server has, and why others could not be tried."""

    has: Mapping[Feature, bool]
    refused: Mapping[Feature, DriverError] = {}


class PermissionFacts(Struct, frozen=True, kw_only=True):
    """The user in question, and for each permission whether it is granted."""

    who: str
    granted: Mapping[str, bool]


class KubeletFacts(Struct, frozen=True, kw_only=True):
    """Feature gates of kubelets, by node; and the number of nodes that were not asked."""

    gates: Mapping[str, Mapping[str, bool]]
    not_asked: int = 0
    refused: DriverError | None = None


class Cluster:
    """The cluster as doctor sees it; for any thread.

    `node` is the requested one, empty for all; `is_driver` is whether the client has the
    ServiceAccount of the pod in which it runs; `timeout` is in seconds, at most ten for each
    request.
    """

    def __init__(self, api: KubeClient, *, node: str, is_driver: bool, timeout: float) -> None:
        self._api = api
        self.node = node
        self.is_driver = is_driver
        self._timeout = min(timeout, _MOST_OF_A_REQUEST)
        self._lists = {resource: Once(partial(self._list, resource)) for resource in _LISTED}
        self._server = Once(self._ask_server)
        self._features = Once(self._try_features)

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def server(self) -> ServerFacts:
        """Ask for the version."""
        return self._server.get()

    def _ask_server(self) -> ServerFacts:
        answer = self._api.read(Call(verb="get", resource=VERSION), timeout=self._timeout)
        ahead = _seconds_ahead(answer.date)
        return ServerFacts(version=str(answer.body.get("gitVersion")), ahead_seconds=ahead)

    def why_gone(self, record: ClaimRecord) -> str | None:
        """Return why a recorded claim has no right to its devices any more; None if it still has.

        Raises DriverError.
        """
        return why_gone(self._api, record, timeout=self._timeout)

    def every(self, resource: Resource) -> list[Object]:
        """Return all objects of a kind; of ResourceSlices, those with this driver's name."""
        return self._lists[resource].get()

    def nodes(self) -> list[Object]:
        """Return the requested Node, or all. Raises DriverError."""
        nodes = self.every(NODES)
        return [node for node in nodes if self.node in ("", text(node, "metadata", "name"))]

    def slices(self) -> list[Object]:
        """Return the ResourceSlices of the same nodes. Raises DriverError."""
        slices = self.every(RESOURCE_SLICES)
        return [each for each in slices if self.node in ("", text(each, "spec", "nodeName"))]

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the Pods with these labels, on the requested node. Raises DriverError.

        Without labels it returns none, because an empty selector would match all of the cluster's.
        """
        if not labels:
            return []
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        if self.node:
            query["fieldSelector"] = f"spec.nodeName={self.node}"
        return list(each(self._api, PODS, query=query, page=_PAGE, timeout=self._timeout))

    def pods_on(self, node: str) -> list[Object]:
        """Return the Pods on a node. Raises DriverError."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        return list(each(self._api, PODS, query=query, page=_PAGE, timeout=self._timeout))

    def taint_rules(self) -> list[Object]:
        """Return the DeviceTaintRules; none where they are not served. Raises DriverError."""
        return taint_rules(
            lambda kind: each(self._api, kind, query={}, page=_PAGE, timeout=self._timeout)
        )

    def config_map(self, namespace: str, name: str) -> Object | None:
        """Return a ConfigMap; None if there is none. Raises DriverError."""
        call = Call(verb="get", resource=CONFIG_MAPS, name=name, namespace=namespace)
        try:
            return self._api.read(call, timeout=self._timeout).body
        except NotFoundError:
            return None

    def now(self) -> datetime:
        """Return the time by the server's clock, or by ours if that is not known."""
        ahead = self.server().ahead_seconds or 0.0
        return datetime.now(UTC) + timedelta(seconds=ahead)  # noqa: TID251 (the server's time of day)

    def serves(self, group: str) -> bool:
        """Return whether the cluster has an API group; anyone may ask. Raises DriverError."""
        page = Resource(group="", version="", plural=f"apis/{group}")
        try:
            self._api.read(Call(verb="get", resource=page), timeout=self._timeout)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def features(self) -> FeatureFacts:
        """Find out which features the server has, by dry runs."""
        return self._features.get()

    def _try_features(self) -> FeatureFacts:
        has: dict[Feature, bool] = {}
        refused: dict[Feature, DriverError] = {}
        for feature in Feature:
            try:
                has[feature] = self._has(feature)
            except InvalidError as error:
                # 1.34 expects counters elsewhere, so ours would not work there.
                if feature is Feature.COUNTERS:
                    has[feature] = False
                else:
                    refused[feature] = error
            except DriverError as error:
                refused[feature] = error
        return FeatureFacts(has=has, refused=refused)

    def permissions(self, needed: Mapping[str, Call], subject: Subject | None) -> PermissionFacts:
        """Return which permissions a subject has, by name; None is the client's own user."""
        who = "this ServiceAccount" if subject is None else f"ServiceAccount {'/'.join(subject)}"
        granted = {name: self._may(call, subject) for name, call in needed.items()}
        return PermissionFacts(who=who, granted=granted)

    def kubelets(self) -> KubeletFacts:
        """Ask some kubelets, those with GPUs first, for their configuration by the API server."""
        names = [text(node, "metadata", "name") for node in self.nodes()]
        with_gpus = {text(each, "spec", "nodeName") for each in self.slices()}
        names.sort(key=lambda name: (name not in with_gpus, name))
        gates: dict[str, Mapping[str, bool]] = {}
        refused = None
        for name in names[:_MOST_KUBELETS]:
            call = Call(verb="get", resource=NODES, name=name, subresource="proxy/configz")
            try:
                answer = self._api.read(call, timeout=self._timeout)
            except DriverError as error:
                refused = error
                continue
            given = mapping(answer.body, "kubeletconfig", "featureGates")
            gates[name] = {gate: on for gate, on in given.items() if isinstance(on, bool)}
        return KubeletFacts(gates=gates, not_asked=len(names) - len(gates), refused=refused)

    def _may(self, call: Call, subject: Subject | None) -> bool:
        kind = SELF_REVIEWS if subject is None else SUBJECT_REVIEWS
        of = call.resource
        attributes = {"verb": call.verb, "group": of.group, "resource": of.plural}
        more = {"subresource": call.subresource, "name": call.name}
        attributes |= {name: value for name, value in more.items() if value}
        spec: dict[str, object] = {"resourceAttributes": attributes}
        if subject is not None:
            namespace, name = subject
            spec["user"] = f"system:serviceaccount:{namespace}:{name}"
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
            spec["groups"] = [*groups, "system:authenticated"]
        what = "SelfSubjectAccessReview" if subject is None else "SubjectAccessReview"
        body = {"apiVersion": kind.api_version, "kind": what, "spec": spec}
        answer = self._api.create(kind, body, timeout=self._timeout)
        return at(answer, "status", "allowed") is True

    def _has(self, feature: Feature) -> bool:
        if feature in _TRIALS:
            name, device = _TRIALS[feature]
            return self._stores({"name": "trial", **device}, name)
        body = {
            "apiVersion": DEVICE_CLASSES.api_version,
            "kind": "DeviceClass",
            "metadata": {"name": _TRIAL_CLASS},
            "spec": {"extendedResourceName": "nvidia.com/trial"},
        }
        answer = self._api.create(DEVICE_CLASSES, body, dry_run=True, timeout=self._timeout)
        return "extendedResourceName" in mapping(answer, "spec")

    def _stores(self, device: Object, field: str) -> bool:
        """Return whether the API server keeps a field of this device, by a dry run."""
        node = self.node or _TRIAL_NODE
        # With a random name, because a slice may already have the usual one.
        pool = DesiredPool(driver=DRIVER_NAME, node_name=node, contents=({"devices": [device]},))
        asked = pool.spec(0, generation=0)
        body = slice_body({"name": pool.slice_name(0, tag=new_tag())}, asked)
        answer = self._api.create(RESOURCE_SLICES, body, dry_run=True, timeout=self._timeout)
        return not any(
            difference.kind is Kind.DROPPED and field in difference.path
            for difference in differences(asked, mapping(answer, "spec"))
        )

    def _list(self, resource: Resource) -> list[Object]:
        query = _LISTED[resource]
        return list(each(self._api, resource, query=query, page=_PAGE, timeout=self._timeout))


def containers(workload: Object) -> tuple[Object, ...]:
    """Return the containers of the pods of a DaemonSet or Deployment."""
    return objects(workload, "spec", "template", "spec", "containers")


def _seconds_ahead(date: str | None) -> float | None:
    """Return how far a Date header, in whole seconds, is ahead of this machine's clock."""
    try:
        server = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return server.timestamp() - time.time()  # noqa: TID251 (it is what is compared)
