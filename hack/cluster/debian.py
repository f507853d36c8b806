"""Programs from Debian packages, without installing them.

In: a package's name and the files wanted from it. Out: those files in a folder, or the upstream
source of a package. An installation may start services and changes the machine; a package that is
only downloaded and unpacked does neither, and needs no root. If the machine's package lists are
missing or too old, or are of another release, lists of our own are fetched into the cache.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import SourceError

PATIENCE_S = 300
APT_OPTIONS = (
    "-o=Acquire::Retries=2",
    "-o=Acquire::http::Timeout=10",
    "-o=Acquire::https::Timeout=10",
    "-o=APT::Sandbox::User=root",
)
MIRROR = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def extract(package: str, files: Mapping[str, str], folder: Path, cache: Path) -> None:
    """Put files of a package (path inside it -> name) into a folder, as executables.

    Raises SourceError if there is no apt here, no such package, or no such file in it.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".deb.", dir=cache) as scratch:
        root = Path(scratch) / "root"
        unpack(package, root, cache)
        for inside, name in files.items():
            source = root / inside
            if not source.is_file():
                raise SourceError(f"Debian's package {package} holds no /{inside}")
            shutil.copyfile(source, folder / name)
            (folder / name).chmod(0o755)


def unpack(package: str, root: Path, cache: Path) -> None:
    """Add all files of a package to a folder, at their paths.

    Raises SourceError if there is no apt here, or no such package.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SourceError("this machine has no apt-get, so Debian packages cannot be fetched")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".deb.", dir=cache) as scratch:
        archive = _download(package, Path(scratch), cache)
        _run(["dpkg-deb", "--extract", str(archive), str(root)], cwd=Path(scratch))


def source(package: str, release: str, folder: Path, cache: Path) -> Path:
    """Download the upstream source of a package of a Debian release into a folder; return its path.

    apt checks it against that release's signed lists. Raises SourceError if it fails.
    """
    lists = cache / "apt" / release
    own = [*_own_lists(lists), f"-o=Dir::Etc::sourcelist={lists}/sources.list"]
    own.append("-o=Dir::Etc::sourceparts=/dev/null")
    (lists / "sources.list").write_text(f"deb-src [signed-by={KEYS}] {MIRROR} {release} main\n")
    _run(["apt-get", *APT_OPTIONS, *own, "update"], cwd=folder)
    try:
        _run(["apt-get", *APT_OPTIONS, *own, "source", "--download-only", package], cwd=folder)
    except SourceError:
        # Some mirrors lack the files beside it, such as the signature.
        if not any(folder.glob("*.orig.tar.*[!c]")):
            raise
    return next(folder.glob("*.orig.tar.*[!c]"))


def _download(package: str, scratch: Path, cache: Path) -> Path:
    command = ["apt-get", *APT_OPTIONS, "download", package]
    own_lists = _own_lists(cache / "apt")
    try:
        _run(command, cwd=scratch)
    except SourceError:
        # `update` fails as a whole if one of the machine's sources fails; what counts is whether
        # the package is available afterwards.
        update = ["apt-get", *APT_OPTIONS, *own_lists, "update"]
        subprocess.run(update, capture_output=True, timeout=PATIENCE_S, check=False)
        _run(["apt-get", *APT_OPTIONS, *own_lists, "download", package], cwd=scratch)
    packages = sorted(scratch.glob("*.deb"))
    if not packages:
        raise SourceError(f"apt-get download {package} left no package")
    return packages[0]


def _own_lists(folder: Path) -> list[str]:
    lists, archives = folder / "lists", folder / "cache"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (archives / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    return [f"-o=Dir::State::lists={lists}", f"-o=Dir::Cache={archives}"]


def _run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{command[0]} did not work: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        why = "; ".join(lines) or done.stderr.strip() or f"exit status {done.returncode}"
        raise SourceError(f"{command[0]} {command[-1]}: {why}")
