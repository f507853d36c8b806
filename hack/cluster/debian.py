"""Programs out of Debian packages, without installing them.

In: a package's name and the files wanted from it. Out: those files in a folder. An installation may
start services and changes the machine; a package that is only downloaded and unpacked does neither,
and needs no root. If the machine's package lists are missing or too old, lists of our own are
fetched into the cache.
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


def extract(package: str, files: Mapping[str, str], folder: Path, cache: Path) -> None:
    """Put files of a package (path inside it -> name) into a folder, as executables.

    Raises SourceError if there is no apt here, no such package, or no such file in it.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SourceError("this machine has no apt-get, so Debian packages cannot be fetched")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".deb.", dir=cache) as scratch:
        archive = _download(package, Path(scratch), cache)
        root = Path(scratch) / "root"
        _run(["dpkg-deb", "--extract", str(archive), str(root)], cwd=Path(scratch))
        for inside, name in files.items():
            source = root / inside
            if not source.is_file():
                raise SourceError(f"Debian's package {package} holds no /{inside}")
            shutil.copyfile(source, folder / name)
            (folder / name).chmod(0o755)


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
