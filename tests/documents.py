"""What stands in documents of YAML."""

from collections.abc import Iterator
from typing import Any


def values(node: Any, key: str) -> Iterator[Any]:
    """What stands below a key, anywhere in a document."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for one in node.values():
            yield from values(one, key)
    elif isinstance(node, list):
        for one in node:
            yield from values(one, key)
