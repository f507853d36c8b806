"""The cluster's certificates, read by the openssl command."""

import base64
import json
import ssl
import subprocess
from pathlib import Path

import pytest
from cluster.certs import identities, write_pki
from cluster.state import Cluster, Options, Ports

PORTS = Ports(**{name: 20000 + n for n, name in enumerate(Ports.__dataclass_fields__)})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    state = tmp_path_factory.mktemp("pki")
    made = Cluster(
        name="dra", state=state, subnet=7, ports=PORTS, options=Options(kubernetes="1.37.1")
    )
    made.config.mkdir()
    write_pki(made)
    return made


def openssl(*arguments: str | Path) -> str:
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_certificate_chains_to_the_clusters_authority(cluster: Cluster) -> None:
    for identity in identities(cluster):
        certificate = cluster.pki / f"{identity.file}.crt"
        purposes = ["sslclient", *(["sslserver"] if identity.names else [])]
        for purpose in purposes:
            said = openssl(
                *("verify", "-x509_strict", "-purpose", purpose),
                *("-CAfile", cluster.pki / "ca.crt", certificate),
            )
            assert said.strip() == f"{certificate}: OK"


def test_the_kubelet_is_the_node_that_the_node_authorizer_knows(cluster: Cluster) -> None:
    subject = openssl(
        "x509", "-in", cluster.pki / "kubelet.crt", "-noout", "-subject", "-nameopt", "RFC2253"
    )
    assert subject.strip() == "subject=CN=system:node:dra-node,O=system:nodes"


def test_the_api_server_serves_under_loopback_and_the_services_name(cluster: Cluster) -> None:
    names = openssl(
        "x509", "-in", cluster.pki / "apiserver.crt", "-noout", "-ext", "subjectAltName"
    )
    for name in ("DNS:kubernetes.default.svc", "IP Address:127.0.0.1", "IP Address:10.213.7.1"):
        assert name in names


def test_keys_are_for_their_owner_alone(cluster: Cluster) -> None:
    modes = {path.stat().st_mode & 0o777 for path in cluster.pki.glob("*.key")}
    assert modes == {0o600}
    assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_a_kubeconfig_holds_all_that_a_client_needs(cluster: Cluster) -> None:
    document = json.loads(cluster.kubeconfig.read_text())
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:20000"
    authority = document["clusters"][0]["cluster"]["certificate-authority-data"]
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    context.load_cert_chain(cluster.pki / "admin.crt", cluster.pki / "admin.key")
    user = document["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == (cluster.pki / "admin.key").read_bytes()
