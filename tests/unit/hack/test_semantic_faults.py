"""The faults that people wrote for hack/mutants still fit the code: each is once where it says."""

import ast
from functools import cache
from pathlib import Path

import pytest
from mutants import written
from mutants.rooms import EVERY

ROOT = Path(__file__).parents[3]


def test_each_room_has_faults_and_no_faults_are_of_another_room() -> None:
    files = {path.stem for path in (ROOT / "hack/mutants/semantic").iterdir()}
    assert files == {room.replace("/", "-") for room in EVERY}


@cache
def dump(text: str) -> str:
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("room", EVERY)
def test_a_fault_is_in_a_module_of_its_room_where_it_changes_what_runs(room: str) -> None:
    sources = {
        str(path.relative_to(ROOT)) for glob in EVERY[room].sources for path in ROOT.glob(glob)
    }
    for fault in written.read(room):
        assert fault.module in sources
        text = (ROOT / fault.module).read_text()
        assert text.count(fault.old) == 1, f"not once in {fault.module}: {fault.fault}"
        assert dump(text.replace(fault.old, fault.new)) != dump(text), fault.fault
