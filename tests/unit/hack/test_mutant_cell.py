"""What runs in a cell of hack/mutants is late by its CPU time, or when it waits for too long."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mutants import cell

LONG = 1000.0


def spin() -> int:
    while True:
        pass


def wait() -> int:
    while True:
        time.sleep(LONG)


def run(work: Callable[[], int], limit: cell.Limit, folder: Path) -> int:
    return cell.run(work, limit=limit, writable=(folder,), log=folder / "log")


@pytest.mark.parametrize(
    ("work", "limit"), [(spin, {"cpu": 0.5, "wall": LONG}), (wait, {"cpu": LONG, "wall": 0.5})]
)
def test_what_spins_and_what_waits_for_ever_both_end_late(
    tmp_path: Path, work: Callable[[], int], limit: dict[str, float]
) -> None:
    assert run(work, cell.Limit(**limit), tmp_path) == cell.LATE


def test_what_gets_on_puts_its_end_off_and_its_next_step_is_late_by_its_own_time(
    tmp_path: Path,
) -> None:
    limit = cell.Limit(cpu=1.0, wall=LONG)

    def busy() -> int:
        limit.put_off(cpu=4.0, wall=LONG)
        while time.process_time() < 1.5:
            pass
        return 3

    def stuck() -> int:
        limit.put_off(cpu=LONG, wall=0.2)
        return wait()

    assert run(busy, limit, tmp_path) == 3
    assert run(stuck, limit, tmp_path) == cell.LATE
