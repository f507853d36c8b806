"""Problems of a config, in the user's words and with their places.

The text of a `Problem` is complete by itself. A duplicate key is a problem, because it would
silently mean something else than its author thought.

Python's JSON reader keeps the last of two equal keys and forgets the first. The reader of a claim's
JSON passes `keep_duplicates` as its `object_pairs_hook`, and `check_duplicates` reports them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from resource_nvidia_com.printable import listed, plain

Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a config's root to a part of it."""

_LONGEST_PATH = 300
"""How many characters of a path an error shows: no known field is that deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a config.

    `path` leads to it from the config's root. `text` is complete by itself and includes the path.
    """

    path: Path
    text: str


class InvalidConfigError(ValueError):
    """A config cannot be accepted. The text names the field, the value and what is allowed.

    It lists the first problems and counts the others, because it ends up in a pod's events.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(listed([problem.text for problem in problems]))
        self.problems = tuple(problems)


class DuplicateKeys(dict[str, object]):
    """A JSON object in which keys occur more than once; `duplicates` are those keys."""

    def __init__(self, pairs: Sequence[tuple[str, object]], duplicates: Sequence[str]) -> None:
        super().__init__(pairs)
        self.duplicates = tuple(duplicates)


def keep_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object and remember duplicate keys (for `object_pairs_hook`)."""
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    counts = Counter(key for key, _ in pairs)
    return DuplicateKeys(pairs, [key for key, count in counts.items() if count > 1])


def check_duplicates(value: object) -> None:
    """Raise InvalidConfigError if a key is duplicate, or a value is nested too deep to tell."""
    try:
        duplicates = [
            Problem(path=(*path, key), text=f'duplicate field "{dotted((*path, key))}"')
            for path, part in parts(value)
            if isinstance(part, DuplicateKeys)
            for key in part.duplicates
        ]
    except RecursionError as error:
        raise InvalidConfigError([Problem(path=(), text="it is nested too deep")]) from error
    if duplicates:
        raise InvalidConfigError(duplicates)


def parts(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield (path, part) of the value at `path`, and of everything below it."""
    yield path, value
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from parts(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from parts(child, (*path, index))


def dotted(path: Path) -> str:
    """Return a path as Kubernetes writes it, `sharing.mps.resources[0].name`; a long one is cut."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{plain(part)}"
        if len(text) > _LONGEST_PATH:
            return f"{text.removeprefix('.')[:_LONGEST_PATH]}…"
    return text.removeprefix(".")


def hint(name: str, allowed: Sequence[str] | Mapping[str, object]) -> str:
    """Return a question whether a similar name was meant; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    lower = {option.lower(): option for option in allowed}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return f'did you mean "{lower[near[0]]}"? ' if near else ""


def lost_indent(unknown: str, value: Mapping[str, object]) -> str:
    """Return advice on an unknown field if the last one that precedes it is empty.

    That is how it looks when indentation is lost on paste. Otherwise the advice is empty.
    """
    above = ""
    for name, inner in value.items():
        if name == unknown:
            break
        above = name if inner is None else above
    return (
        f'; if it belongs to "{plain(above)}", which is empty, indent it further' if above else ""
    )
