"""A daemon whose record is gone is still found, by the socket that only it can have."""

import time
from collections.abc import Callable

from dra_driver.mps.supervisor import Supervisor
from mps_world import PATIENCE, World

Run = Callable[[Supervisor], Supervisor]
Stop = Callable[[Supervisor], None]


def test_daemons_without_a_record_are_adopted_or_ended(world: World, run: Run, stop: Stop) -> None:
    first = run(world.supervisor())
    kept, unwanted = world.domain("kept", 0), world.domain("unwanted", 1)
    daemon = world.ready(kept).daemon
    world.ready(unwanted)
    stop(first)
    for domain in (kept, unwanted):
        world.files.paths(domain.id).record.unlink()
    world.requests.remove(unwanted.id)

    run(world.supervisor())

    assert world.ready(kept).daemon == daemon
    world.requests.wait_gone(unwanted.id, time.monotonic() + PATIENCE)
    assert world.left(unwanted) == []
    world.gone(kept)
    assert world.left(kept) == []
