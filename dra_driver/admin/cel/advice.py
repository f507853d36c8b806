"""What to write instead of a selector that fails, based on what the devices have. Pure.

In: the evaluator's error, the selector, and devices. Out: a sentence, or nothing. It knows common
mistakes: memory as an attribute, `index`, a version compared with a number, and quantities
compared by operators.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from dra_driver.admin.cel.selector import Subject
from dra_driver.admin.cel.values import Semver

_NO_KEY = re.compile(r"no such key: (?P<key>\S+)")
_NO_OVERLOAD = re.compile(r"no such overload")
_COMPARED = re.compile(r"\.(?P<name>\w+)\s*(?P<how>[<>]=?|==)\s*(?P<number>\d+(?:\.\d+){0,2})\b")
_QUANTITIES = re.compile(
    r"\.(?P<name>\w+)\s*(?P<how>[<>]=?|==)\s*quantity\((?P<text>'[^']*'|\"[^\"]*\")"
)
_MOST_NAMED = 12


def advice(error: str, selector: str, subjects: Iterable[Subject]) -> str:
    """Return what to change; empty if nothing is known."""
    devices = list(subjects)
    if missing := _NO_KEY.search(error):
        return _of_key(missing["key"].strip("'\""), devices)
    if _NO_OVERLOAD.search(error):
        return _of_types(selector, devices)
    return ""


def _of_key(key: str, subjects: list[Subject]) -> str:
    attributes = {_own(subject, name) for subject in subjects for name in subject.attributes}
    capacities = {_own(subject, name) for subject in subjects for name in subject.capacity}
    if key in attributes:
        return (
            "some devices do not have this attribute: guard it in the selector: "
            "`.?name.orValue(...)`, or has()"
        )
    if key.lower().startswith("memory") and "memory" in capacities:
        driver = next(subject.driver for subject in subjects if subject.capacity)
        return (
            "memory is a capacity, not an attribute: write "
            f"`device.capacity['{driver}'].memory.compareTo(quantity('40Gi')) >= 0`"
        )
    if key in capacities:
        return f"{key} is a capacity: write `device.capacity[...].{key}.compareTo(quantity(...))`"
    close = get_close_matches(key, attributes, n=1, cutoff=0.6)
    meant = f" (did you mean {close[0]}?)" if close else ""
    named = ", ".join(
        sorted(attribute for attribute in attributes if "/" not in attribute)[:_MOST_NAMED]
    )
    return f"no device has an attribute {key}{meant}; they have {named}" if attributes else ""


def _of_types(selector: str, subjects: list[Subject]) -> str:
    versions = {
        _own(subject, name)
        for subject in subjects
        for name, value in subject.attributes.items()
        if isinstance(value, Semver)
    }
    for match in _COMPARED.finditer(selector):
        if match["name"] in versions:
            number = ".".join([*match["number"].split("."), "0", "0"][:3])
            return (
                f"{match['name']} is a version, not a number: write "
                f"`.{match['name']}.compareTo(semver('{number}')) {match['how']} 0`"
            )
    if wrong := _QUANTITIES.search(selector):
        return (
            "quantities are not compared by operators: write "
            f"`.{wrong['name']}.compareTo(quantity({wrong['text']})) {wrong['how']} 0`"
        )
    return ""


def _own(subject: Subject, name: str) -> str:
    """Return a name without the driver's domain; other domains stay."""
    domain, _, own = name.rpartition("/")
    return own if domain in ("", subject.driver) else name
