"""What the driver may do in a cluster is what it does: each verb of its role is one it needs."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer
from testbed.kubelet import KubeletClient

import make
from dra_driver.admin.doctor.facts import shipped
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.claim_events import ClaimEvents
from dra_driver.claims.report.device_health import WELL
from dra_driver.claims.report.mps_events import DEATH
from dra_driver.claims.report.status_writer import StatusWriter
from dra_driver.devices.model import Inventory
from dra_driver.errors import AccessError
from dra_driver.kube import resource
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.outbox import Outbox
from dra_driver.kube.own_node import NodeFacts, OwnNode
from dra_driver.kube.watch import Changed, Listed, Watch
from dra_driver.ops.metrics import Metrics
from dra_driver.slices.project import projection
from dra_driver.slices.publish.publication import Publication
from worlds.driver import Driver
from worlds.process import NODE, SLICES, ProcessNode, serving_a_node

REPOSITORY = Path(__file__).resolve().parents[2]
CLAIM = ClaimRef(
    uid=ClaimUid("11111111-0000-4000-8000-000000000000"), namespace="default", name="claim"
)


def test_doctor_asks_for_each_permission_that_is_granted() -> None:
    asked = {(one.verb, one.permission) for one in shipped.PERMISSIONS.values()}
    assert asked == granted()
    (driver,) = (one for one in shipped.PERMISSIONS.values() if one.subresource == "driver")
    assert driver.name == "gpu.nvidia.com"


def granted() -> set[tuple[str, str]]:
    documents = yaml.safe_load_all((REPOSITORY / "manifests" / "install.yaml").read_text())
    (role,) = (document for document in documents if document["kind"] == "ClusterRole")
    return {
        (verb, ".".join(filter(None, (plural, group))))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


# What each permission is for. Each of these says whether it works.


@dataclass
class Cluster:
    """An API server with this node, the driver's client of it, and a folder."""

    server: ApiServer
    client: KubeClient
    folder: Path
    publication: Publication = field(init=False)

    def __post_init__(self) -> None:
        self.publication = Publication(
            self.client,
            driver="gpu.nvidia.com",
            node_name=NODE,
            observer=Metrics(driver="gpu.nvidia.com", node=NODE, version="0"),
            project=projection,
        )

    def publish(self, inventory: Inventory) -> None:
        """Publish, as far as the API server lets it."""
        with suppress(AccessError):
            self.publication.publish(inventory)

    def slices(self) -> list[list[str]]:
        """The names of the devices in each slice."""
        return [
            [device["name"] for device in one["spec"].get("devices", ())]
            for one in self.server.objects(SLICES)
        ]

    def refused(self) -> list[str]:
        """What was answered so; a right for the status of devices is a rule of validation."""
        said = {403: "", 422: " as it stands"}
        return [
            f"{one.verb} {one.plural}{said[one.status]}"
            for one in self.server.seen()
            if one.status in said
        ]


def claims_are_prepared(cluster: Cluster) -> bool:
    cluster.server.put(make.claim_object("gpu-1"))
    driver = Driver(cluster.folder, reader=cluster.client)
    try:
        driver.prepare(CLAIM, seconds=20)
    except AccessError:
        return False
    finally:
        driver.close()
    return True


def gpus_are_published(cluster: Cluster) -> bool:
    cluster.publish(make.inventory())
    return cluster.slices() == [["gpu-0", "gpu-1"]]


def changed_gpus_are_published(cluster: Cluster) -> bool:
    cluster.publish(make.inventory())
    assert cluster.slices() == [["gpu-0", "gpu-1"]]
    cluster.publish(make.inventory(make.gpu(1)))
    return cluster.slices() == [["gpu-1"]]


def slices_that_are_no_longer_needed_are_deleted(cluster: Cluster) -> bool:
    cluster.publish(make.inventory(*(make.gpu(minor) for minor in range(65))))
    assert len(cluster.slices()) == 2
    cluster.publish(make.inventory())
    return cluster.slices() == [["gpu-0", "gpu-1"]]


def slices_that_somebody_changes_are_noticed(cluster: Cluster) -> bool:
    news: list[Listed | Changed] = []
    watch = Watch(
        cluster.client,
        resource.RESOURCE_SLICES,
        selectors=cluster.publication.selectors,
        tell=news.append,
        clock=time.monotonic,
        random=lambda: 0.5,
    )
    watch.start()
    try:
        # Without the verb `watch` there are lists, again and again, and no change is ever told.
        assert cluster.server.wait_for(lambda: bool(cluster.server.seen("watch", SLICES)))
        cluster.server.put(a_slice())
        assert cluster.server.wait_for(lambda: is_told(news) or bool(cluster.refused()))
        return is_told(news)
    finally:
        assert watch.stop(10)


def is_told(news: Iterable[Listed | Changed]) -> bool:
    return any(isinstance(one, Changed) for one in news)


def labels_are_followed(cluster: Cluster) -> bool:
    heard: list[NodeFacts] = []
    node = OwnNode(cluster.client, NODE, clock=time.monotonic, random=lambda: 0.5)
    node.listen(heard.append)
    node.start()
    try:
        assert cluster.server.wait_for(lambda: bool(heard or cluster.refused()))
        return heard == [NodeFacts()]
    finally:
        assert node.stop(10)


def labels_that_change_are_heard_without_asking_again(cluster: Cluster) -> bool:
    heard: list[NodeFacts] = []
    node = OwnNode(cluster.client, NODE, clock=time.monotonic, random=lambda: 0.5)
    node.listen(heard.append)
    node.start()
    try:
        assert cluster.server.wait_for(lambda: bool(cluster.server.seen("watch", "nodes")))
        relabel(cluster.server)
        assert cluster.server.wait_for(lambda: heard[-1:] == [NodeFacts(labels={"zone": "b"})])
    finally:
        assert node.stop(10)
    return len(cluster.server.seen("list", "nodes")) == 1


def deaths_of_daemons_are_told(cluster: Cluster) -> bool:
    cluster.server.put(make.claim_object("gpu-0"))
    outbox = Outbox()
    events = ClaimEvents(cluster.client, outbox, node=NODE)
    events.post_on_claim(CLAIM, reason=DEATH, action="RestartingDaemon", note="it died")
    outbox.deliver()
    about = {one["regarding"]["kind"] for one in cluster.server.objects("events")}
    return about == {"ResourceClaim", "Pod"}


def claims_say_which_devices_they_have(cluster: Cluster) -> bool:
    cluster.server.put(make.claim_object("gpu-1"))
    driver = Driver(cluster.folder)  # its own requests are played
    ref = driver.api.add("gpu-1")
    driver.prepare(ref)
    outbox = Outbox()
    StatusWriter(cluster.client, outbox, driver.claims, driver.gpus, health=lambda *_: WELL).check()
    outbox.deliver()
    driver.close()
    (claim,) = cluster.server.objects("resourceclaims")
    return [one["device"] for one in claim["status"].get("devices", ())] == ["gpu-1"]


def a_slice() -> dict[str, object]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "one"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        },
    }


def relabel(server: ApiServer) -> None:
    """Change the Node as an admin does, whom the driver's role does not bind."""
    (node,) = server.objects("nodes")
    node["metadata"]["labels"] = {"zone": "b"}
    kind = kind_of(node["apiVersion"], node["kind"])
    server.store.update(kind, "", NODE, node)


NEEDED: Mapping[tuple[str, str], Callable[[Cluster], bool]] = {
    ("get", "resourceclaims.resource.k8s.io"): claims_are_prepared,
    ("patch", "resourceclaims/status.resource.k8s.io"): claims_say_which_devices_they_have,
    (
        "associated-node:patch",
        "resourceclaims/driver.resource.k8s.io",
    ): claims_say_which_devices_they_have,
    ("list", "resourceslices.resource.k8s.io"): gpus_are_published,
    ("watch", "resourceslices.resource.k8s.io"): slices_that_somebody_changes_are_noticed,
    ("create", "resourceslices.resource.k8s.io"): gpus_are_published,
    ("update", "resourceslices.resource.k8s.io"): changed_gpus_are_published,
    ("delete", "resourceslices.resource.k8s.io"): slices_that_are_no_longer_needed_are_deleted,
    ("get", "nodes"): gpus_are_published,
    ("list", "nodes"): labels_are_followed,
    ("watch", "nodes"): labels_that_change_are_heard_without_asking_again,
    ("create", "events.events.k8s.io"): deaths_of_daemons_are_told,
}
"""What each permission is for; if the role lacks it, that does not work."""


@contextmanager
def cluster_with(role: AbstractSet[tuple[str, str]], folder: Path) -> Iterator[Cluster]:
    folder.mkdir()
    with serving_a_node() as server:
        client = from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))
        server.granted = role
        yield Cluster(server, client, folder)
        client.close()


def test_each_permission_has_a_documented_purpose() -> None:
    assert set(NEEDED) == granted()


@pytest.mark.parametrize("permission", NEEDED, ids=" ".join)
def test_without_a_permission_its_purpose_fails(
    permission: tuple[str, str], tmp_path: Path
) -> None:
    works, role = NEEDED[permission], granted()
    with cluster_with(role, tmp_path / "granted") as cluster:
        assert works(cluster)
        assert cluster.refused() == []
    with cluster_with(role - {permission}, tmp_path / "taken away") as cluster:
        assert not works(cluster)
        condition, _, verb = permission[0].rpartition(":")
        plural = re.split(r"[./]", permission[1])[0]
        rule = " as it stands" if condition else ""
        assert set(cluster.refused()) == {f"{verb} {plural}{rule}"}


def test_a_driver_with_the_shipped_role_is_refused_nothing(tmp_path: Path) -> None:
    with serving_a_node() as server:
        server.granted = granted()
        node = ProcessNode(tmp_path, server)
        node.install_gpus("h100x8")
        node.driver.start()
        try:
            node.wait_devices(8)
            claim = node.allocate("one", "gpu-3")
            with KubeletClient(node.place.registry) as kubelet:
                kubelet.register()
                kubelet.must_prepare(claim)
                assert server.wait_for(lambda: bool(server.seen("patch", "resourceclaims")))
                kubelet.must_unprepare(claim)
            assert server.wait_for(lambda: bool(server.seen("watch", "nodes")))
            assert node.driver.stop() == 0
        finally:
            node.driver.kill()
        verbs = {f"{one.verb} {one.plural}" for one in server.seen()}
        assert {
            "create resourceslices",
            "watch nodes",
            "get resourceclaims",
            "patch resourceclaims",
        } <= verbs
        assert [one for one in server.seen() if one.status in (403, 422)] == []
