"""What becomes of one object: the objects that replace it, and what they do not carry over."""

from collections.abc import Mapping

from msgspec import Struct

from dra_driver.admin.validate.claim_fields import DEVICES
from resource_nvidia_com.problems import Path, Problem, dotted

Object = Mapping[str, object]

VERSION = "resource.k8s.io/v1"
"""The version that is written."""

SPECS: Mapping[str, Path] = {
    kind: tuple(part for part in path if part != "devices") for kind, path in DEVICES.items()
}
"""Where objects of each kind name their devices."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The objects that replace an object, none if it is left out, and what is lost."""

    objects: tuple[Object, ...] = ()
    losses: tuple[Problem, ...] = ()


def loss(path: Path, text: str) -> Problem:
    """Return what is lost of a field: why, and what to do instead."""
    return Problem(path=path, text=f"{dotted(path)}: {text}")


def replaced(holder: object, path: Path, value: object) -> dict[str, object]:
    """Return an object with another value at a path of keys."""
    fields = dict(holder) if isinstance(holder, Mapping) else {}
    key, *rest = path
    fields[str(key)] = replaced(fields.get(str(key)), tuple(rest), value) if rest else value
    return fields
