"""The project's version: in pyproject.toml, and repeated where files need it literally.

In: the repository's folder. Out: the version, and the places with another one, or all places
changed. Semantic versions that tags of images and charts allow: no build metadata, because tags
cannot contain `+`.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z][0-9A-Za-z.-]*)?")
EXAMPLES = "1.2.3 or 1.2.3-rc.1"

_IN_TEXT = r"(?P<version>\d+\.\d+\.\d+(?:-(?!simulator)[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)*)?)"
_PLACES = {
    "pyproject.toml": [r'^version = "(?P<version>[^"]*)"'],
    "dra_driver/*/pyproject.toml": [
        r'^version = "(?P<version>[^"]*)"',
        r'"dra-driver==(?P<version>[^"]*)"',
    ],
    "manifests/*.yaml": [r"\bimage: dra-driver:(?P<version>\S+)"],
    "manifests/chart/Chart.yaml": [
        r"^version: (?P<version>\S+)",
        r"^appVersion: (?P<version>\S+)",
    ],
    "README.md": [rf"\bdra-driver:{_IN_TEXT}"],
    "docs/*.md": [rf"\bdra-driver:{_IN_TEXT}", rf"\brefs/tags/v{_IN_TEXT}"],
}
"""The text around the version, by file. Missing files are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place with a version."""

    path: Path
    line: int
    said: str


def current(repository: Path) -> str:
    """The version of pyproject.toml."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def places(repository: Path) -> Iterator[Place]:
    """Yield every place with a version."""
    for path, pattern in _searched(repository):
        text = path.read_text()
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Place(path=path.relative_to(repository), line=line, said=match["version"])


def write(repository: Path, version: str) -> None:
    """Write a version into every place."""
    for path, pattern in _searched(repository):
        text = path.read_text()
        changed = pattern.sub(lambda match: _with(match, version), text)
        if changed != text:
            path.write_text(changed)


def _searched(repository: Path) -> Iterator[tuple[Path, re.Pattern[str]]]:
    for files, patterns in _PLACES.items():
        for path in sorted(repository.glob(files)):
            for pattern in patterns:
                yield path, re.compile(pattern, re.MULTILINE)


def _with(match: re.Match[str], version: str) -> str:
    start, end = (at - match.start() for at in match.span("version"))
    return f"{match[0][:start]}{version}{match[0][end:]}"
