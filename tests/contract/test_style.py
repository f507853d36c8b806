"""hack/style with the real vale: a bad sentence is found, and a good one is not."""

from pathlib import Path

import pytest
from style import command, glossary

from readiness import lacks

PAGE = command.REPOSITORY / command.GLOSSARY
GOOD = """\
# A page

The driver publishes GPUs, and `NVIDIA driver` in code is not read. What is missing is named.

```sh
please whoever just --via anew
```

Kubernetes has a kube-apiserver, and nodes have the label nvidia.com/device-plugin.config.
"""
LONG = " ".join(f"word{number}" for number in range(41))


@pytest.fixture(scope="module")
def vale() -> Path:
    """Vale, as hack/ready.py compiles it."""
    try:
        return command.vale()
    except command.StyleError as error:
        lacks("vale", str(error))


def found(vale: Path, tmp_path: Path, text: str, name: str = "page.md") -> list[tuple[int, str]]:
    """The line and the rule of what is wrong with a text."""
    page = tmp_path / name
    page.write_text(text)
    findings = command.findings(vale, [page])
    assert {finding.path for finding in findings} <= {str(page)}
    return [(finding.line, finding.rule) for finding in findings]


def test_nothing_is_wrong_with_plain_english_nor_with_code(vale: Path, tmp_path: Path) -> None:
    assert found(vale, tmp_path, GOOD) == []


BAD = [
    ("Divide it anew.", "House.Plain"),
    ("Whoever asks, gets it.", "House.Plain"),
    ("It belongs into the folder.", "House.Plain"),
    ("Run this in order to see it.", "House.Plain"),
    ("Please run it.", "House.Filler"),
    ("It is simply a list.", "House.Filler"),
    ("Name a permission that lacks.", "House.Lacks"),
    ("Set a limit, e.g. 10Gi.", "House.Latin"),
    ("Ask for it via a claim.", "House.Latin"),
    ("We publish it.", "House.We"),
    ("It doesn't start.", "House.Contractions"),
    ("It starts!", "House.Shouting"),
    ("It is is there.", "House.Repetition"),
    ("Put it on the whitelist.", "House.Inclusive"),
    (f"{LONG}.", "House.SentenceLength"),
]


def test_each_bad_sentence_is_found(vale: Path, tmp_path: Path) -> None:
    page = "".join(f"{sentence}\n\nA good one.\n\n" for sentence, _ in BAD)
    assert found(vale, tmp_path, page) == [
        (4 * place + 1, rule) for place, (_, rule) in enumerate(BAD)
    ]


def test_every_word_that_the_glossary_refuses_is_found_with_the_one_to_say(
    vale: Path, tmp_path: Path
) -> None:
    refused = [
        (word, term.name) for term in glossary.terms(PAGE.read_text()) for word in term.avoided
    ]
    page = tmp_path / "page.md"
    page.write_text("".join(f"This is {word} here.\n\n" for word, _ in refused))
    said = [(finding.line, finding.text) for finding in command.findings(vale, [page])]
    assert said == [
        (2 * place + 1, f"Say '{name}' instead of '{word}' (docs/glossary.md).")
        for place, (word, name) in enumerate(refused)
    ]
