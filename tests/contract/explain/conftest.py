"""`dra-driver explain` over an API server."""

from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from explained import Command


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    """An API server without the node that other tests need."""
    api.delete_all("nodes")
    return api


@pytest.fixture
def command(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(api, tmp_path, capsys)
