"""Which file is this node's share config.

In: the setting's path, its default name, and the Node's label. Out: the file to use, or none, and
why. A path to a file leaves no choice. In a folder, which is how a ConfigMap is mounted, each file
is a config named after it; the order of the choice is that of the device plugin's config manager.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.errors import ConfigError
from dra_driver.host.words import named

LABEL: Final = "nvidia.com/device-plugin.config"
"""The Node's label that names a config."""

DEFAULT_NAME: Final = "default"
"""The config for nodes without a label, if the setting names none either."""


class Choice(Struct, frozen=True, kw_only=True):
    """The file to use, None for none, and the reason, for people."""

    file: Path | None
    origin: str


def choose(path: Path, *, label: str, default: str) -> Choice:
    """Return which file to use. `label` is the label's value, empty if the Node has none.

    Raises ConfigError if a name was given that no config in the folder has, OSError if the folder
    cannot be read.
    """
    if not path.is_dir():
        return Choice(file=path, origin=f"file {path}")
    name, why = choose_name(_names(path), label=label, default=default, where=f"folder {path}")
    if name is None:
        return Choice(file=None, origin=why)
    return Choice(file=path / name, origin=f"file {path / name} ({why})")


def choose_name(
    names: Sequence[str], *, label: str, default: str, where: str
) -> tuple[str | None, str]:
    """Return which of these configs to use, None for none, and why.

    `label` is empty if the Node has none, and so is `default`, the setting. `where` tells people
    where these configs are. Raises ConfigError if a name was given that none of them has.
    """
    if label and (names or default):
        return _named(label, names, f"label {LABEL}", where)
    if default:
        return _named(default, names, "setting --share-config-default", where)
    if DEFAULT_NAME in names:
        return DEFAULT_NAME, f'no label {LABEL}; the one named "default"'
    if len(names) == 1:
        return names[0], f"no label {LABEL}; the only one there"
    # An empty folder has no config, even if an old label names one.
    why = f"no label {LABEL}, and it has {named(names, 10)}" if names else "it is empty"
    return None, f"no config of {where}: {why}"


def _named(name: str, names: Sequence[str], why: str, where: str) -> tuple[str, str]:
    if name not in names:
        there = f"it has {named(names, 10)}; name one of those, or add it"
        empty = "it is empty; add that config"
        raise ConfigError(f'{why}: no config "{name}" in {where}: {there if names else empty}')
    return name, why


def _names(path: Path) -> list[str]:
    # Names that begin with two dots are the kubelet's: ..data, and the folder that it links to.
    return sorted(
        entry.name
        for entry in path.iterdir()
        if not entry.name.startswith("..") and not entry.is_dir()
    )
