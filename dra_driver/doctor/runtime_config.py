"""How the node's container runtime is configured, as far as it concerns CDI and GPUs.

In: the configuration files of containerd and CRI-O below the node's root folder. Out: what they
say of CDI and of the default runtime, and which files could not be read. Rules: containerd reads
one file and those that its `imports` name, later ones win; tables of its CRI plugin are called
`io.containerd.grpc.v1.cri` in version 2 of the format and `io.containerd.cri.v1.runtime` in
version 3. CRI-O reads crio.conf and then crio.conf.d in the order of names. What a command line
says beside the files is not seen.
"""

import glob
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_driver.devices import rooted
from dra_driver.doctor.places import read_text

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
_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_MOST_FILES = 64

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What the files of one runtime say; None for what they say nothing of.

    Attributes:
        name: containerd or cri-o.
        files: those that were read, as the node names them.
        problems: files that could not be read, each with the reason.
        cdi: whether CDI is switched on.
        spec_dirs: where CDI specs are looked for.
        default_runtime: the name of the runtime of pods that name none.
        default_program: the program behind that name.
        sees_environment: whether NVIDIA's runtime lets any image have GPUs by its environment.
    """

    name: str
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    cdi: bool | None = None
    spec_dirs: tuple[str, ...] | None = None
    default_runtime: str | None = None
    default_program: str | None = None
    sees_environment: bool | None = None

    @property
    def gives_gpus_by_default(self) -> bool:
        """Whether pods that name no runtime get NVIDIA's."""
        program = PurePosixPath(self.default_program or "").name
        return self.default_runtime == "nvidia" or program.startswith("nvidia-container-runtime")


def read_runtime_configs(host: Path) -> list[RuntimeConfig]:
    """Return what the files of each runtime say that has any."""
    found = []
    for name, patterns, meaning in (
        (CONTAINERD, _CONTAINERD_FILES, _containerd),
        (CRIO, _CRIO_FILES, _crio),
    ):
        reader = _Reader(host)
        reader.read(patterns)
        if reader.files or reader.problems:
            facts = meaning(reader.content)
            found.append(
                RuntimeConfig(
                    name=name,
                    files=tuple(reader.files),
                    problems=tuple(reader.problems),
                    sees_environment=_sees_environment(host),
                    **facts,  # type: ignore[arg-type]
                )
            )
    return found


class _Reader:
    """Reads TOML files of a node, and those that they import, into one table."""

    def __init__(self, host: Path) -> None:
        self._host = host
        self.files: list[str] = []
        self.problems: list[str] = []
        self.content: dict[str, object] = {}

    def read(self, patterns: Iterable[str]) -> None:
        for path in self._matching(patterns):
            if path in self.files or len(self.files) >= _MOST_FILES:
                continue
            try:
                content = tomllib.loads(read_text(rooted.outside(self._host, path)))
            except (OSError, ValueError, RecursionError) as error:
                self.problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            self.files.append(path)
            _merge(self.content, content)
            imports = content.get("imports")
            folder = path.rpartition("/")[0]
            self.read(
                one if one.startswith("/") else f"{folder}/{one}"
                for one in (imports if isinstance(imports, list) else ())
                if isinstance(one, str)
            )

    def _matching(self, patterns: Iterable[str]) -> Iterator[str]:
        """Yield the files of the node that patterns name, links followed."""
        for pattern in patterns:
            folder, _, name = pattern.rpartition("/")
            try:
                if glob.has_magic(name):
                    found = list(rooted.matches(self._host, folder, name))
                else:
                    found = [pattern]
                resolved = [rooted.resolve(self._host, path) for path in found]
            except OSError as error:
                self.problems.append(f"{pattern}: {error.strerror}")
                continue
            yield from (path for path in resolved if path is not None)


def _merge(into: dict[str, object], more: Table) -> None:
    for key, value in more.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        else:
            into[key] = value


def _containerd(content: Table) -> dict[str, object]:
    plugins = _table(content, "plugins")
    cri: dict[str, object] = {}
    for name in _PLUGINS:
        _merge(cri, _table(plugins, name))
    containerd = _table(cri, "containerd")
    default = _text(containerd.get("default_runtime_name"))
    runtime = _table(_table(containerd, "runtimes"), default or "runc")
    return {
        "cdi": _truth(cri.get("enable_cdi")),
        "spec_dirs": _texts(cri.get("cdi_spec_dirs")),
        "default_runtime": default,
        "default_program": _text(_table(runtime, "options").get("BinaryName")),
    }


def _crio(content: Table) -> dict[str, object]:
    runtime = _table(_table(content, "crio"), "runtime")
    default = _text(runtime.get("default_runtime"))
    chosen = _table(_table(runtime, "runtimes"), default or "crun")
    return {
        "cdi": None,
        "spec_dirs": _texts(runtime.get("cdi_spec_dirs")),
        "default_runtime": default,
        "default_program": _text(chosen.get("runtime_path")),
    }


def _sees_environment(host: Path) -> bool | None:
    reader = _Reader(host)
    reader.read(("/etc/nvidia-container-runtime/config.toml",))
    return _truth(reader.content.get("accept-nvidia-visible-devices-envvar-when-unprivileged"))


def _table(holder: Table, key: str) -> dict[str, object]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None
