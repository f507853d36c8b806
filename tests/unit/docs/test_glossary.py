"""docs/glossary.md, and how hack/style reads it."""

import re
from pathlib import Path

import pytest
from style.command import unreleased
from style.glossary import Term, rule, terms

PAGE = Path(__file__).parents[3] / "docs" / "glossary.md"


def test_each_word_stands_once_in_alphabetical_order() -> None:
    names = [term.name.lower() for term in terms(PAGE.read_text())]
    assert names == sorted({*names})
    assert len(names) > 20


def test_a_word_is_refused_for_one_other() -> None:
    avoided = [word for term in terms(PAGE.read_text()) for word in term.avoided]
    assert len(avoided) == len({*avoided}) > 20


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("the kernel driver", True),
        ("Kernel driver first", True),
        ("the kernel\ndriver", True),
        ("kernel drivers", True),
        ("kernel-driver", False),
        ("a/kernel driver", False),
        ("Kernel Driver", False),
    ],
)
def test_a_word_is_found_as_it_is_written_and_at_a_sentences_start(
    text: str, is_found: bool
) -> None:
    swap = rule([Term(name="GPU driver", avoided=("kernel driver",))])["swap"]
    assert isinstance(swap, dict)
    ((pattern, instead),) = swap.items()
    assert (re.search(pattern, text) is not None) == is_found
    assert instead == "GPU driver"


def test_of_the_changelog_only_the_unreleased_section_is_read_with_its_line_numbers() -> None:
    text = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0 - 2026-01-01\n\n- old\n"
    assert unreleased(text) == "\n\n## Unreleased\n\n- new\n\n\n\n\n"
