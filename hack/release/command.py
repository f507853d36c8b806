"""The command line of `hack/release`."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from release import changelog, versions
from release.checks import CHANGELOG, complaints

REPOSITORY = Path(__file__).resolve().parents[2]


def main(words: Sequence[str], repository: Path = REPOSITORY) -> int:
    """Run one command; return 1 if something is missing for a release."""
    options = _options(words)
    try:
        if options.verb == "prepare":
            _prepare(repository, options.version)
        elif options.verb == "notes":
            text = (repository / CHANGELOG).read_text()
            print(changelog.notes(text, versions.current(repository)))
        else:
            return _check(repository, options.tag)
    except changelog.ChangelogError as error:
        sys.stderr.write(f"error: {CHANGELOG}: {error}\n")
        return 1
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/release")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    check = verbs.add_parser("check", help="say what is missing for a release under a tag")
    check.add_argument("--tag", required=True, help="such as v1.2.3")
    prepare = verbs.add_parser("prepare", help="write a version wherever it is said")
    prepare.add_argument("version", type=_version, help="such as 1.2.3")
    verbs.add_parser("notes", help="print what the changelog says of the current version")
    return parser.parse_args(words)


def _version(text: str) -> str:
    if not versions.VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is no version such as {versions.EXAMPLES}")
    return text


def _prepare(repository: Path, version: str) -> None:
    file = repository / CHANGELOG
    text = changelog.released(file.read_text(), version, datetime.now(UTC).date())
    versions.write(repository, version)
    file.write_text(text)
    print(f"version {version} is written; now: hack/generate, commit, git tag v{version}")


def _check(repository: Path, tag: str) -> int:
    problems = complaints(repository, tag)
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    if not problems:
        print(f"{tag} can be released")
    return int(bool(problems))
