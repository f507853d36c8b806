"""A daemon whose record is gone is still found, by the socket that only it can have."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]


def test_daemons_without_a_record_are_adopted_or_ended(mps: MpsDomains, run: Run) -> None:
    kept, unwanted = mps.domain("kept", 0), mps.domain("unwanted", 1)
    with mps.supervised():
        daemon = mps.ready(kept).daemon
        mps.ready(unwanted)
    for domain in (kept, unwanted):
        mps.files.paths(domain.id).record.unlink()
    mps.requests.remove(unwanted.id)

    run(mps.supervised())
    eventually(mps.requests.supervisor_runs, "the supervisor to run")

    assert mps.ready(kept).daemon == daemon
    mps.requests.wait_gone(unwanted.id, time.monotonic() + PATIENCE)
    assert mps.left(unwanted) == []
    mps.gone(kept)
    assert mps.left(kept) == []
