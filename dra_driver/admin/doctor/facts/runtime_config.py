"""How the node's container runtime is configured, as far as it concerns CDI and GPUs.

In: the configuration files of containerd and CRI-O below the node's root folder. Out: their
settings for CDI and the default runtime, and which files could not be read. Rules: containerd
reads one file and those that its `imports` name, later ones win; tables of its CRI plugin are
called `cri` in version 1 of the format, `io.containerd.grpc.v1.cri` in version 2 and
`io.containerd.cri.v1.runtime` in version 3. containerd 2 reads all three, each file by its own
version, and merges tables key by key. containerd 1.7 does not support version 3, has one version
for all files, and takes the last file's table as a whole. CRI-O reads crio.conf and then
crio.conf.d in the order of names, and takes the last file's table of a runtime as a whole. Flags
on command lines are not considered.
"""

import glob
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct

from dra_driver.admin.doctor.facts.places import read_text
from dra_driver.devices.driver_root import rooted

CONTAINERD = "containerd"
CRIO = "cri-o"

_CONTAINERD_FILES = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/cri/containerd.toml",
)
_CRIO_FILES = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
_PLUGIN_1, _PLUGIN_2, _PLUGIN_3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
_FIRST_MERGING = 2, 0
_MOST_FILES = 64

Table = Mapping[str, object]


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """The settings in the files of one runtime; None for those that are not set.

    Attributes:
        files: those that were read, as the node names them.
        problems: files that could not be read, each with the reason.
        may_be_old: whether containerd 1.7 reads these files, or would, as far as is known.
        lost: files that switch CDI on, but whose table another file replaces.
        cri_file: in 1.7, the file whose table of the CRI plugin is used.
        default_runtime: the name of the runtime of pods that name none.
        default_program: the program behind that name.
        sees_environment: whether NVIDIA's runtime lets any image have GPUs by its environment.
    """

    name: str
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    may_be_old: bool = False
    cdi: bool | None = None
    lost: tuple[str, ...] = ()
    cri_file: str | None = None
    spec_dirs: tuple[str, ...] | None = None
    default_runtime: str | None = None
    default_program: str | None = None
    sees_environment: bool | None = None

    @property
    def gives_gpus_by_default(self) -> bool:
        """Whether pods that name no runtime get NVIDIA's."""
        program = PurePosixPath(self.default_program or "").name
        return self.default_runtime == "nvidia" or program.startswith("nvidia-container-runtime")


def read_runtime_configs(
    host: Path, containerd: tuple[int, ...] | None = None
) -> list[RuntimeConfig]:
    """Return the configuration of each runtime that has files.

    If containerd's version is unknown, it counts as 1.7 if that can read the files, because what
    is on for 1.7 is also on for newer ones.
    """
    configs = []
    for name, patterns, meaning in (
        (CONTAINERD, _CONTAINERD_FILES, partial(_containerd, containerd)),
        (CRIO, _CRIO_FILES, _crio),
    ):
        reader = _Reader(host)
        reader.read(patterns)
        if reader.files or reader.problems:
            facts = meaning(reader.contents)
            configs.append(
                RuntimeConfig(
                    name=name,
                    files=tuple(reader.files),
                    problems=tuple(reader.problems),
                    sees_environment=_sees_environment(host),
                    **facts,  # type: ignore[arg-type]  # by field, of its type
                )
            )
    return configs


class _Reader:
    """Reads TOML files of a node, and those that they import; later ones override earlier ones."""

    def __init__(self, host: Path) -> None:
        self._host = host
        self.problems: list[str] = []
        self.contents: dict[str, Table] = {}

    @property
    def files(self) -> list[str]:
        return list(self.contents)

    def read(self, patterns: Iterable[str]) -> None:
        pending = list(patterns)
        while pending:
            for path in self._matching(pending.pop(0)):
                if path not in self.contents and len(self.contents) < _MOST_FILES:
                    pending += self._read_one(path)

    def _read_one(self, path: str) -> list[str]:
        """Read a file, and return the files that it imports."""
        try:
            content = tomllib.loads(read_text(rooted.outside(self._host, path)))
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            return []
        self.contents[path] = content
        imports = content.get("imports")
        folder = path.rpartition("/")[0]
        return [
            given if given.startswith("/") else f"{folder}/{given}"
            for given in (imports if isinstance(imports, list) else ())
            if isinstance(given, str)
        ]

    def _matching(self, pattern: str) -> list[str]:
        """Return the files of the node that a pattern names, links followed."""
        folder, _, name = pattern.rpartition("/")
        try:
            if glob.has_magic(name):
                paths = list(rooted.matches(self._host, folder, name))
            else:
                paths = [pattern]
            resolved = [rooted.resolve(self._host, path) for path in paths]
        except OSError as error:
            self.problems.append(f"{pattern}: {error.strerror}")
            return []
        return [path for path in resolved if path is not None]


def _merge(into: dict[str, object], more: Table) -> None:
    for key, value in more.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        else:
            into[key] = value


def _merged(tables: Iterable[Table]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for table in tables:
        _merge(merged, table)
    return merged


def _containerd(
    version: tuple[int, ...] | None, contents: Mapping[str, Table]
) -> dict[str, object]:
    formats = [_format(content) for content in contents.values()]
    is_old = version < _FIRST_MERGING if version else max(formats, default=0) <= 2
    if is_old:
        # A file without a version has that of another file.
        plugin = _PLUGIN_2 if max(formats, default=0) >= 2 else _PLUGIN_1
        tables = {
            path: _plugin(content, plugin)
            for path, content in contents.items()
            if plugin in _table(content, "plugins")
        }
        cri = next(reversed(tables.values()), {})
    else:
        tables = {path: _plugins_of_2(content) for path, content in contents.items()}
        cri = _merged(tables.values())
    cdi = _truth(cri.get("enable_cdi"))
    said = [path for path, table in tables.items() if table.get("enable_cdi") is True]
    containerd = _table(cri, "containerd")
    default = _text(containerd.get("default_runtime_name"))
    runtime = _table(_table(containerd, "runtimes"), default or "runc")
    return {
        "may_be_old": is_old,
        "cdi": cdi,
        "lost": () if cdi else tuple(said),
        "cri_file": next(reversed(tables), None) if is_old else None,
        "spec_dirs": _texts(cri.get("cdi_spec_dirs")),
        "default_runtime": default,
        "default_program": _text(_table(runtime, "options").get("BinaryName")),
    }


def _format(content: Table) -> int:
    version = content.get("version")
    return version if isinstance(version, int) else 0


def _plugin(content: Table, name: str) -> dict[str, object]:
    return _table(_table(content, "plugins"), name)


def _plugins_of_2(content: Table) -> dict[str, object]:
    names = (_PLUGIN_2, _PLUGIN_3) if _format(content) >= 2 else (_PLUGIN_1, _PLUGIN_2, _PLUGIN_3)
    return _merged(_plugin(content, name) for name in names)


def _crio(contents: Mapping[str, Table]) -> dict[str, object]:
    said = [_table(_table(content, "crio"), "runtime") for content in contents.values()]
    runtime = _merged(said)
    default = _text(runtime.get("default_runtime"))
    name = default or "crun"
    # A runtime's table replaces the whole table of an earlier file.
    runtimes = [_table(table, "runtimes") for table in said]
    chosen = next((_table(table, name) for table in reversed(runtimes) if name in table), {})
    return {
        "cdi": None,
        "spec_dirs": _texts(runtime.get("cdi_spec_dirs")),
        "default_runtime": default,
        "default_program": _text(chosen.get("runtime_path")),
    }


def _sees_environment(host: Path) -> bool | None:
    reader = _Reader(host)
    reader.read(("/etc/nvidia-container-runtime/config.toml",))
    content = _merged(reader.contents.values())
    return _truth(content.get("accept-nvidia-visible-devices-envvar-when-unprivileged"))


def _table(holder: Table, key: str) -> dict[str, object]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None
