"""Fields of objects as the API server sends them, where each may be missing or wrong. Pure.

A field of another type counts as missing: the default is returned, and no error is raised.
"""

from collections.abc import Mapping, Sequence

Object = Mapping[str, object]
"""A JSON object that is only read."""


def at(holder: object, *path: str | int) -> object:
    """Return the value below some keys; None if there is none."""
    for key in path:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder


def mapping(holder: object, *path: str | int) -> Object:
    """Return the object below some keys; an empty one if there is none."""
    value = at(holder, *path)
    return value if isinstance(value, Mapping) else {}


def text(holder: object, *path: str | int) -> str:
    """Return a string; an empty one if there is none."""
    value = at(holder, *path)
    return value if isinstance(value, str) else ""


def number(holder: object, *path: str | int, default: int = 0) -> int:
    """Return a whole number."""
    value = at(holder, *path)
    return value if isinstance(value, int) else default


def entries(holder: object, *path: str | int) -> Sequence[object]:
    """Return the items of a list; none if there is no list."""
    value = at(holder, *path)
    return value if isinstance(value, list | tuple) else ()


def objects(holder: object, *path: str | int) -> tuple[Object, ...]:
    """Return the JSON objects of a list, without its other items."""
    return tuple(entry for entry in entries(holder, *path) if isinstance(entry, Mapping))


def texts_by_name(holder: object, *path: str | int) -> dict[str, str]:
    """Return the strings of an object such as labels."""
    return {str(name): str(value) for name, value in mapping(holder, *path).items()}
