"""NVIDIA's user-space driver files for a simulated driver root.

In: a cache folder and this machine's own Debian package sources. Out: a `Userspace`: the driver's
version and its files by their place in a driver root. The real ones come from the non-free part of
the archive this machine already uses, downloaded and unpacked, never installed. If they cannot be
downloaded, stand-ins with the right sonames take their place. libcuda is always a stand-in, because
NVIDIA's own would find none of the simulated GPUs.
"""

import contextlib
import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from dra_driver.errors import SetupError
from dra_driver.simulator import apt_source, build

PACKAGES = (
    "nvidia-smi", "nvidia-cuda-mps", "libcuda1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4",
    "libnvidia-cfg1", "libnvcuvid1", "libnvidia-encode1", "nvidia-persistenced",
)  # fmt: skip
# The packages' libraries, for stand-ins: soname and the link without a number.
_SONAMES = (
    "libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-cfg.so.1",
    "libnvcuvid.so.1", "libnvidia-encode.so.1",
)  # fmt: skip
_CUDA = "libcuda.so"
_PLAIN_LINKS = ("libcuda.so", "libnvcuvid.so", "libnvidia-encode.so")
# The real packages keep nvidia-smi elsewhere, behind a symlink; containers get the path of the file
# itself, so here it is on the search path.
_MOVED = {"usr/lib/nvidia/current/nvidia-smi": "usr/bin/nvidia-smi"}
_WANTED = re.compile(r"^usr/(bin|sbin)/nvidia-|^usr/lib/[^/]+/nvidia/current/lib.*\.so")
_DOWNLOAD_SECONDS = 300


class Userspace(Struct, frozen=True, kw_only=True):
    """Driver files.

    Attributes:
        real: whether they are NVIDIA's.
        version: the driver version in their names; empty for stand-ins, which can have any.
        files: place in the driver root → file to put there.
        links: place in the driver root → text of the symlink.
        texts: place in the driver root → content of the file there.
        note: for the user: where they are from, or why they are not real.
    """

    real: bool
    version: str
    files: Mapping[str, Path]
    links: Mapping[str, str]
    note: str
    texts: Mapping[str, str] = {}


def library_folder() -> str:
    """Return where Debian keeps the driver's libraries, relative to the root."""
    return f"usr/lib/{platform.machine()}-linux-gnu/nvidia/current"


def kept(cache: Path) -> Path:
    """Return the folder in a cache that has NVIDIA's files after the download."""
    return cache / f"userspace-{platform.machine()}"


def real(
    cache: Path,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    apt: Path = Path("/etc/apt"),
) -> Userspace:
    """Return NVIDIA's files, except libcuda, from the cache; downloaded first if necessary.

    Args:
        cache: folder for results, made if missing.
        environment: passed to apt-get; PATH and proxies matter.
        report: called with a sentence before something that takes a while.
        apt: folder of the machine's package sources.

    Raises: SetupError: this machine cannot get them; the text says why.
    """
    folder = kept(cache)
    cache.mkdir(parents=True, exist_ok=True)
    with _only_one(cache / "userspace.lock"):
        if not folder.exists():
            report(f"fetching NVIDIA's user-space files from Debian, about 35 MB, into {cache}")
            _download(folder, environment, apt)
    found, links = _wanted(folder)
    version = _version(found)
    files = dict(found)
    files[f"{library_folder()}/{_CUDA}.{version}"] = build.compile_cuda(cache, environment)
    return Userspace(
        real=True, version=version, files=files, links=links, note=f"NVIDIA's own files, {version}"
    )


@functools.cache
def _wanted(folder: Path) -> tuple[Mapping[str, Path], Mapping[str, str]]:
    """Return the packages' files and links, which do not change after they are unpacked."""
    files, links = {}, {}
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        if not _WANTED.match(_MOVED.get(place, place)) or "libnvidia-ml." in place:
            continue
        if path.is_symlink():
            links[place] = str(path.readlink())
        elif path.is_file():
            files[_MOVED.get(place, place)] = path
    return files, links


def stand_ins(
    cache: Path, environment: Mapping[str, str], driver_version: str, why: str
) -> Userspace:
    """Return libraries with the right sonames, empty except libcuda, and a small nvidia-smi.

    Raises SetupError if there is no C compiler.
    """
    files: dict[str, Path] = {}
    links: dict[str, str] = {}
    folder = library_folder()
    for soname in _SONAMES:
        stem = soname.rpartition(".so.")[0]
        name = f"{stem}.so.{driver_version}"
        files[f"{folder}/{name}"] = (
            build.compile_cuda(cache, environment)
            if soname == build.CUDA_SONAME
            else build.compile_stand_in(soname, cache, environment)
        )
        links[f"{folder}/{soname}"] = name
        if f"{stem}.so" in _PLAIN_LINKS:
            links[f"{folder}/{stem}.so"] = soname
    files["usr/bin/nvidia-smi"] = build.compile_program("nvidia-smi.c", cache, environment)
    return Userspace(real=False, version="", files=files, links=links, note=f"stand-ins: {why}")


def _version(files: Mapping[str, Path]) -> str:
    for place in files:
        if match := re.search(r"/libcuda\.so\.(\d+\.[\d.]+)$", place):
            return match[1]
    raise SetupError("the downloaded packages hold no libcuda.so.<version>; empty the cache")


def _download(kept: Path, environment: Mapping[str, str], apt: Path) -> None:
    """Download the packages; put their unpacked content into `kept`, whole or not at all."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool, path=environment.get("PATH")) is None:
            raise SetupError(f"this machine has no {tool}")
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".userspace-") as folder:
        work = Path(folder)
        options = apt_source.options(work, apt)
        for command in (["update"], ["download", *PACKAGES]):
            _run(["apt-get", "-qq", *options, *command], work, environment)
        for package in sorted(work.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), "unpacked"], work, environment)
        (work / "unpacked").rename(kept)


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environment, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as cause:
        raise SetupError(f"{command[0]} took longer than {_DOWNLOAD_SECONDS} s") from cause
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        reason = "; ".join(lines) or done.stderr.strip()[-500:]
        raise SetupError(f"{' '.join(command[:1])} failed (status {done.returncode}): {reason}")


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold a lock between processes; a second process waits and then finds the work done."""
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
