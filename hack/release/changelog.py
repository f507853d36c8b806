"""The changelog: one section for each release, and one for what is not released yet.

In: its text. Out: a version's section, or the text in which the unreleased section has become a
version's.
"""

import re
from dataclasses import dataclass
from datetime import date

UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_DATED = re.compile(r"(?P<version>\S+) - (?P<day>\d{4}-\d{2}-\d{2})")


class ChangelogError(Exception):
    """The changelog lacks something; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section: its title without `## `, and its text without it."""

    title: str
    text: str


def sections(text: str) -> list[Section]:
    """The sections of a changelog, in its order."""
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    return [
        Section(title=heading["title"].strip(), text=text[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    ]


def notes(text: str, version: str) -> str:
    """Return the text of a version's section.

    Raises ChangelogError if there is none, it says nothing, or its title has no date.
    """
    fitting = [section for section in sections(text) if section.title.split(" ")[0] == version]
    if not fitting:
        raise ChangelogError(f"there is no section {version}; write it: hack/release prepare")
    if not fitting[0].text:
        raise ChangelogError(f"the section {version} says nothing")
    dated = _DATED.fullmatch(fitting[0].title)
    if dated is None or not _is_day(dated["day"]):
        raise ChangelogError(f"the title '{fitting[0].title}' is not '{version} - YYYY-MM-DD'")
    return fitting[0].text


def released(text: str, version: str, day: date) -> str:
    """Return the text with a version's section instead of the unreleased one, and a new one above.

    Raises ChangelogError if there is nothing to release, or the version has a section already.
    """
    known = sections(text)
    if any(section.title.split(" ")[0] == version for section in known):
        raise ChangelogError(f"there is a section {version} already")
    if not any(section.title == UNRELEASED and section.text for section in known):
        raise ChangelogError(f"there is no section {UNRELEASED} that says something")
    heading = f"## {UNRELEASED}"
    return text.replace(heading, f"{heading}\n\n## {version} - {day.isoformat()}", 1)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
