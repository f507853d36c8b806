from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.driver import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()
