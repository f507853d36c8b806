"""A driver root as an installer leaves it, small enough to see through."""

from pathlib import Path

import pytest

import driver_tree


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    return driver_tree.driver_root(tmp_path / "root")
