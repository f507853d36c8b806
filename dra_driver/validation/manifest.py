"""Manifests as their authors wrote them: values, and where each one stands in the file.

In: the text of a YAML or JSON file with any number of documents. Out: for each document its value
as kubectl would send it, and the place of any part of it. YAML's own reader of values is not used:
it forgets places and takes the last of two equal keys; and kubectl turns keys into text, knows no
dates and no numbers of base 60.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from dra_driver.errors import ConfigError
from resource_nvidia_com.decode import DuplicateKeys

_BOOL, _INT, _FLOAT, _NULL = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null")
)

Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a document's root to a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Line and column in a file, both counted from 1."""

    line: int
    column: int


class BrokenManifestError(ConfigError):
    """A file is not valid YAML. `place` is where that shows."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


class Document:
    """One YAML document."""

    def __init__(self, node: yaml.Node) -> None:
        self._node = node
        self.value = _Reader().value(node)

    def place(self, path: Path) -> Place:
        """Return where the part at `path` stands: at its key, if it has one.

        What is not there (a missing field) stands where the innermost part above it does.
        """
        node, mark = self._node, self._node.start_mark
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            key, node = found
            mark = key.start_mark
        return _place(mark)


def read_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a file, without empty ones.

    Raises:
        BrokenManifestError: the text is not valid YAML.
    """
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if node.tag != _NULL:
                yield Document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else Place(line=1, column=1)
        raise BrokenManifestError(
            f"not valid YAML: {error.problem or error.context}", place
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BrokenManifestError(
            f"not valid YAML: character U+{ord(text[error.position]):04X} is not allowed",
            Place(line=line, column=error.position - text.rfind("\n", 0, error.position)),
        ) from error


class _Reader:
    """Builds the values of one document. A part that is referred to twice is built once."""

    def __init__(self) -> None:
        self._built: dict[int, object] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> object:
        known = id(node)
        if known in self._open:
            raise BrokenManifestError(
                "not valid YAML: an anchor refers to itself", _place(node.start_mark)
            )
        if known not in self._built:
            self._open.add(known)
            self._built[known] = self._build(node)
            self._open.remove(known)
        return self._built[known]

    def _build(self, node: yaml.Node) -> object:
        match node:
            case yaml.MappingNode():
                return self._object(node)
            case yaml.SequenceNode():
                return [self.value(child) for child in node.value]
            case _:
                return _scalar(node)

    def _object(self, node: yaml.MappingNode) -> dict[str, object]:
        written = [_key(key) for key, _ in node.value if not _merges(key)]
        twice = [key for key in dict.fromkeys(written) if written.count(key) > 1]
        # Keys of merged maps (<<) come first, so that written ones override them.
        merged = [pair for one in _merged(node) for pair in self._object(one).items()]
        pairs = [(_key(key), self.value(child)) for key, child in node.value if not _merges(key)]
        return DuplicateKeys(merged + pairs, twice) if twice else dict(merged + pairs)


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return (where it is written, the node) of a part of a map or list."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return (node.value[part], node.value[part]) if part < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        # The last of two equal keys: the one that would be taken, and the one that is wrong.
        for key, child in reversed(node.value):
            if not _merges(key) and _key(key) == part:
                return key, child
        for one in reversed(list(_merged(node))):
            found = _child(one, part)
            if found:
                return found
    return None


def _merges(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


def _merged(node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
    """Yield the maps that a map merges in, the one that counts most last."""
    for key, child in node.value:
        if _merges(key):
            found: Sequence[yaml.Node] = (
                child.value if isinstance(child, yaml.SequenceNode) else [child]
            )
            yield from (one for one in reversed(found) if isinstance(one, yaml.MappingNode))


def _key(node: yaml.Node) -> str:
    """Return a key as JSON has it: always text."""
    if not isinstance(node, yaml.ScalarNode):
        # Also what a template looks like to YAML: {{ … }} is a map whose key is a map.
        raise BrokenManifestError(
            "a key must be text, not a map or a list; if this is a template, render it first",
            _place(node.start_mark),
        )
    value = _scalar(node)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(node.value)


def _scalar(node: yaml.Node) -> object:
    # JSON writes rare characters as two escapes; the reader leaves these as two halves.
    text = str(node.value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return text.lower() in ("yes", "true", "on")
    if node.tag in (_INT, _FLOAT) and ":" not in text:
        return _number(text, node.tag)
    return text


def _number(text: str, tag: str) -> object:
    digits = text.replace("_", "").lower()
    if tag == _FLOAT:
        # JSON has neither infinity nor "not a number": such a word stays text, and is refused.
        return text if "." in digits and digits.lstrip("+-")[1:].isalpha() else float(digits)
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
    if digits.startswith(("0x", "0b")):
        return sign * int(digits, 0)
    if len(digits) > 1 and digits.startswith("0"):
        return sign * int(digits, 8)
    return sign * int(digits)


def _place(mark: yaml.Mark) -> Place:
    return Place(line=mark.line + 1, column=mark.column + 1)
