"""The test API server is no kinder than the real one: Events, selectors, lists in pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.errors import ApiError, GoneError, InvalidError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import EVENTS, NODES, PODS, RESOURCE_CLAIMS

EVENT: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "e", "namespace": "n"},
    "type": "Warning",
    "reason": "Sick",
    "action": "Look",
    "note": "it is sick",
    "eventTime": "2026-01-02T03:04:05.000000Z",
    "reportingController": "gpu.nvidia.com",
    "reportingInstance": "node-1",
    "regarding": {"kind": "Pod", "namespace": "n", "name": "p"},
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[KubeClient]:
    client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
    yield client
    client.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"eventTime": None}, "eventTime"),
        ({"reportingController": ""}, "reportingController"),
        ({"reportingInstance": "x" * 129}, "reportingInstance"),
        ({"action": ""}, "action"),
        ({"reason": ""}, "reason"),
        ({"type": "Error"}, "type"),
        ({"note": "ä" * 513}, "note"),
        ({"deprecatedFirstTimestamp": "2026-01-02T03:04:05Z"}, "deprecatedFirstTimestamp"),
        ({"regarding": {"namespace": "other"}}, "involvedObject.namespace"),
        ({"regarding": {"kind": "Node"}}, "involvedObject.namespace"),
        ({"series": {"count": 1}}, "series"),
    ],
)
def test_an_event_that_the_real_one_refuses_is_refused(
    client: KubeClient, change: dict[str, Any], field: str
) -> None:
    client.create(EVENTS, EVENT, namespace="n", timeout=5)
    body = EVENT | change | {"metadata": {"name": "other", "namespace": "n"}}
    with pytest.raises(InvalidError, match=rf"is invalid: {field}"):
        client.create(EVENTS, body, namespace="n", timeout=5)


def test_objects_are_selected_by_the_fields_that_their_kind_has(client: KubeClient) -> None:
    assert client.list(PODS, query={"fieldSelector": "spec.nodeName=n"}, timeout=5)["items"] == []
    with pytest.raises(ApiError, match=r"field label not supported: spec\.nodeName"):
        client.list(NODES, query={"fieldSelector": "spec.nodeName=n"}, timeout=5)


def test_a_list_in_pages_is_of_one_moment_and_may_expire(
    server: ApiServer, client: KubeClient
) -> None:
    def claim(name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "n"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}

    server.put(claim("a"), claim("c"))
    claims = client.each(RESOURCE_CLAIMS, page=1, timeout=5)
    first = next(claims)
    server.put(claim("b"))
    assert [one["metadata"]["name"] for one in (first, *claims)] == ["a", "c"]

    claims = client.each(RESOURCE_CLAIMS, page=1, timeout=5)
    next(claims)
    server.store.compact()
    with pytest.raises(GoneError, match="continue parameter is too old"):
        next(claims)
