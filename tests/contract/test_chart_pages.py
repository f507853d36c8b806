"""What the pages tell people to give to helm, the chart takes: its schema knows every key."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from charts import FOLDER, REPOSITORY, run

PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
OF_HELM = re.compile(r"--set(?:-string|-file|-json|-literal)? [^`\n]+")
PLACEHOLDER = "FILE"


def told(text: str) -> Iterator[tuple[str, str]]:
    """Each flag and what it sets, in a page, unless it is for somebody else's chart."""
    for line in text.replace("\\\n", " ").splitlines():
        command = line.strip().removeprefix("$ ")
        if command.startswith("helm ") and " manifests/chart" not in command:
            continue
        for found in OF_HELM.findall(line):
            words = pairwise(shlex.split(found))
            yield from ((flag, word) for flag, word in words if is_flag(flag))


def is_flag(word: str) -> bool:
    return OF_HELM.match(f"{word} x") is not None


def every() -> list[tuple[str, str]]:
    return sorted({one for page in PAGES for one in told(page.read_text())})


def test_settings_are_found_in_commands_and_in_sentences_but_not_those_of_other_charts() -> None:
    text = (
        "$ helm upgrade x manifests/chart \\\n  --set a.b=1 --set-file c=FILE --reuse-values\n"
        "$ helm install other theirs/chart \\\n  --set other=1\n"
        "helm install other theirs/chart --set other=1\n"
        "or `--set-string d.'e\\.f/g'=true`, `--set` alone, and `nvidia-smi --set-timeslice 1`\n"
    )
    assert list(told(text)) == [
        ("--set", "a.b=1"),
        ("--set-file", "c=FILE"),
        ("--set-string", "d.e\\.f/g=true"),
    ]
    assert {"--set", "--set-file", "--set-string"} <= {flag for flag, _ in every()}


@pytest.mark.parametrize(("flag", "word"), every(), ids=" ".join)
def test_values_on_pages_are_accepted(helm: str, tmp_path: Path, flag: str, word: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    word = word.replace(f"={PLACEHOLDER}", f"={file}")
    done = run(helm, "template", "dra-driver", FOLDER, "--namespace", "gpus", flag, word)
    assert done.returncode == 0, done.stderr
