"""The cluster's certificates, read by the openssl command."""

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


def test_keys_are_for_their_owner_alone(cluster: Cluster) -> None:
    modes = {path.stat().st_mode & 0o777 for path in cluster.pki.glob("*.key")}
    assert modes == {0o600}
    assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600
