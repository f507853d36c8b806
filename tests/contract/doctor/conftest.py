"""A cluster that doctor looks at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from doctored import Doctor, installed

REVIEWS = "/apis/authorization.k8s.io/v1"
CONFIGZ = "/api/v1/nodes/node-1/proxy/configz"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.pages["/version"] = lambda _: {"gitVersion": "v1.37.1"}
        for kind in ("subjectaccessreviews", "selfsubjectaccessreviews"):
            server.pages[f"{REVIEWS}/{kind}"] = lambda _: {"status": {"allowed": True}}
        server.pages[CONFIGZ] = lambda _: {"kubeletconfig": {"featureGates": {}}}
        yield server


@pytest.fixture
def doctor(cluster: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Doctor of a cluster."""
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    words = ["doctor", "--scope=cluster", f"--kubeconfig={kubeconfig}", "-o", "json"]
    return Doctor(words, capsys)


@pytest.fixture
def well(cluster: ApiServer) -> ApiServer:
    """A cluster as an install leaves it."""
    installed(cluster)
    return cluster
