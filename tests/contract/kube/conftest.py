"""Certificates for an API server on loopback."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

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
