"""What tests of `dra-driver gather` leave."""

import threading
from collections.abc import Iterator

import pytest

from worlds.configs import PATIENCE


@pytest.fixture(autouse=True)
def looks_ended() -> Iterator[None]:
    """Wait for looks that a hung call had kept: they close NVML, for the next test too."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("gather-"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name
