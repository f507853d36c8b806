"""Prometheus' own promtool: the one on the PATH, or that of Debian's package.

The package is unpacked below ~/.cache and not installed, so that no service starts.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path.home() / ".cache" / "dra-driver" / "prometheus"


class PromtoolError(Exception):
    """Promtool cannot be had; the text says why."""


def program() -> Path:
    """Return where promtool is; get it first where it is missing.

    Raises:
        PromtoolError: it is not here, and Debian's package cannot be had.
    """
    here = shutil.which("promtool")
    if here:
        return Path(here)
    found = CACHE / "usr" / "bin" / "promtool"
    if not found.exists() and os.environ.get("CLUSTER_FETCH") == "never":
        raise PromtoolError(
            f"it is not in {CACHE}, and nothing is downloaded within a test: "
            "`hack/ready.py promtool` gets it"
        )
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side, and apt has a lock of its own
        if not found.exists():
            _unpack(CACHE)
    return found


def said(promtool: Path, *words: object) -> str:
    """What promtool answers; it has to succeed."""
    done = _run(promtool, *words)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def _unpack(target: Path) -> None:
    """Make `target` hold what Debian's package has; it appears whole or not at all."""
    download = ("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus")
    with TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        try:
            if _run(*download, folder=folder).returncode != 0:
                _made(folder, "apt-get", "-qq", "update")  # the lists may be old, or not there
                _made(folder, *download)
            (package,) = folder.glob("*.deb")
            _made(folder, "dpkg-deb", "--extract", package, folder / "made")
        except OSError as error:
            raise PromtoolError(f"Debian's tools are not here: {error}") from error
        (folder / "made").rename(target)


def _made(folder: Path, *command: object) -> None:
    done = _run(*command, folder=folder)
    if done.returncode != 0:
        raise PromtoolError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")


def _run(*command: object, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
