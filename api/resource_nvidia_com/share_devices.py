"""Which devices of a resource are divided, in the form of the device plugin's config file.

In: the value of a field `devices`. Out: a `DeviceChoice`: all, a count, or a list of references.
A reference names a GPU or a MIG device, by indexes or by UUID. Only the node knows whether such a
device exists, and whether two references mean the same one.
"""

import re
from typing import Final, Literal

from resource_nvidia_com.printable import shown

DeviceChoice = Literal["all"] | int | tuple[str, ...]
"""All devices of the resource, any that many of them, or these: by the index of a GPU (`0`) or of a
MIG device (`0:1`), or by UUID in NVML's spelling; at least one, none twice."""

MOST_DEVICES: Final = 1024
"""The limit of counts and indexes, which is more than any node has."""

_INDEX = "(0|[1-9][0-9]{0,3})"
_HEX = "[0-9A-Fa-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_FORM = re.compile(f"{_INDEX}(:{_INDEX})?|(GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/{_INDEX}/{_INDEX}")
"""The last one is a MIG device's UUID in the form of old drivers."""
_ALLOWED = 'must be "all", a count of devices, or a list of indexes and UUIDs'
_REFERENCE = "a GPU's index (0), a MIG device's (\"0:1\") or a UUID (GPU-… or MIG-…)"


def device_choice(value: object) -> DeviceChoice:
    """Return which devices a user chose. Raises ValueError."""
    match value:
        case "all":
            return "all"
        case bool():
            raise ValueError(f"{_ALLOWED}, not {shown(value)}")
        case int():
            if not 0 < value <= MOST_DEVICES:
                raise ValueError(
                    f"a count of devices must be 1 to {MOST_DEVICES}, not {shown(value)}"
                )
            return value
        case list():
            return _device_list(value)
        case _:
            raise ValueError(f"{_ALLOWED}, not {shown(value)}")


def _device_list(value: list[object]) -> tuple[str, ...]:
    if not value:
        raise ValueError('the list names no device: name some, or write "all"')
    references = tuple(map(_reference, value))
    for number, reference in enumerate(references):
        if reference in references[:number]:
            raise ValueError(f"{reference} is twice in the list: name each device once")
    return references


def is_whole_gpu(reference: str) -> bool:
    """Tell whether a reference names a GPU, not a MIG device."""
    return reference.isdecimal() or reference.startswith("GPU-")


def _reference(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _FORM.fullmatch(text):
        raise ValueError(f"{shown(value)} is not a device: write {_REFERENCE}")
    return text.lower().replace("gpu-", "GPU-").replace("mig-", "MIG-")
