"""Prepares a release, checks it, prints its notes: `hack/release.py prepare|check|notes VERSION`.

VERSION is a semantic version without build metadata. `prepare` writes it where it stands, and the
changelog's section from the fragments in changes/; `check` fails if another version stands there,
the section is missing, or pages still say that nothing was released ("Releases", CONTRIBUTING.md).
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CHANGELOG = REPOSITORY / "CHANGELOG.md"
VERSION = r"\d+\.\d+\.\d+(?:-(?!simulator)[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)*)?"
SAID = re.compile(
    rf'(^version = "|^version: |^appVersion: |\bdra-driver(?:==|:)|\brefs/tags/v)({VERSION})',
    re.MULTILINE,
)
FILES = (
    *("pyproject.toml", "dra_driver/*/pyproject.toml", "README.md", "docs/*.md"),
    *("manifests/*.yaml", "manifests/chart/Chart.yaml"),
)
UNRELEASED = {
    "README.md": "There is no published image yet",
    "CONTRIBUTING.md": "Until the first release, no code reads",
    "SECURITY.md": "There is no release yet",
    "docs/operations.md": "Until the first release, drain",
    "docs/compatibility.md": "no releases yet: you build the image",
}
"""Texts of pages that are no longer true after the first release."""


def prepare(version: str) -> None:
    """Write a version wherever it is said, and the changelog's section."""
    for path in (path for pattern in FILES for path in REPOSITORY.glob(pattern)):
        path.write_text(SAID.sub(lambda match: match[1] + version, path.read_text()))
    towncrier = (REPOSITORY / ".venv/bin/towncrier", "build", "--yes", "--version", version)
    subprocess.run(towncrier, cwd=REPOSITORY, check=True)


def notes(version: str) -> str:
    """Return the text of a version's section in the changelog; empty if there is none."""
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, CHANGELOG.read_text(), re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def complaints(version: str) -> Iterator[str]:
    """Yield the obstacles to a release of a version."""
    for path in (path for pattern in FILES for path in sorted(REPOSITORY.glob(pattern))):
        for _, said in SAID.findall(path.read_text()):
            if said != version:
                yield f"{path.relative_to(REPOSITORY)} says {said}: hack/release.py prepare"
    if not notes(version):
        yield f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD' that says something"
    for fragment in sorted({*REPOSITORY.glob("changes/*.md")} - {REPOSITORY / "changes/README.md"}):
        yield f"changes/{fragment.name} is not in CHANGELOG.md: hack/release.py prepare"
    for page, words in UNRELEASED.items():
        if words in (REPOSITORY / page).read_text():
            yield f"{page} still says {words!r}: say what a release brings"


if __name__ == "__main__":
    verb, wanted = sys.argv[1:]
    if not re.fullmatch(VERSION, wanted):
        sys.exit(f"error: {wanted} is no version such as 1.2.3 or 1.2.3-rc.1")
    if verb == "prepare":
        prepare(wanted)
    elif verb == "notes":
        print(notes(wanted))
    elif wrong := list(complaints(wanted)):
        sys.exit("\n".join(wrong))
