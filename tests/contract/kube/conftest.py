"""Clients of an API server on loopback, and certificates for one."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.kube.client import KubeClient
from dra_driver.kube.kubeconfig import from_kubeconfig

Certificate = tuple[Path, Path]
"""Certificate and key."""


@pytest.fixture
def make_certificate() -> Callable[[Path], Certificate]:
    """Makes a self-signed certificate for 127.0.0.1; its file names begin with the given path."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the test's certificate, and is not installed")

    def make(stem: Path) -> Certificate:
        authority, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
        command = ["openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=test"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-out", str(authority), "-keyout", str(key)]
        subprocess.run(command, check=True, capture_output=True)
        return authority, key

    return make


@pytest.fixture
def certificate(tmp_path: Path, make_certificate: Callable[[Path], Certificate]) -> Certificate:
    return make_certificate(tmp_path / "server")


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[KubeClient]:
    made = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
    yield made
    made.close()
