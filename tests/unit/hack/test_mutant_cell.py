"""What runs in a cell of hack/mutants is late by its CPU time, or when it waits for too long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import cell

HACK = Path(__file__).parents[3] / "hack"

PROGRAM = """\
import sys, time
from pathlib import Path
from mutants import cell

LONG = 1000.0
work, cpu, wall, folder = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
limit = cell.Limit(cpu=cpu, wall=wall)


def spin():
    while True:
        pass


def wait():
    while True:
        time.sleep(LONG)


def busy():
    limit.put_off(cpu=4.0, wall=LONG)
    while time.process_time() < 1.5:
        pass
    return 3


def stuck():
    limit.put_off(cpu=LONG, wall=0.2)
    return wait()


print(cell.run(globals()[work], limit=limit, writable=(folder,), log=folder / "log"))
"""


@pytest.mark.parametrize(
    ("work", "cpu", "wall", "expected"),
    [
        pytest.param("spin", 0.5, 1000.0, cell.LATE, id="spins"),
        pytest.param("wait", 1000.0, 0.5, cell.LATE, id="waits"),
        pytest.param("busy", 1.0, 1000.0, 3, id="gets on, and puts its end off"),
        pytest.param("stuck", 1.0, 1000.0, cell.LATE, id="got on, and waits"),
    ],
)
def test_what_spins_or_waits_for_ever_ends_late_and_what_gets_on_does_not(
    tmp_path: Path, work: str, cpu: float, wall: float, expected: int
) -> None:
    # In a process of its own: gRPC's threads, if other tests have left some, follow into no cell.
    command = [sys.executable, "-c", PROGRAM, work, str(cpu), str(wall), str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(HACK)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected, (tmp_path / "log").read_text()
