"""What a node runs is a part of its own, and its folders are small; hack/closure.py counts it."""

import subprocess
import sys
from collections import Counter

import closure
import pytest

PEOPLES = ("dra_driver.admin", "dra_driver.bench", "dra_driver.simulator")
LARGE = {"dra_driver.devices"}
"""Folders that have more than 15 modules at present."""

SELDOM = (
    "dra_driver.claims.takeover.take_over",
    "dra_driver.manifest",
    "dra_driver.shares.config",
    "dra_driver.shares.divide",
    "dra_driver.usage",
    "kubernetes",
    "pydantic",
    "pydantic_core",
    "resource_nvidia_com.decode",
    "resource_nvidia_com.device_plugin",
    "resource_nvidia_com.model",
    "yaml",
)
"""What only some nodes need, by a setting or by what is there, and the others do not load."""


@pytest.fixture(scope="module")
def groups() -> dict[str, set[str]]:
    return closure.groups(closure.graph())


def loaded(process: str) -> list[str]:
    """The modules that a process has when it starts."""
    program = f"import sys, {', '.join(closure.PROCESSES[process])}\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


def is_seldom(module: str) -> bool:
    return any(f"{module}.".startswith(f"{one}.") for one in SELDOM)


@pytest.mark.parametrize("process", closure.PROCESSES)
def test_a_real_process_loads_nothing_beside_its_closure(
    process: str, groups: dict[str, set[str]]
) -> None:
    starts = closure.PROCESSES[process]
    ours = {name for name in loaded(process) if name.partition(".")[0] in closure.ROOTS}
    assert ours >= {*starts}
    assert not [module for module in ours if module.startswith(PEOPLES)]
    assert {module for module in ours if closure.file_of(module).is_file()} <= groups[process]


@pytest.mark.parametrize("process", closure.PROCESSES)
def test_what_only_some_nodes_need_is_not_loaded_by_all(process: str) -> None:
    assert not [name for name in loaded(process) if is_seldom(name)]


def test_what_only_some_nodes_need_is_part_of_the_closure_all_the_same(
    groups: dict[str, set[str]],
) -> None:
    assert any(map(is_seldom, groups["kubelet-plugin"]))


def test_no_folder_of_it_has_more_than_fifteen_modules(groups: dict[str, set[str]]) -> None:
    print("", *closure.table(groups), sep="\n")  # noqa: T201 (pytest -s shows it)
    rooms = {closure.room_of(module) for module in groups["both"]}
    modules = Counter(map(closure.room_of, groups["product"]))
    assert not {room: modules[room] for room in rooms - LARGE if modules[room] > 15}
