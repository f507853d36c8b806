"""Parses the text of a share config, by which an admin shares GPUs (dra-driver-nvidia-gpu#659).

In: the bytes of a file in the form of the device plugin's config (YAML or JSON, one document),
and its name for errors. Out: a `NodeConfig`, or one error that lists every mistake with its line
and column. source.py decides which file a node uses.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from dra_driver.errors import ConfigError
from dra_driver.kube.manifest import BrokenManifestError, Place, read_documents
from resource_nvidia_com.device_plugin import NodeConfig, decode_node_config
from resource_nvidia_com.printable import listed
from resource_nvidia_com.problems import InvalidConfigError

LARGEST: Final = 128 * 1024
"""Bytes of a file; a ConfigMap holds 1 MiB in all, and the largest sensible config some 10 KiB."""

_START = Place(line=1, column=1)


def read_node_config(data: bytes, name: str) -> NodeConfig:
    """Return what a file says; an empty one shares nothing.

    Raises ConfigError: `NAME:LINE:COLUMN: field: what is wrong`, for each thing that is wrong.
    """
    if len(data) > LARGEST:
        text = f"it has {len(data)} bytes; a share config must have at most {LARGEST}"
        raise _error(name, [(_START, text)])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Place(line=before.count(b"\n") + 1, column=error.start - before.rfind(b"\n"))
        raise _error(name, [(place, "it is not UTF-8: save it in that encoding")]) from error
    try:
        documents = list(islice(read_documents(text), 2))
    except BrokenManifestError as error:
        raise _error(name, [(error.place, str(error))]) from error
    if len(documents) > 1:
        text = "a second document: write one share config in each file"
        raise _error(name, [(documents[1].place(()), text)])
    document = documents[0] if documents else None
    try:
        return decode_node_config(document.value if document else None)
    except InvalidConfigError as error:
        raise _error(
            name,
            [
                (document.place(problem.path) if document else _START, problem.text)
                for problem in error.problems
            ],
        ) from error


def _error(name: str, problems: Sequence[tuple[Place, str]]) -> ConfigError:
    texts = [f"{name}:{place.line}:{place.column}: {text}" for place, text in problems]
    return ConfigError(listed(texts))
