"""Names of extended resources, as the device plugin accepts them.

In: what a user wrote. Out: the full name, such as `nvidia.com/gpu`. The prefix may be left out.
Kubernetes requires the part after it to be a DNS subdomain (RFC 1123), and the plugin requires the
whole to be short enough for a label's name.
"""

import re
from typing import Final

from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import hint

PREFIX: Final = "nvidia.com/"
GPU: Final = f"{PREFIX}gpu"
LONGEST: Final = 63
"""The most characters of a full name."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_MIG = re.compile(r"nvidia\.com/mig-([0-9]+c\.)?[0-9]+g\.[0-9]+gb([-.][-.a-z0-9]*)?")
_EXAMPLE = "write lower-case letters, digits, - and ., such as gpu or mig-1g.5gb"


def resource_name(value: object) -> str:
    """Return the full name of a resource. Raises ValueError if it cannot be one."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a resource, not {shown(value)}")  # noqa: TRY004 (a mistake of a user)
    name = value if value.startswith(PREFIX) else PREFIX + value
    if len(name) > LONGEST:
        raise ValueError(
            f'"{plain(name)}" is too long: with {PREFIX} it must have at most {LONGEST} characters'
        )
    if not _SUBDOMAIN.fullmatch(name.removeprefix(PREFIX)):
        raise ValueError(f"{shown(value)} is not the name of a resource: {_EXAMPLE}")
    return name


def shareable_name(value: object) -> str:
    """Return the full name of a resource whose devices can be divided. Raises ValueError."""
    name = resource_name(value)
    if name == GPU or _MIG.fullmatch(name):
        return name
    near = hint(name.removeprefix(PREFIX), ("gpu",))
    raise ValueError(
        f"{plain(name)} cannot be divided: {near}must be {GPU} or a MIG profile such as "
        f"{PREFIX}mig-1g.5gb"
    )
