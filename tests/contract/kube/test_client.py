"""The client against an API server over real HTTP and TLS."""
# ruff: noqa: S105, S106 - the tokens belong to servers that live as long as one test

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer

from dra_driver.admin.api.reads import each
from dra_driver.errors import (
    AccessError,
    ApiError,
    InvalidError,
    NotFoundError,
    SetupError,
    StaleError,
    UnavailableError,
)
from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.resource import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"namespace": "default", "name": "web", "uid": "claim-1"},
    "spec": {"devices": {}, "fieldOfAnotherRelease": {"kept": True}},
    "status": {"allocation": {"devices": {"results": []}}},
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.put(CLAIM, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        yield running


def test_a_claim_comes_as_a_dict_with_every_field_it_has(client: KubeClient) -> None:
    claim = client.get_claim("default", "web", timeout=5)
    assert claim["metadata"]["uid"] == "claim-1"  # type: ignore[index]
    assert claim["spec"] == CLAIM["spec"]
    assert claim["status"] == CLAIM["status"]


def test_objects_of_a_kind_come_page_by_page(server: ApiServer, client: KubeClient) -> None:
    for name in ("a", "b"):
        server.put({**CLAIM, "metadata": {"namespace": "n", "name": name, "uid": name}})
    found = each(client, RESOURCE_CLAIMS, page=2, timeout=5)
    assert {claim["metadata"]["uid"] for claim in found} == {"a", "b", "claim-1"}  # type: ignore[index]
    first, last = server.seen("list", "resourceclaims")
    assert (first.query["limit"], "continue" in first.query, "continue" in last.query) == (
        "2",
        False,
        True,
    )
    assert list(each(client, NODES, timeout=5))
    assert server.seen("list", "nodes")[0].query["limit"] == "500", "as kubectl asks for"


def test_a_missing_claim_is_not_found(client: KubeClient) -> None:
    with pytest.raises(NotFoundError, match=r"get resourceclaims default/gone.*not found"):
        client.get_claim("default", "gone", timeout=5)


def test_an_api_that_is_not_served_is_not_mistaken_for_a_missing_object(client: KubeClient) -> None:
    old = Resource(group="resource.k8s.io", version="v1alpha9", plural="resourceclaims")
    with pytest.raises(ApiError, match=r"does not serve resource.k8s.io/v1alpha9") as caught:
        client.get(old, "web", timeout=5)
    assert not isinstance(caught.value, NotFoundError)


def test_requests_have_a_user_agent(server: ApiServer, client: KubeClient) -> None:
    client.get_node("n1", timeout=5)
    (seen,) = server.seen("get", "nodes")
    assert seen.headers["User-Agent"].startswith("dra-driver/")


def test_a_missing_permission_is_named_with_its_verb_and_resource(
    server: ApiServer, client: KubeClient
) -> None:
    server.fail("get", status=403, message="user cannot get resource")
    with pytest.raises(AccessError) as caught:
        client.get_claim("default", "web", timeout=5)
    assert "grant the verb 'get' on resourceclaims.resource.k8s.io" in str(caught.value)
    assert caught.value.status == 403


def test_a_busy_server_is_unavailable_and_not_asked_again(
    server: ApiServer, client: KubeClient
) -> None:
    server.fail("get", status=429, retry_after=7)
    with pytest.raises(UnavailableError) as caught:
        client.get_node("n1", timeout=5)
    assert caught.value.retry_after == 7
    assert len(server.seen("get")) == 1


def test_a_server_that_is_down_is_unavailable_and_then_found_again(
    server: ApiServer, client: KubeClient
) -> None:
    client.get_node("n1", timeout=5)
    server.stop()
    with pytest.raises(UnavailableError, match="not reachable"):
        client.get_node("n1", timeout=5)
    server.start()
    assert client.get_node("n1", timeout=5)["kind"] == "Node"


def test_a_read_survives_a_kept_alive_connection_that_the_server_closed(
    server: ApiServer, client: KubeClient
) -> None:
    client.get_node("n1", timeout=5)
    server.fail("get", hang_up=True)
    assert client.get_node("n1", timeout=5)["kind"] == "Node"


def test_a_write_is_not_sent_twice(server: ApiServer, client: KubeClient) -> None:
    server.fail("create", hang_up=True)
    with pytest.raises(UnavailableError):
        client.create(NODES, {"metadata": {"name": "n2"}}, timeout=5)
    assert len(server.seen("create")) == 1


def test_a_slow_server_ends_in_a_timeout(server: ApiServer, client: KubeClient) -> None:
    server.fail("get", delay=2)
    with pytest.raises(UnavailableError, match="did not answer in time"):
        client.get_node("n1", timeout=0.1)


def test_overwriting_a_newer_object_is_stale(client: KubeClient) -> None:
    node = client.get_node("n1", timeout=5)
    client.update(NODES, "n1", node | {"spec": {"unschedulable": True}}, timeout=5)
    with pytest.raises(StaleError, match="has been modified"):
        client.update(NODES, "n1", node | {"spec": {}}, timeout=5)


def test_a_broken_object_is_invalid_and_its_field_is_named(client: KubeClient) -> None:
    slice_without_driver = {
        "metadata": {"name": "s"},
        "spec": {"nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1}},
    }
    with pytest.raises(InvalidError, match=r"spec.driver: Invalid value"):
        client.create(RESOURCE_SLICES, slice_without_driver, timeout=5)


def test_deleting_with_another_uid_is_refused(server: ApiServer, client: KubeClient) -> None:
    with pytest.raises(StaleError):
        client.delete(
            RESOURCE_CLAIMS, "web", namespace="default", preconditions={"uid": "x"}, timeout=5
        )
    client.delete(
        RESOURCE_CLAIMS, "web", namespace="default", preconditions={"uid": "claim-1"}, timeout=5
    )
    assert server.objects("resourceclaims") == []


def test_many_threads_share_one_client(server: ApiServer, client: KubeClient) -> None:
    answers: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(client.get_claim("default", "web", timeout=5))
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16


def in_pod(server: ApiServer, directory: Path) -> KubeClient:
    """The client of a pod that has its ServiceAccount in this directory."""
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    return KubeClient.in_cluster(environment, directory=directory)


@pytest.fixture
def other(tmp_path: Path, make_certificate: Callable[[Path], tuple[Path, Path]]) -> Path:
    """A certificate that has not signed the server's."""
    return make_certificate(tmp_path / "other")[0]


class TestCredentials:
    def test_a_renewed_token_is_read_again_after_a_401(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first\n")
        with ApiServer(token="first") as server:
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            config = server.write_kubeconfig(tmp_path / "kubeconfig", tokenFile=str(file))
            client = from_kubeconfig(config)
            client.get_node("n1", timeout=5)
            file.write_text("second\n")
            server.token = "second"
            assert client.get_node("n1", timeout=5)["kind"] == "Node"
            client.close()

    def test_a_refused_token_is_an_access_error_that_does_not_show_it(self, tmp_path: Path) -> None:
        with ApiServer(token="right") as server:
            config = server.write_kubeconfig(tmp_path / "kubeconfig", token="very-secret")
            client = from_kubeconfig(config)
            with pytest.raises(AccessError, match="does not accept") as caught:
                client.get_node("n1", timeout=5)
            client.close()
        assert "very-secret" not in str(caught.value)

    def test_a_pod_uses_its_mounted_service_account_over_tls(
        self, tmp_path: Path, certificate: tuple[Path, Path]
    ) -> None:
        (tmp_path / "token").write_text("pod-token")
        shutil.copy(certificate[0], tmp_path / "ca.crt")
        with ApiServer(token="pod-token", tls=certificate) as server:
            server.put(CLAIM)
            client = in_pod(server, tmp_path)
            assert client.get_claim("default", "web", timeout=5)["kind"] == "ResourceClaim"
            client.close()

    def test_an_authority_that_is_replaced_is_read_again(
        self, tmp_path: Path, certificate: tuple[Path, Path], other: Path
    ) -> None:
        (tmp_path / "token").write_text("t")
        shutil.copy(other, tmp_path / "ca.crt")
        with ApiServer(tls=certificate) as server:
            server.put(CLAIM)
            client = in_pod(server, tmp_path)
            with pytest.raises(UnavailableError, match="TLS with the API server failed"):
                client.get_claim("default", "web", timeout=5)
            assert server.log == []
            (tmp_path / "ca.crt").unlink()
            with pytest.raises(UnavailableError, match=r"TLS .* failed \(.*ca.crt: .*No such file"):
                client.get_claim("default", "web", timeout=5)
            shutil.copy(certificate[0], tmp_path / "ca.crt")
            assert client.get_claim("default", "web", timeout=5)["kind"] == "ResourceClaim"
            client.close()

    def test_an_authority_that_is_replaced_counts_from_the_next_connection_on(
        self, tmp_path: Path, certificate: tuple[Path, Path], other: Path
    ) -> None:
        (tmp_path / "token").write_text("t")
        shutil.copy(certificate[0], tmp_path / "ca.crt")
        with ApiServer(tls=certificate) as server:
            server.put(CLAIM)
            client = in_pod(server, tmp_path)
            client.get_claim("default", "web", timeout=5)
            shutil.copy(other, tmp_path / "ca.crt")
            assert client.get_claim("default", "web", timeout=5)["kind"] == "ResourceClaim"
            server.fail("get", hang_up=True)
            with pytest.raises(UnavailableError, match="TLS with the API server failed"):
                client.get_claim("default", "web", timeout=5)
            client.close()

    @pytest.mark.parametrize("token", ["one\r\nX-Other: two", "t\u00f6ken"])
    def test_an_invalid_token_is_not_sent(self, tmp_path: Path, token: str) -> None:
        with ApiServer() as server:
            client = from_kubeconfig(server.write_kubeconfig(tmp_path / "config", token=token))
            with pytest.raises(AccessError, match="has characters that are not allowed") as caught:
                client.get_node("n1", timeout=5)
            client.close()
        assert server.log == []
        assert token not in str(caught.value)

    @pytest.mark.parametrize(
        "content",
        ["", "[]", "{", "kind: Config", "current-context: a\ncontexts: []", "current-context: 3"],
    )
    def test_a_file_that_is_not_a_kubeconfig_is_refused(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "kubeconfig"
        path.write_text(content)
        with pytest.raises(SetupError, match="kubeconfig"):
            from_kubeconfig(path)

    @pytest.mark.parametrize("address", ["api:6443", "https://", "ftp://api", "https://api:port"])
    def test_a_server_without_an_address_is_no_valid_kubeconfig(
        self, server: ApiServer, tmp_path: Path, address: str
    ) -> None:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        path.write_text(path.read_text().replace(server.url, address))
        with pytest.raises(SetupError, match="is not a valid kubeconfig"):
            from_kubeconfig(path)

    @pytest.mark.parametrize("stray", ['"', ": [", "*", "!", "@"])
    def test_an_invalid_kubeconfig_is_reported_by_place_without_text(
        self, tmp_path: Path, stray: str
    ) -> None:
        path = tmp_path / "kubeconfig"
        path.write_text(f"users:\n- user:\n    token: {stray}hunter2\n")
        with pytest.raises(SetupError, match=r"it is not YAML \(line [34], column \d+\)") as caught:
            from_kubeconfig(path)
        assert "hunter2" not in str(caught.value)

    def test_a_kubeconfig_that_does_not_exist_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="nowhere"):
            from_kubeconfig(tmp_path / "nowhere")


class TestStatus:
    """Fields of an object's status that belong to one manager."""

    ENTRY: ClassVar = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}

    def body(self, uid: str, *devices: dict[str, str]) -> dict[str, Any]:
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        return {
            **claim,
            "metadata": {"name": "web", "uid": uid},
            "status": {"devices": list(devices)},
        }

    def test_applied_fields_belong_to_the_manager(
        self, server: ApiServer, client: KubeClient
    ) -> None:
        allocate(server, self.ENTRY)
        applied = client.apply_status(
            RESOURCE_CLAIMS,
            "web",
            self.body("claim-1", self.ENTRY),
            namespace="default",
            manager="us/one",
            timeout=5,
        )
        assert applied["status"]["devices"] == [self.ENTRY]  # type: ignore[index]
        (seen,) = server.seen("patch", "resourceclaims")
        assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
        assert seen.query == {"fieldManager": "us/one", "force": "true"}

    def test_another_claim_of_the_name_is_stale(
        self, server: ApiServer, client: KubeClient
    ) -> None:
        allocate(server, self.ENTRY)
        with pytest.raises(StaleError, match="uid in precondition"):
            client.apply_status(
                RESOURCE_CLAIMS,
                "web",
                self.body("claim-2", self.ENTRY),
                namespace="default",
                manager="us/one",
                timeout=5,
            )

    def test_a_device_that_is_not_allocated_is_invalid(self, client: KubeClient) -> None:
        with pytest.raises(InvalidError, match="must be an allocated device in the claim"):
            client.merge(
                RESOURCE_CLAIMS,
                "web",
                self.body("claim-1", self.ENTRY),
                namespace="default",
                subresource="status",
                manager="us/one",
                timeout=5,
            )


def allocate(server: ApiServer, device: dict[str, str]) -> None:
    """Give the claim a device."""
    kind = kind_of("resource.k8s.io/v1", "ResourceClaim")
    claim = server.store.get(kind, "default", "web")
    results = [{"request": "gpu", **device}]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    server.store.update(kind, "default", "web", claim, status_only=True)
