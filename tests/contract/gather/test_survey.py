"""What gather asks NVML: all that the driver asks, and nothing that changes a GPU."""

import ast
import re
from pathlib import Path

import pynvml

import gathering
from dra_driver.devices import nvml

NOT_ASKED = {"nvmlDeviceGetHandleByUUID": "GPUs are named by their index"}


def of_the_driver() -> set[str]:
    """The questions of all modules of the door to NVML."""
    found = set()
    for path in Path(str(nvml.__file__)).parent.glob("*.py"):
        if path.name != "survey.py":
            nodes = ast.walk(ast.parse(path.read_text()))
            found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in found if re.fullmatch(r"nvml[A-Z]\w*?Get[A-Z]\w*", name)}


def plain(name: str) -> str:
    """A function's name without its version."""
    return re.sub(r"(_v\d|(?<=[a-z])V)$", "", name)


def test_all_that_the_driver_asks_is_asked_and_nothing_is_set(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "h100x8-mig")
    node.machine.create_mig(node.machine.find("4").uuid, "1g.10gb")
    node.gathered()

    asked = {plain(name) for name in pynvml._nvmlGetFunctionPointer_cache}
    wanted = {plain(name) for name in of_the_driver()}
    assert len(wanted) > 40
    missing = {
        name
        for name in wanted - asked - NOT_ASKED.keys()
        if hasattr(pynvml.nvmlLib, name) or hasattr(pynvml.nvmlLib, f"{name}_v2")
    }
    assert missing == set()
    changing = re.compile(r"Set[A-Z]|Create|Destroy|Register|Reset|Clear")
    assert [name for name in asked if changing.search(name)] == []
