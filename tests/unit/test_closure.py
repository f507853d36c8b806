"""What a node runs is a part of its own, and its folders are small; hack/closure.py counts it."""

import subprocess
import sys
from collections import Counter

import closure
import pytest

PEOPLES = ("dra_driver.admin", "dra_driver.simulator")
LARGE = {"dra_driver.devices"}
"""Folders that have more than 15 modules at present."""


@pytest.fixture(scope="module")
def groups() -> dict[str, set[str]]:
    return closure.groups(closure.graph())


@pytest.mark.parametrize("process", closure.PROCESSES)
def test_no_process_of_a_node_imports_what_people_run(
    process: str, groups: dict[str, set[str]]
) -> None:
    assert not [module for module in groups[process] if module.startswith(PEOPLES)]


@pytest.mark.parametrize("process", closure.PROCESSES)
def test_a_real_process_loads_nothing_beside_its_closure(
    process: str, groups: dict[str, set[str]]
) -> None:
    starts = closure.PROCESSES[process]
    program = f"import sys, {', '.join(starts)}\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    ours = {name for name in ran.stdout.split() if name.partition(".")[0] in closure.ROOTS}
    assert ours >= {*starts}
    assert not [module for module in ours if module.startswith(PEOPLES)]
    assert {module for module in ours if closure.file_of(module).is_file()} <= groups[process]


def test_no_folder_of_it_has_more_than_fifteen_modules(groups: dict[str, set[str]]) -> None:
    print("", *closure.table(groups), sep="\n")  # noqa: T201 (pytest -s shows it)
    rooms = {closure.room_of(module) for module in groups["both"]}
    modules = Counter(map(closure.room_of, groups["product"]))
    assert not {room: modules[room] for room in rooms - LARGE if modules[room] > 15}
