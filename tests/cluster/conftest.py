"""A file server on loopback."""

from collections.abc import Iterator

import pytest

from file_server import FileServer


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running
