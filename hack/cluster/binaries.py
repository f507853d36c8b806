"""Where the cluster's programs come from.

In: versions. Out: one folder per group of programs. Sources, in this order: `$KUBE_BIN_DIR`, the
cache, the official release downloads, and last what this machine can make itself: Kubernetes, etcd,
containerd and CDI's programs compiled from Go modules, the rest from Debian packages. A folder in
the cache is complete if it has a marker: it is filled under another name and renamed last, so an
interrupted fetch is never mistaken for a complete one.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster import build, debian, runtimes
from cluster import versions as pins
from cluster.errors import BinariesUnavailableError, ClusterError, SourceError
from cluster.progress import Progress
from cluster.release import Downloads, assets
from cluster.toolchain import Go, find_go, required_go
from cluster.versions import Versions, pinned

BIN_DIR_ENV = "KUBE_BIN_DIR"
FETCH_ENV = "CLUSTER_FETCH"
"""With the value `never` only existing programs are used: tests neither download nor compile."""
MARKER = "complete.json"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "runc": ("runc",),
    "etcd": ("etcd",),
    "cni": ("bridge", "host-local", "loopback"),
    "busybox": ("busybox",),
    "containerd": build.CONTAINERD_PROGRAMS,
    "crio": runtimes.CRIO_PROGRAMS,
    # Last, because it may take minutes and everything else exists by then.
    "kubernetes": build.KUBERNETES_PROGRAMS,
}
"""The programs of a cluster, by container runtime."""

RUNTIMES = ("containerd", "crio")
OCI_RUNTIMES = ("runc", "crun")
"""The OCI runtimes, which make containers for the container runtime."""


def groups_of(runtime: str, oci: str = OCI_RUNTIMES[0]) -> tuple[str, ...]:
    """Return the groups of programs of a cluster with these runtimes."""
    chosen = (name for name in GROUPS if name not in RUNTIMES or name == runtime)
    return tuple(oci if name == "runc" else name for name in chosen)


BY_DEFAULT = groups_of(RUNTIMES[0])


OTHER_GROUPS: Mapping[str, tuple[str, ...]] = {
    "crun": ("crun",),
    "cdi": ("cdi-inject", *build.TOOLKIT_PROGRAMS),
    "judge": ("allocation-judge", "api-judge"),
    "judge-1.38": ("allocation-judge-1.38", "api-judge-1.38"),
    "autoscaler": ("autoscaler-judge",),
    "karpenter": ("karpenter-judge",),
    "device-plugin": ("nvidia-device-plugin",),
    "helm": ("helm",),
    "kueue": ("kueue",),
    "metadata": tuple(f"read-metadata-{minor}" for minor in pins.METADATA_GO_MODS),
    "vale": ("vale",),
    "actionlint": ("actionlint",),
    "promtool": ("promtool",),
}
"""Programs that are fetched only by name."""

_JUDGES = pins.JUDGES / "allocator", pins.JUDGES / "api"
_EVERY_GROUP = {**GROUPS, **OTHER_GROUPS}
DEBIAN_FILES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "runc": ("runc", {"usr/sbin/runc": "runc"}),
    "cni": (
        "containernetworking-plugins",
        {f"usr/lib/cni/{name}": name for name in ("bridge", "host-local", "loopback")},
    ),
    "busybox": ("busybox-static", {"bin/busybox": "busybox"}),
    "promtool": ("prometheus", {"usr/bin/promtool": "promtool"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The folder of each group of programs."""

    folders: Mapping[str, Path]

    def path(self, program: str) -> Path:
        """Where a program is."""
        for group, programs in _EVERY_GROUP.items():
            if program in programs:
                return self.folders[group] / program
        raise ClusterError(f"no group of programs holds {program}")

    @property
    def search_path(self) -> str:
        """The folders as a PATH: containerd finds its shim and runc there."""
        return os.pathsep.join(dict.fromkeys(str(folder) for folder in self.folders.values()))


@dataclass(slots=True, kw_only=True)
class Store:
    """Finds programs, and fetches what is missing into the cache."""

    cache: Path
    env: Mapping[str, str]
    progress: Progress
    downloads: Downloads = field(init=False)

    def __post_init__(self) -> None:
        self.downloads = Downloads(progress=self.progress)

    def present(self, versions: Versions, groups: Sequence[str] = BY_DEFAULT) -> Binaries | None:
        """The programs that exist already; None if one is missing."""
        folders = {group: self._find(group, versions) for group in groups}
        present = {group: folder for group, folder in folders.items() if folder is not None}
        return Binaries(folders=present) if len(present) == len(groups) else None

    def fetch(self, versions: Versions, groups: Iterable[str] = BY_DEFAULT) -> Binaries:
        """Groups of programs, fetched or compiled if they are missing.

        Raises BinariesUnavailableError, with each source's reason, if no source has a group.
        """
        folders: dict[str, Path] = {}
        for group in groups:
            folder = self._find(group, versions)
            if folder is None and self.env.get(FETCH_ENV) == "never":
                raise BinariesUnavailableError(
                    f"{group} is not in {self.cached_folder(group, versions)}, and nothing is "
                    "fetched or compiled within a test: hack/ready.py makes it ready"
                )
            if folder is None:
                with self._locked():
                    # Another fetch may have brought it while this one waited.
                    folder = self._find(group, versions) or self._bring(group, versions)
            folders[group] = folder
        return Binaries(folders=folders)

    def cached_folder(self, group: str, versions: Versions) -> Path:
        """Where the cache keeps a group, by version and architecture."""
        version = {
            "kubernetes": versions.kubernetes,
            "containerd": versions.containerd,
            "cdi": versions.container_toolkit,
            "judge": _of_judge(pins.GO_MOD_FILES["1.37"], pins.KUBERNETES_MODULE, *_JUDGES),
            "judge-1.38": _of_judge(pins.GO_MOD_FILES["1.38"], pins.KUBERNETES_MODULE, *_JUDGES),
            "autoscaler": _of_judge(pins.AUTOSCALER_GO_MOD, pins.AUTOSCALER_MODULE),
            "karpenter": _of_judge(pins.KARPENTER_GO_MOD, pins.KARPENTER_MODULE),
            "device-plugin": pinned(pins.DEVICE_PLUGIN_GO_MOD, pins.DEVICE_PLUGIN_MODULE),
            "helm": pinned(pins.HELM_GO_MOD, pins.HELM_MODULE),
            "kueue": pinned(pins.KUEUE_GO_MOD, pins.KUEUE_MODULE),
            "metadata": "-".join(
                pinned(own, pins.DRA_MODULE) for own in pins.METADATA_GO_MODS.values()
            ),
            "vale": pinned(pins.VALE_GO_MOD, pins.VALE_MODULE),
            "actionlint": pinned(pins.ACTIONLINT_GO_MOD, "github.com/rhysd/actionlint"),
            "etcd": versions.etcd,
            "crio": versions.crio,
            "runc": versions.runc,
            "cni": versions.cni_plugins,
        }.get(group, "any")
        return self.cache / f"{group}-{version}-{versions.arch}"

    def _find(self, group: str, versions: Versions) -> Path | None:
        given = self.env.get(BIN_DIR_ENV)
        programs = _EVERY_GROUP[group]
        if given and all(os.access(Path(given) / name, os.X_OK) for name in programs):
            return Path(given).resolve()
        folder = self.cached_folder(group, versions)
        # A folder from before the group grew has a marker, but lacks programs.
        whole = is_complete(folder) and all((folder / name).exists() for name in programs)
        return folder if whole else None

    def _bring(self, group: str, versions: Versions) -> Path:
        refusals: list[str] = []
        for name, source in self._sources(group, versions):
            self.cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{group}.", dir=self.cache) as scratch:
                folder = Path(scratch) / group
                folder.mkdir()
                try:
                    source(folder)
                    _check_runs(folder, _EVERY_GROUP[group])
                except SourceError as error:
                    refusals.append(f"{name}: {error}")
                    self.progress.say(f"{group}: not from {name} ({error})")
                    continue
                self.progress.say(f"{group}: from {name}")
                return _keep(folder, self.cached_folder(group, versions), name)
        listed = "".join(f"\n  - {refusal}" for refusal in refusals)
        raise BinariesUnavailableError(
            f"no source has {', '.join(_EVERY_GROUP[group])}:{listed}\n"
            f"Put the programs of Kubernetes {versions.kubernetes} into a folder and name it by "
            f"{BIN_DIR_ENV}, or give this machine access to the downloads, to Debian packages "
            "and to a Go module proxy (GOPROXY)."
        )

    def _sources(
        self, group: str, versions: Versions
    ) -> Iterator[tuple[str, Callable[[Path], None]]]:
        is_released = group not in ("busybox", "crio", *OTHER_GROUPS)
        published = assets(group, versions, self.env) if is_released else []
        if published:

            def download(folder: Path) -> None:
                for asset in published:
                    self.downloads.fetch(asset, folder)

            yield "the release downloads", download
        if group == "crio":

            def make(folder: Path) -> None:
                go = self._go(runtimes.crio_job(versions))
                runtimes.bring_crio(go, versions, folder, self.cache, self.progress)

            yield "Go modules and Debian's package conmon", make
        elif group == "crun":
            yield runtimes.CRUN_SOURCE, lambda folder: runtimes.bring_crun(folder, self.cache)
        elif build.jobs(group, versions):
            yield "Go modules", lambda folder: self._compile(group, versions, folder)
        else:
            package, files = DEBIAN_FILES[group]

            def unpack(folder: Path) -> None:
                debian.extract(package, files, folder, self.cache)

            yield f"Debian's package {package}", unpack

    def _compile(self, group: str, versions: Versions, folder: Path) -> None:
        go = self._go(build.jobs(group, versions)[0])
        build.compile_group(group, go, versions, folder, self.progress)
        if group == "kubernetes" and versions.minor == pins.SCHEDULER_ONLY:
            # The default version's programs stand beside this scheduler.
            default = pins.resolve(pins.DEFAULT_MINOR)
            source = self._find(group, default) or self._bring(group, default)
            for name in {*build.KUBERNETES_PROGRAMS} - {"kube-scheduler"}:
                (folder / name).symlink_to(source / name)

    def _go(self, job: build.Job) -> Go:
        return find_go(required_go(job.go_mod), self.cache, self.env, self.progress)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.progress.say("another fetch is at work: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            # A process that was killed while it held the lock left its folder behind.
            for group in _EVERY_GROUP:
                for folder in self.cache.glob(f".{group}.*"):
                    shutil.rmtree(folder, ignore_errors=True)
            yield


def _of_judge(go_mod: Path, module: str, *folders: Path) -> str:
    """The version of the library that a judge calls, and of its own protocol."""
    paths = [path for own in folders or (go_mod.parent,) for path in sorted(own.glob("*.go"))]
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    return f"{pinned(go_mod, module)}-{sources[:8]}"


def of_this_user(progress: Progress) -> Store:
    """The store that the environment describes."""
    return Store(cache=default_cache(os.environ), env=os.environ, progress=progress)


def default_cache(env: Mapping[str, str]) -> Path:
    """The folder for fetched and compiled programs, as the XDG base directories have it."""
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/root") / ".cache")
    return Path(base) / "dra-driver" / "cluster"


def is_complete(folder: Path) -> bool:
    """Whether a folder of the cache holds every file its marker lists, at its size."""
    try:
        files = json.loads((folder / MARKER).read_text())["files"]
        return all(
            (folder / name).stat().st_size == size and os.access(folder / name, os.X_OK)
            for name, size in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _keep(folder: Path, target: Path, source: str) -> Path:
    """Mark a filled folder complete and rename it to its place in the cache."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / MARKER).write_text(json.dumps({"source": source, "files": sizes}, indent=1))
    # An existing folder is incomplete, or it would have been used.
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    return target


def _check_runs(folder: Path, programs: tuple[str, ...]) -> None:
    """Refuse programs that do not start here, such as those for another processor."""
    for name in programs:
        try:
            done = subprocess.run(
                [folder / name, "--help"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"{name} does not run on this machine: {error}") from error
        # Most exit with a status of their own (a CNI plugin expects its command in the
        # environment); the loader exits with 127 when a shared library is missing, a crash ends by
        # a signal.
        if done.returncode == 127 or done.returncode < 0:
            why = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
            raise SourceError(f"{name} does not run on this machine: {why}")
