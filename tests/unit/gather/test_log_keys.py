"""Gather knows the keys of this program's log lines: of others it takes nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import dra_driver
from dra_driver.admin.gather.software import LOG_KEYS

LOGGERS, LEVELS = {"log", "_log"}, {"debug", "info", "warning", "error", "exception"}
OTHERS = {"exc_info"}


def keys() -> Iterator[str]:
    for path in Path(dra_driver.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in LOGGERS
            ):
                yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def test_every_key_of_our_log_lines_is_gathered() -> None:
    used = set(keys())
    assert len(used) > 50
    assert used - OTHERS - LOG_KEYS == set()
