"""Fields of objects as the API server sends them, where each may be missing. Pure."""

from collections.abc import Mapping
from functools import lru_cache

from dra_driver.slices.pool import Object
from resource_nvidia_com.quantity import Quantity


def mapping(holder: object, *keys: str) -> Object:
    """Return the object below some keys; an empty one where there is none."""
    for key in keys:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def text(holder: object, key: str) -> str:
    """Return a string; an empty one where there is none."""
    value = mapping(holder).get(key)
    return value if isinstance(value, str) else ""


def number(holder: object, key: str, default: int = 0) -> int:
    """Return a whole number."""
    value = mapping(holder).get(key)
    return value if isinstance(value, int) else default


def texts(holder: object, key: str) -> tuple[str, ...]:
    """Return a list of strings."""
    value = mapping(holder).get(key)
    return tuple(map(str, value)) if isinstance(value, list) else ()


@lru_cache(maxsize=4096)
def quantity(value: str) -> Quantity:
    """Return a quantity. Many devices have the same few.

    Raises:
        ValueError: it is none.
    """
    return Quantity.parse(value)


def nanos(value: object) -> int:
    """Return a quantity in billionths of its unit.

    Raises:
        ValueError: it is none.
    """
    return quantity(str(value)).nanos


def full_name(thing: Object) -> str:
    """Return an object's namespace and name."""
    metadata = mapping(thing, "metadata")
    return f"{text(metadata, 'namespace')}/{text(metadata, 'name')}"
