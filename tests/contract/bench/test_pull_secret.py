"""The Secret that pulls a run's images is copied into its namespace, or nothing is made."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.admin.connect import connect
from dra_driver.bench.pods.manifests import PULL_SECRET, Place
from dra_driver.bench.pods.runner import PodRunner
from dra_driver.errors import AccessError, SetupError
from dra_driver.kube.client import KubeClient
from published import device, slices

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "registry", "namespace": "ci"},
    "type": "kubernetes.io/dockerconfigjson",
    "data": {".dockerconfigjson": "e30="},
}
PLACE = Place(image="bench:1", pull_secret="ci/registry")  # noqa: S106 (its name)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.put(*slices([device("gpu-0")], node="n-1"))
        yield server


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[KubeClient]:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    with closing(connect(kubeconfig, "", environment={})) as client:
        yield client


def test_a_run_has_a_copy_of_the_secret_in_its_namespace(
    server: ApiServer, client: KubeClient
) -> None:
    server.put(SECRET)
    with PodRunner(client, PLACE, print) as runner:
        (copy,) = [
            one
            for one in server.objects("secrets")
            if one["metadata"]["namespace"] == runner.namespace
        ]
        assert copy["metadata"]["name"] == PULL_SECRET
        assert (copy["type"], copy["data"]) == (SECRET["type"], SECRET["data"])
    assert server.objects("namespaces") == []


def test_without_the_secret_no_namespace_is_made(server: ApiServer, client: KubeClient) -> None:
    with (
        pytest.raises(SetupError, match="there is no Secret registry in namespace ci"),
        PodRunner(client, PLACE, print),
    ):
        pass
    assert server.seen("create", "namespaces") == []


def test_a_namespace_that_gets_no_secret_is_deleted(server: ApiServer, client: KubeClient) -> None:
    server.put(SECRET)
    server.fail("create", "secrets", status=403)
    with pytest.raises(AccessError), PodRunner(client, PLACE, print):
        pass
    assert len(server.seen("create", "namespaces")) == 1
    assert server.objects("namespaces") == []
