"""A daemon whose record is lost is still found, by the socket that only it can have."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_daemons_whose_record_is_lost_are_adopted_or_ended(
    mps: MpsDomains, run: Run, lose: Callable[[Path], object]
) -> None:
    kept, unwanted = mps.domain("kept", 0), mps.domain("unwanted", 1)
    with mps.supervised():
        daemon = mps.ready(kept).daemon
        mps.ready(unwanted)
    for domain in (kept, unwanted):
        lose(mps.files.paths(domain.id).record)
    mps.requests.remove(unwanted.id)

    run(mps.supervised())
    eventually(mps.supervisor_runs, "the supervisor to run")

    assert mps.ready(kept).daemon == daemon
    mps.requests.wait_gone(unwanted.id, time.monotonic() + PATIENCE)
    assert mps.left(unwanted) == []
    mps.gone(kept)
    assert mps.left(kept) == []
