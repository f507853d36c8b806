"""Which share configs a manifest has, and what is wrong with them.

A share config has the form of the device plugin's file; it is a document of its own or a value of a
ConfigMap's `data`. Only its `version` and its fields show what it is, so other files with a
`version` are ignored. The checks are those of the driver.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import yaml
from msgspec import Struct

from dra_driver.kube.fields import mapping
from dra_driver.kube.manifest import BrokenManifestError, Document, Place, read_documents
from resource_nvidia_com.device_plugin import VERSION, NodeConfig, SharedBy, decode_node_config
from resource_nvidia_com.problems import InvalidConfigError, Path, dotted, parts

_LOOKS_LIKE_ONE = re.compile(rf"^(version:\s*[\"']?{VERSION}\b|sharing:)", re.MULTILINE)
_LITERAL = re.compile(r"\A[\w.-]+=(?=\S)")
_SEVERAL = (
    "sharing.mps.failRequestsGreaterThanOne: under MPS, several shares of one request have to be "
    "of one GPU, which limits of a container cannot express: use such requests only on nodes with "
    "one divided GPU; elsewhere, use claims with `constraints: [{matchAttribute: "
    "gpu.nvidia.com/uuid}]`"
)
_OF_MIG_MANAGER = "mig-configs"
"""A field of mig-manager's config file, which has the same `version`."""


class Wrong(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    place: Place
    text: str
    severity: Literal["error", "warning"] = "error"


def is_node_config(value: object) -> bool:
    """Return whether a document is a share config, or was meant to be one."""
    if not isinstance(value, Mapping) or "apiVersion" in value or "kind" in value:
        return False
    sharing = value.get("sharing")
    if isinstance(sharing, Mapping) and not sharing.keys().isdisjoint(SharedBy):
        return True
    return value.get("version") == VERSION and _OF_MIG_MANAGER not in value


def wrong_in_document(document: Document) -> Iterator[Wrong]:
    """Yield what is wrong with a document that is a share config."""
    try:
        config = decode_node_config(document.value)
        several = [_SEVERAL] if config.shared_by is SharedBy.MPS and not _is_single(config) else []
        for text in (*config.warnings, *several):
            yield Wrong(place=document.place(_path_in(text)), text=text, severity="warning")
    except InvalidConfigError as error:
        for problem in error.problems:
            yield Wrong(place=document.place(problem.path), text=problem.text)


def _is_single(config: NodeConfig) -> bool:
    """Return whether no request gets several shares, or only shares of the same device."""
    return config.fail_requests_greater_than_one or all(
        resource.devices == 1 for resource in config.resources
    )


def _path_in(text: str) -> Path:
    """Return the path that a warning begins with; none if it begins with other words."""
    word = text.split(" ", 1)[0].rstrip(":")
    if not re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+|\[[0-9]+\])*", word):
        return ()
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"\w+", word))


def configs_of(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield (path in the file, text) of the share configs in an object that stands at `path`.

    They are the values of a ConfigMap's `data`; in the values of a chart, also within a HelmRelease
    or an Application; and literals of a Kustomization, which begin with their key and `=`.
    """
    is_config_map = isinstance(value, Mapping) and value.get("kind") == "ConfigMap"
    texts = _values_of(value, path) if is_config_map else _long_texts(value, path)
    return ((where, text) for where, text in texts if _is_text_of_one(text))


def _values_of(config_map: object, path: Path) -> Iterator[tuple[Path, str]]:
    for key, text in mapping(config_map, "data").items():
        if isinstance(text, str):
            yield (*path, "data", key), text


def _long_texts(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the texts of several lines: shorter ones are rarely YAML, and a chart has many."""
    for where, part in parts(value, path):
        if isinstance(part, str) and "\n" in part:
            yield where, _LITERAL.sub("", part, count=1)


def wrong_in_text(document: Document, path: Path, text: str) -> Iterator[Wrong]:
    """Yield what is wrong with the share config whose text is the value at `path`."""
    for wrong in _wrong_in(text):
        place = place_within(document, path, wrong.place)
        inner = wrong.text
        if place is None:
            place = document.place(path)
            inner = f"line {wrong.place.line}, column {wrong.place.column}: {inner}"
        yield Wrong(place=place, text=f"{dotted(path)}: {inner}", severity=wrong.severity)


def place_within(document: Document, path: Path, inner: Place) -> Place | None:
    """Return where a place in the text at `path` is in the file; None unless written with `|`."""
    node = document.find(path)[1]
    if not isinstance(node, yaml.ScalarNode) or node.style != "|":
        return None
    # The text begins on the line after the one with the `|`.
    line = node.start_mark.line + inner.line
    written, text = document.written.splitlines(), node.value.splitlines()
    if line >= len(written) or inner.line > len(text):
        return Place(line=line + 1, column=1)
    indent = len(written[line]) - len(text[inner.line - 1])
    return Place(line=line + 1, column=max(indent, 0) + inner.column)


def _is_text_of_one(text: str) -> bool:
    try:
        return any(is_node_config(document.value) for document in read_documents(text))
    except BrokenManifestError:
        return bool(_LOOKS_LIKE_ONE.search(text)) and _OF_MIG_MANAGER not in text


def _wrong_in(text: str) -> Iterator[Wrong]:
    try:
        documents = list(read_documents(text))
    except BrokenManifestError as error:
        yield Wrong(place=error.place, text=str(error))
        return
    for document in documents[1:]:
        second = "a second document: a share config has only one; give each config its own key"
        yield Wrong(place=document.place(()), text=second)
    yield from wrong_in_document(documents[0])
