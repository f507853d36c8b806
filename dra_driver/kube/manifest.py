"""Manifests as their authors wrote them: values, and their places in the file.

In: the text of a YAML or JSON file with any number of documents. Out: for each document its value
as kubectl would send it, and the place of any part of it.

YAML's own reader of values is not used: it forgets places and takes the last of two equal keys,
while kubectl turns keys into text, and has neither dates nor numbers of base 60. Nor does it limit
the cost of a hostile file: nesting, and anchors that turn a short text into a huge value, are
refused here before they are built.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

import yaml
from msgspec import Struct

from dra_driver.errors import ConfigError
from resource_nvidia_com.problems import DuplicateKeys, Path

DEEPEST = 100
"""Levels of nesting; more than any manifest has, and well within Python's stack."""

LONGEST_NUMBER = 400
"""Characters; more than the largest number of any kind of ours has."""

_GROWTH = 10_000
"""Parts that anchors may add to a document of few parts; larger ones may grow tenfold."""

_BOOL, _INT, _FLOAT, _NULL = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null")
)
_TRUE = frozenset({"yes", "true", "on"})
_FALSE = frozenset({"no", "false", "off"})


class Place(Struct, frozen=True, kw_only=True):
    """Line and column in a file, both counted from 1."""

    line: int
    column: int


class BrokenManifestError(ConfigError):
    """A file is not valid YAML. `place` is where that was noticed."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


class Document:
    """One YAML document; `written` is the text of its file."""

    def __init__(self, node: yaml.Node, written: str, parts: int) -> None:
        self._node = node
        self.written = written
        self._indexes: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = {}
        self.value = _Reader(most=_GROWTH + 10 * parts).value(node)

    def place(self, path: Path) -> Place:
        """Return the place of the key at `path`, or of the innermost part that exists."""
        return _place(self.find(path)[0])

    def find(self, path: Path) -> tuple[yaml.Mark, yaml.Node]:
        """Return the place and the node of the innermost part at `path` that exists."""
        node, mark = self._node, self._node.start_mark
        for part in path:
            pair = self._child(node, part)
            if pair is None:
                break
            key, node = pair
            mark = key.start_mark
        return mark, node

    def _child(self, node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
        """Return (its place, the node) of a part of a map or list."""
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            return (node.value[part], node.value[part]) if part < len(node.value) else None
        if isinstance(node, yaml.MappingNode) and isinstance(part, str):
            return self._index(node).get(part)
        return None

    def _index(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return (key, value) of each part of a map by its name, including merged maps."""
        if id(node) not in self._indexes:
            index: dict[str, tuple[yaml.Node, yaml.Node]] = {}
            for merged in _merged(node):
                index |= self._index(merged)
            # The last of two equal keys: the one that would be taken, and the one that is wrong.
            index |= {_key(key): (key, child) for key, child in node.value if not _merges(key)}
            self._indexes[id(node)] = index
        return self._indexes[id(node)]


def read_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a file, without empty ones.

    Raises BrokenManifestError if the text is not valid YAML, or would grow out of all proportion.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BrokenManifestError(
            f"not valid YAML: character U+{ord(text[error.position]):04X} is not allowed",
            Place(line=line, column=error.position - text.rfind("\n", 0, error.position)),
        ) from error
    try:
        while loader.check_node():
            loader.parts = 0
            node = loader.get_node()
            if node is not None and node.tag != _NULL:
                yield Document(node, text, loader.parts)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else Place(line=1, column=1)
        raise BrokenManifestError(
            f"not valid YAML: {error.problem or error.context}", place
        ) from error
    except (ValueError, OverflowError) as error:
        # PyYAML hands numbers of directives and escapes on to int() and chr() unchecked.
        raise BrokenManifestError(f"not valid YAML: {error}", _place(loader.get_mark())) from error


class _Loader(yaml.SafeLoader):
    """Makes nodes from a text, and counts them. No deeper than `DEEPEST`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.parts = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node and all below it."""
        self.parts += 1
        self._depth += 1
        if self._depth > DEEPEST:
            place = _place(self.peek_event().start_mark)  # type: ignore[no-untyped-call]
            raise BrokenManifestError(f"nested too deep: more than {DEEPEST} levels", place)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Reader:
    """Builds the values of one document. A part with several references is built once.

    Counted as if it were built each time, a value has at most `most` parts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._built: dict[int, object] = {}
        self._sizes: dict[int, int] = {}
        self._work = 0
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
                built = [self.value(child) for child in node.value]
                self._count(node, node.value, len(built))
                return built
            case _:
                self._count(node, (), 1)
                return _scalar(node)

    def _object(self, node: yaml.MappingNode) -> dict[str, object]:
        # Keys of merged maps (<<) come first, so that written ones override them.
        merged: dict[str, object] = {}
        maps = list(_merged(node))
        for mapping in maps:
            members = cast("dict[str, object]", self.value(mapping))
            merged |= members
            self._work += len(members)
        own = [(_key(key), child) for key, child in node.value if not _merges(key)]
        twice = [key for key, count in Counter(key for key, _ in own).items() if count > 1]
        pairs = [(key, self.value(child)) for key, child in own]
        self._count(node, [*maps, *(child for _, child in own)], len(pairs))
        everything = [*merged.items(), *pairs]
        return DuplicateKeys(everything, twice) if twice else dict(everything)

    def _count(self, node: yaml.Node, children: Sequence[yaml.Node], work: int) -> None:
        """Note how large a part is; refuse it if anchors make it larger than its text."""
        size = 1 + sum(self._sizes[id(child)] for child in children)
        self._sizes[id(node)] = size
        self._work += work
        if max(size, self._work) > self._most:
            raise BrokenManifestError(
                "anchors and references make this value too large: write it out",
                _place(node.start_mark),
            )


def _merges(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


def _merged(node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
    """Yield the maps that a map merges in, the one with the highest priority last."""
    for key, child in node.value:
        if _merges(key):
            nodes: Sequence[yaml.Node] = (
                child.value if isinstance(child, yaml.SequenceNode) else [child]
            )
            yield from (item for item in reversed(nodes) if isinstance(item, yaml.MappingNode))


def _key(node: yaml.Node) -> str:
    """Return a key as in JSON: always text."""
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
    if node.tag == _BOOL and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    # What is too long for a number of ours stays text, and is refused as such.
    if node.tag in (_INT, _FLOAT) and ":" not in text and len(text) <= LONGEST_NUMBER:
        try:
            return _number(text, node.tag)
        except (ValueError, IndexError):
            pass  # only a tag says that it is a number: !!int one
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
