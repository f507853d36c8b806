"""Names that are close to this driver's, such as gpu.nvidia.org, and most likely stand for it.

Another driver may have such a name, so it is only a warning. The same patterns are in the admission
policy (admin/admission/policy.py), so they use only RE2's syntax.
"""

import re
from collections.abc import Iterator

from dra_driver.devices.names import DRIVER_NAME
from resource_nvidia_com.problems import Path, Problem, dotted, parts

_VENDOR = r"n[vi]{1,3}d[ei]?a\.[a-z]{2,}"
_DOMAIN = rf"([a-z0-9.-]*(gpu|mig)[a-z0-9.-]*\.)?{_VENDOR}"
NAME = rf"{_DOMAIN}(/[a-z0-9.-]*)?"
"""gpus.nvidia.com, gpu.nvida.com, mig.nvidia.com, nvidia.com/gpu; not compute-domain.nvidia.com."""

LITERAL = rf"""['"]{_DOMAIN}['"]"""
"""Such a name as a literal of CEL; there, nvidia.com/gpu is the value of an attribute."""

_LITERAL = re.compile(f"(?i){LITERAL}")
_NAME = re.compile(f"(?i){NAME}")


def is_near_miss(driver: str) -> bool:
    """Return whether a driver's name is close to ours, but different."""
    return driver != DRIVER_NAME and _NAME.fullmatch(driver) is not None


def warning(name: str, path: Path) -> Problem:
    """Return the warning about a name at `path`."""
    text = f'{dotted(path)}: "{name}" is not this driver: did you mean "{DRIVER_NAME}"?'
    return Problem(path=path, text=text)


def in_selectors(value: object) -> Iterator[Problem]:
    """Yield warnings about the CEL selectors of an object."""
    for path, part in parts(value):
        if path[-2:] == ("cel", "expression") and isinstance(part, str):
            names = dict.fromkeys(match.group()[1:-1] for match in _LITERAL.finditer(part))
            yield from (warning(name, path) for name in names if name != DRIVER_NAME)
