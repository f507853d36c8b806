"""Makes the package of hack/cluster importable, and gives a file server on loopback."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "hack" / "cluster"))

from cluster.file_server import FileServer  # noqa: E402


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running
