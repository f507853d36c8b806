"""The driver and the MPS supervisor as processes of this host: started, stopped, killed, read."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml

from testbed.api import Object
from testbed.commands import TestbedError, wait_until
from testbed.machine import DRIVER

DRIVER_NAME = "gpu.nvidia.com"

INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH")
"""The variables that a driver's process inherits from this one."""

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its ServiceAccount's token; on this host an empty folder, if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The paths and names with which a driver is started."""

    node: str
    kubeconfig: Path
    plugins: Path
    registry: Path
    cdi_root: Path
    driver_root: Path
    service_account: Path | None = None
    """A folder with `token` and `ca.crt`, which the driver gets like a pod, without kubeconfig."""

    @classmethod
    def below(cls, folder: Path, kubeconfig: Path, driver_root: Path, *, node: str) -> Self:
        """Return places below a folder, with short names, as paths of sockets must be short."""
        return cls(
            node=node,
            kubeconfig=kubeconfig,
            plugins=folder / "p",
            registry=folder / "r",
            cdi_root=folder / "cdi",
            driver_root=driver_root,
        )

    def env(self) -> dict[str, str]:
        """The driver's environment, as the DaemonSet of the manifests would set it."""
        return self._api_env() | {
            "NODE_NAME": self.node,
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(self.plugins),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.registry),
            "CDI_ROOT": str(self.cdi_root),
            "NVIDIA_DRIVER_ROOT": str(self.driver_root),
            "DRIVER_ROOT_CTR_PATH": str(self.driver_root),
            "SYS_ROOT": str(self.driver_root / "sys"),
            "PROC_ROOT": str(self.driver_root / "proc"),
            "LOG_FORMAT": "json",
        }

    def _api_env(self) -> dict[str, str]:
        if self.service_account is None:
            return {"KUBECONFIG": str(self.kubeconfig)}
        config = yaml.safe_load(self.kubeconfig.read_text())
        server = urlsplit(config["clusters"][0]["cluster"]["server"])
        return {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }

    @property
    def data(self) -> Path:
        """The driver's own folder, with its socket and its records."""
        return self.plugins / DRIVER_NAME

    @property
    def mps(self) -> Path:
        """The directory that driver and MPS supervisor share."""
        return self.data / "mps"

    def records(self) -> list[str]:
        """The names of the claims' records on disk."""
        return sorted(path.name for path in self.data.glob("claims/*.json"))

    def left_over(self) -> list[str]:
        """Everything on disk that belongs to claims; empty if no claim is prepared."""
        files = (*self.cdi_files(), *self.mps_files(), *self.metadata_files())
        return [*self.records(), *files]

    def mps_files(self) -> list[str]:
        """The files and folders of MPS domains, such as `desired/UID.json`."""
        paths = self.mps.glob("[!.]*/[!.]*")
        return sorted(str(path.relative_to(self.mps)) for path in paths)

    def metadata_files(self) -> list[str]:
        """The folders and files of device metadata, such as `claim UID/gpu.json`."""
        root = self.data / "device-metadata"
        paths = (  # by os.walk, which continues if a folder is removed before it is read
            Path(folder, name)
            for folder, folders, files in os.walk(root)
            for name in (*folders, *files)
        )
        return sorted(str(path.relative_to(root)) for path in paths)

    def cdi_files(self) -> list[str]:
        """The names of the driver's CDI specs."""
        return sorted(path.name for path in self.cdi_root.glob("k8s.gpu.nvidia.com-*"))


class DriverProcess:
    """One driver; may be started again after it has ended. `log` gets the output of all its lives.

    `env` is the environment of the next life, besides PATH and the like. `program` is the
    `dra-driver` that is started.
    """

    command = "kubelet-plugin"

    def __init__(
        self,
        place: Place,
        log: Path,
        extra_env: Mapping[str, str] | None = None,
        *,
        program: Path = DRIVER,
    ) -> None:
        self.program = program
        self.place = place
        self.log = log
        self.env = place.env() | dict(extra_env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id of the present or last life."""
        if self._process is None:
            raise TestbedError(f"{self.command} was never started")
        return self._process.pid

    def start(self, *words: str, detached: bool = False) -> None:
        """Start the driver with more arguments. A detached one outlives program and terminal."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._around(), self.program, self.command, *words],
                env=env | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=detached,
            )

    def _around(self) -> list[str]:
        """The command that mounts the ServiceAccount's folder and then becomes the driver."""
        folder = self.place.service_account
        if folder is None:
            return []
        SERVICE_ACCOUNT_FOLDER.mkdir(parents=True, exist_ok=True)
        script = 'mount --bind "$0" "$1" && shift && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", script]
        return [*words, str(folder), str(SERVICE_ACCOUNT_FOLDER)]

    def wait_log(self, event: str, *, timeout: float = 60, **facts: object) -> Object:
        """Wait for a log line of this life with the given event text and facts; return all of it.

        Raises TestbedError if the driver ended, or the line did not come in time.
        """

        def look() -> Object | None:
            line = next((own for own in self.events(event) if facts.items() <= own.items()), None)
            if line is None and not self.running():
                raise TestbedError(f"{self.command} ended before '{event}':\n{self.tail()}")
            return line

        try:
            return wait_until(look, f"{self.command}'s log line '{event}'", timeout=timeout)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self.tail()}") from error

    def wait_started(self) -> None:
        """Wait until all parts of this life of the driver have started."""
        self.wait_log("driver started")

    def wait_registered(self, *, timeout: float = 60) -> None:
        """Wait until the kubelet has accepted this life of the driver."""
        self.wait_log("driver registered with the kubelet", timeout=timeout)

    def events(self, event: str = "") -> list[Object]:
        """The log lines of this life as facts, all or those of an event, without other text."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return logged(log.read(), event)

    def tail(self, lines: int = 25) -> str:
        """The end of the log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def check_running(self) -> None:
        """Check that the process runs.

        Raises TestbedError with the end of its log if it has ended.
        """
        if not self.running():
            raise TestbedError(f"{self.command} has ended:\n{self.tail()}")

    def wait(self, *, timeout: float = 60) -> int:
        """Wait until the process has ended by itself; return its exit status.

        Raises TestbedError if it has not, within `timeout` seconds.
        """
        if self._process is None:
            raise TestbedError(f"{self.command} was never started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{self.command} is still there:\n{self.tail()}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, *, timeout: float = 60) -> int:
        """Send SIGTERM, wait, and return the exit status; kill after `timeout` seconds."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        self._end(signal.SIGKILL, 30)

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
            raise TestbedError(
                f"{self.command} did not end within {timeout:.0f} s of SIGTERM:\n{self.tail()}"
            ) from None


class SupervisorProcess(DriverProcess):
    """The MPS supervisor. What it started continues after its end: see testbed.mps."""

    command = "mps-supervisor"


def logged(text: bytes, event: str = "") -> list[Object]:
    """The complete lines of a log as facts, all or those of an event, without other text."""
    lines = text.splitlines(keepends=True)
    whole = (line for line in lines if line.startswith(b"{") and line.endswith(b"\n"))
    return [line for line in map(json.loads, whole) if event in ("", line.get("event"))]


def resident_memory(pid: int) -> tuple[int, int]:
    """Return a process's resident memory now and at its peak, in bytes (VmRSS, VmHWM)."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, peak = (int(status[field].split()[0]) * 1024 for field in ("VmRSS", "VmHWM"))
    return now, peak
