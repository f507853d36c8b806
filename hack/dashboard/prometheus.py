"""Prometheus and its promtool: where they are, and a server over made-up samples.

They are those on the PATH, or Debian's package, unpacked below ~/.cache and not installed, so that
no service starts. A server keeps what it knows in a given folder and ends with the `with` block.
"""

import fcntl
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CACHE = Path.home() / ".cache" / "dra-driver" / "prometheus"
PATIENCE = 60.0
KEPT = "100y"
"""Made-up samples may be of any day."""


class PrometheusError(Exception):
    """Prometheus cannot be had, or refuses; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What one series was worth, by time in seconds."""

    labels: dict[str, str]
    values: tuple[tuple[float, float], ...]


def programs() -> Path:
    """Return the folder of both programs; get them first where they are missing.

    Raises:
        PrometheusError: they are not here, and Debian's package cannot be had.
    """
    found = shutil.which("promtool")
    if found and shutil.which("prometheus"):
        return Path(found).parent
    folder = CACHE / "usr" / "bin"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side, and apt has a lock of its own
        if not (folder / "promtool").exists():
            unpack(CACHE)
    return folder


def unpack(target: Path) -> None:
    """Make `target` hold what Debian's package has; it appears whole or not at all.

    Raises:
        PrometheusError: this is no Debian, or its archive cannot be reached.
    """
    with TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        download = ("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus")
        try:
            if subprocess.run(download, cwd=folder, check=False, capture_output=True).returncode:
                said(("apt-get", "-qq", "update"), folder)  # the lists may be old, or not there
                said(download, folder)
            (package,) = folder.glob("*.deb")
            said(("dpkg-deb", "--extract", package, folder / "made"), folder)
        except OSError as error:
            raise PrometheusError(f"Debian's tools are not here: {error}") from error
        (folder / "made").rename(target)


def said(command: tuple[str | Path, ...], folder: Path) -> str:
    """Run a command in a folder; return what it prints.

    Raises:
        PrometheusError: it failed, with its last words.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PrometheusError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


class Server:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        """Take where it answers."""
        self._address = address

    def over(self, query: str, *, begin: float, end: float, step: float) -> list[Series]:
        """Return what a query is worth, over a time.

        Raises:
            PrometheusError: it refuses the query.
        """
        found = self._ask("query_range", query=query, start=begin, end=end, step=step)
        return [_series(one["metric"], one["values"]) for one in found]

    def at(self, query: str, when: float) -> list[Series]:
        """Return what a query is worth at one time.

        Raises:
            PrometheusError: it refuses the query.
        """
        found = self._ask("query", query=query, time=when)
        return [_series(one["metric"], [one["value"]]) for one in found]

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def _ask(self, what: str, **words: object) -> list[dict[str, Any]]:
        address = f"{self._address}/api/v1/{what}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{words['query']}: {error.read().decode()}") from error
        return result


def _series(labels: dict[str, str], values: list[list[str]]) -> Series:
    return Series(labels=labels, values=tuple((float(at), float(worth)) for at, worth in values))


@contextmanager
def serving(samples: str, folder: Path) -> Iterator[Server]:
    """Run a Prometheus that knows these samples, in OpenMetrics with times.

    Raises:
        PrometheusError: it does not take them, or does not start.
    """
    places = programs()
    (folder / "samples").write_text(samples)
    (folder / "prometheus.yml").write_text("{}\n")
    import_ = (places / "promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet")
    said((*import_, folder / "samples", folder / "data"), folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command: list[str | Path] = [
        places / "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={KEPT}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, cwd=folder)
    try:
        server, end = Server(f"http://127.0.0.1:{port}"), time.monotonic() + PATIENCE
        while not server.ready():
            if process.poll() is not None or time.monotonic() > end:
                raise PrometheusError("prometheus does not start; its words are above")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()
