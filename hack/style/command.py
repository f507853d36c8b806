"""The command line of the style check: which texts, and what is wrong with them.

In: the pages, the golden help texts, the unreleased section of the changelog, alerts, the texts in
the product's code, docstrings and comments of all code; rules/ and the glossary. Out: a line for
each finding, as `path:line:column: text [rule]`. vale is compiled once, by hack/cluster; its rules
are in a folder that is made for each run, because the glossary's rules are written from its page.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from release.changelog import UNRELEASED

from style import glossary, literals

REPOSITORY = Path(__file__).resolve().parents[2]
CHANGELOG = Path("CHANGELOG.md")
GLOSSARY = Path("docs/glossary.md")
TEXTS = (
    *("README.md", "CONTRIBUTING.md", "docs/**/*.md", "manifests/**/*.md"),
    *("hack/cluster/README.md", "tests/data/help/*.txt", "dra_driver/**/*.py", "api/**/*.py"),
    *("hack/**/*.py", "tests/**/*.py"),
    *("manifests/alerts.yaml", "manifests/chart/templates/NOTES.txt"),
)
GENERATED = "protos"
REMARKS = "remarks"
OWN = ("hack", "tests")
"""Folders of which only docstrings and comments are checked: users do not read them."""
_HERE = Path(__file__).resolve().parent


class StyleError(Exception):
    """The check cannot be made; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """What is wrong at a place in a file; lines and columns count from 1."""

    path: str
    line: int
    column: int
    text: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.text} [{self.rule}]"


def main(words: Sequence[str]) -> int:
    """Print what is wrong; return 1 if something is, and 2 if that could not be found out."""
    parser = argparse.ArgumentParser(prog="hack/style", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="texts to check; unset: all of them")
    given = [path.resolve() for path in parser.parse_args(words).files]
    try:
        wrong = findings(vale(), given or list(texts()))
    except (StyleError, glossary.GlossaryError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for finding in wrong:
        print(finding)
    return 1 if wrong else 0


def texts() -> Iterator[Path]:
    """Yield what users read of this repository."""
    for pattern in TEXTS:
        paths = REPOSITORY.glob(pattern)
        yield from sorted(path for path in paths if path.parent.name != GENERATED)
    yield REPOSITORY / CHANGELOG


def vale() -> Path:
    """Return vale, which is compiled if it does not exist yet.

    Raises StyleError if that fails.
    """
    command = (sys.executable, REPOSITORY / "hack" / "cluster", "fetch", "vale")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise StyleError("vale is not available, for the reason above")
    return Path(done.stdout.split()[1], "vale")


def findings(program: Path, paths: Sequence[Path]) -> list[Finding]:
    """Return what vale finds in texts, in the order of their names.

    Raises StyleError if vale does not take a rule or a text.
    """
    with tempfile.TemporaryDirectory(prefix="style.") as scratch:
        folder = Path(scratch)
        shutil.copytree(_HERE / "rules", folder / "rules")
        shutil.copy(_HERE / "vale.ini", folder)
        _write_glossary(folder / "rules")
        copies = {
            copy: path
            for place, path in enumerate(paths)
            for copy in _copied(path, folder / str(place))
        }
        config = folder / "vale.ini"
        command: list[str | Path] = [program, "--config", config, "--output", "JSON", *copies]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        try:
            answer = json.loads(done.stdout)
            return sorted(_read(answer, copies))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            said = (done.stderr or done.stdout).strip()
            raise StyleError(f"vale ended with status {done.returncode}: {said}") from error


def _write_glossary(rules: Path) -> None:
    words = glossary.rule(glossary.terms((REPOSITORY / GLOSSARY).read_text()))
    target = rules / "Glossary" / f"{glossary.RULE}.yml"
    target.parent.mkdir()
    target.write_text(yaml.safe_dump(words, sort_keys=False, allow_unicode=True))


def _copied(path: Path, folder: Path) -> list[Path]:
    """Return the file that vale reads: the text itself, or an extract with the same lines."""
    if path == REPOSITORY / CHANGELOG:
        copies = {folder / path.name: unreleased(path.read_text())}
    elif path.suffix == ".py":
        source = path.read_text()
        copies = {folder / REMARKS / f"{path.name}.txt": literals.remarks(source)}
        if not path.is_relative_to(REPOSITORY) or path.relative_to(REPOSITORY).parts[0] not in OWN:
            copies[folder / f"{path.name}.txt"] = literals.texts(source)
    elif path.suffix == ".yaml":
        copies = {folder / f"{path.name}.txt": path.read_text()}
    else:
        return [path]
    for copy, text in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    return list(copies)


def unreleased(text: str) -> str:
    """Return the changelog with an empty line for each line of another section."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("## "):
            inside = line == f"## {UNRELEASED}"
        lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def _read(answer: Any, copies: dict[Path, Path]) -> Iterator[Finding]:
    for name, alerts in answer.items():
        path = copies[Path(name)]
        shown = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
        for alert in alerts:
            yield Finding(
                path=str(shown),
                line=alert["Line"],
                column=alert["Span"][0],
                text=alert["Message"],
                rule=alert["Check"],
            )
