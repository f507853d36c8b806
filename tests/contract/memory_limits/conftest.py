"""A node whose driver limits memory by control groups."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from worlds.limited_node import LimitedNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LimitedNode]:
    with closing(LimitedNode.made(tmp_path)) as made:
        yield made
