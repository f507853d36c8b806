"""The state file, from Python alone."""

import threading
from pathlib import Path

import pytest

from dra_driver.errors import SetupError, StateError
from dra_driver.simulator import layout, state
from dra_driver.simulator.layout import Fact, Text
from dra_driver.simulator.state import Driver, GpuFacts, State

DRIVER = Driver(version="535.261.03", cuda_version=12020, library_folder="usr/lib")


def gpu(uuid: str) -> GpuFacts:
    return GpuFacts(facts={Fact.MINOR: 3, Fact.COMPUTE_MODE: 0}, texts={Text.UUID: uuid})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "libnvidia-simulator.so.535.261.03"
    state.create(path, DRIVER, [gpu("GPU-a"), gpu("GPU-b")])
    return path


def test_an_unknown_uuid_is_an_error_that_lists_the_known(path: Path) -> None:
    with State(path) as now, pytest.raises(SetupError, match="GPU-a, GPU-b"):
        now.slot_of("GPU-c")


def test_writers_do_not_lose_each_others_changes(path: Path) -> None:
    def add() -> None:
        with State(path) as now:
            for _ in range(50):
                now.emit_event(0, event_type=8, data=1)

    threads = [threading.Thread(target=add, name=f"writer {n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    with State(path) as now, now.locked() as record:
        assert record.next_event == 200


def test_a_file_of_another_layout_is_refused(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[layout.STATE_OFFSET + layout.StateRecord.layout_version.offset] = 99
    path.write_bytes(bytes(content))
    with pytest.raises(StateError, match=r"layout 99.*simulate up"):
        State(path)
