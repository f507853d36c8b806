"""What has to hold before a version is released.

In: the repository, and the tag that it is released under. Out: one complaint for each thing that is
missing, with what to do about it. Nothing is changed.
"""

import subprocess
from pathlib import Path

from release import changelog, versions

CHANGELOG = "CHANGELOG.md"

UNRELEASED = {
    "README.md": "There is no published image yet",
    "CONTRIBUTING.md": "Until the first release, no code reads",
    "docs/compatibility.md": "no releases yet: you build the image",
    CHANGELOG: "Nothing has been released yet",
}
"""Texts of pages that stop being true with the first release."""


def complaints(repository: Path, tag: str) -> list[str]:
    """Return what is missing for a release of the checked out commit under a tag."""
    version = versions.current(repository)
    return [
        *_of_version(repository, version),
        *_of_changelog(repository, version),
        *_of_pages(repository),
        *_of_tag(repository, version, tag),
        *_of_tree(repository),
        *_of_generated(repository),
    ]


def _of_version(repository: Path, version: str) -> list[str]:
    problems = []
    if not versions.VERSION.fullmatch(version):
        problems.append(f"pyproject.toml: {version} is no version such as {versions.EXAMPLES}")
    problems += [
        f"{place.path}:{place.line} says {place.said}, not {version}: hack/release prepare "
        "writes it"
        for place in versions.places(repository)
        if place.said != version
    ]
    return problems


def _of_changelog(repository: Path, version: str) -> list[str]:
    try:
        changelog.notes((repository / CHANGELOG).read_text(), version)
    except (OSError, changelog.ChangelogError) as error:
        return [f"{CHANGELOG}: {error}"]
    return []


def _of_pages(repository: Path) -> list[str]:
    return [
        f"{page}:{number} still says {words!r}: say what a release brings"
        for page, words in UNRELEASED.items()
        if (repository / page).is_file()
        for number, line in enumerate((repository / page).read_text().splitlines(), 1)
        if words in line
    ]


def _of_tag(repository: Path, version: str, tag: str) -> list[str]:
    if tag != f"v{version}":
        return [f"the tag is {tag}, but pyproject.toml says {version}: it has to be v{version}"]
    tagged = _git(repository, "rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if not tagged:
        return [f"there is no tag {tag}: git tag --annotate {tag}"]
    if tagged != _git(repository, "rev-parse", "HEAD"):
        return [f"the tag {tag} is on another commit than the one checked out: git checkout {tag}"]
    return []


def _of_tree(repository: Path) -> list[str]:
    changed = _git(repository, "status", "--porcelain").splitlines()
    if not changed:
        return []
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    names = ", ".join(line.strip() for line in changed[:3])
    return [f"the working tree is not clean ({names}{more}): commit it, or throw it away"]


def _of_generated(repository: Path) -> list[str]:
    done = subprocess.run(
        ["hack/generate", "--check"], cwd=repository, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return [f"hack/generate --check: {lines[-1]}"]


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=repository, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
