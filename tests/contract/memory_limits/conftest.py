"""Nodes whose driver limits memory by control groups, under one of NVML's backends or both."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from worlds.limited_node import LimitedNode


@pytest.fixture(params=["misc", "dmem"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LimitedNode]:
    with closing(LimitedNode.made(tmp_path, request.param)) as made:
        yield made


@pytest.fixture
def misc(tmp_path: Path) -> Iterator[LimitedNode]:
    with closing(LimitedNode.made(tmp_path, "misc")) as made:
        yield made


@pytest.fixture
def dmem(tmp_path: Path) -> Iterator[LimitedNode]:
    with closing(LimitedNode.made(tmp_path, "dmem")) as made:
        yield made
