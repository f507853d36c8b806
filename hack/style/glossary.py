"""The glossary as rules of vale: words that docs/glossary.md forbids, and what it wants instead.

In: the page, whose table has a word, its meaning, and forbidden words for it, each as code, which
vale does not read. Out: a rule of vale's kind `substitution`. A forbidden word is found as it is
written, and with a capital, as at the start of a sentence; so `the Kubelet` can be in the last
column.
"""

import re
from dataclasses import dataclass

RULE = "Words"
_CODE = re.compile(r"`([^`]+)`")
_LINKED = re.compile(r"\[(.+)\]\(.+\)")


class GlossaryError(Exception):
    """The page has a mistake; the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A row of the page: a word, and forbidden words for it."""

    name: str
    avoided: tuple[str, ...]


def terms(page: str) -> list[Term]:
    """Return the rows of the page's table.

    Raises GlossaryError if there is none, or one is unreadable, or forbids another row's word.
    """
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    known = [_term(line) for line in lines]
    if not known:
        raise GlossaryError("docs/glossary.md has no table; give it one of word, meaning, not")
    names = {term.name for term in known}
    for row in known:
        if both := names.intersection(row.avoided):
            raise GlossaryError(f"docs/glossary.md wants {', '.join(both)} said, and not said")
    return known


def rule(every: list[Term]) -> dict[str, object]:
    """Return these words as a rule."""
    swap = {_pattern(word): term.name for term in every for word in term.avoided}
    return {
        "extends": "substitution",
        "message": "Say '%s' instead of '%s' (docs/glossary.md).",
        "level": "error",
        "ignorecase": False,
        "swap": swap,
    }


def _term(line: str) -> Term:
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    if len(cells) != 3:
        raise GlossaryError(
            f"docs/glossary.md: {line}: write | word | meaning | what is not said, or nothing |"
        )
    return Term(name=_LINKED.sub(r"\1", cells[0]), avoided=tuple(_CODE.findall(cells[2])))


def _pattern(word: str) -> str:
    """Return what vale looks for: not in a longer name, such as kube-apiserver, but as a sentence
    begins, over the end of a line, and in the plural."""
    first, rest = word[0], re.escape(word[1:])
    begin = f"[{first}{first.upper()}]" if first.islower() else re.escape(first)
    return rf"(?<![\w/.#-]){begin}{rest}(?:e?s)?(?![\w-])".replace(r"\ ", r"\s+")
