"""`dra-driver mps-supervisor`: builds the supervisor from settings and runs it until told to stop.

In: flags and environment variables, named like the driver's. Out: exit status 0 after SIGTERM or
SIGINT, with every daemon left running; 1 if the node lacks something or a thread died. The process
must be privileged and see the host's PIDs, because daemons and clients identify each other by PID;
and the host must see its mounts, because they are mounted into the clients' containers.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import structlog

from dra_driver.cdi.roots import find_roots
from dra_driver.commands.command_line import CommandSettings, changed, option
from dra_driver.commands.common_settings import (
    CONTAINER_DRIVER_ROOT,
    HTTP_ENDPOINT,
    KUBELET_PLUGINS_DIRECTORY_PATH,
    LOG_FORMAT,
    LOG_LEVEL,
    METRICS_PATH,
    NVIDIA_DEV_ROOT,
    NVIDIA_DRIVER_ROOT,
    PROC_ROOT,
    SECONDS,
    SECONDS_OR_OFF,
    LogFormatName,
    LogLevelName,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.host.process import Shutdown, read_boot_id
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import Control, host_view
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import State
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.supervisor.cgroup import DaemonGroup
from dra_driver.mps.supervisor.compute_modes import ComputeModes, NvmlModes
from dra_driver.mps.supervisor.lifecycle import SupervisorContext
from dra_driver.mps.supervisor.supervisor import Supervisor
from dra_driver.ops.http import HttpEndpoint
from dra_driver.ops.logs import configure_logs
from dra_driver.ops.metrics import MpsMetrics
from resource_nvidia_com.quantity import Quantity

log = structlog.get_logger()

_STOP_SECONDS = 10.0
_PAGE = 4096


class MpsSupervisor(CommandSettings, variables=True):
    """Run the MPS daemons that this node's claims ask for."""

    kubelet_plugins_directory_path: Path = changed(
        KUBELET_PLUGINS_DIRECTORY_PATH,
        help="Folder with the files shared with the driver, below gpu.nvidia.com/mps; the same "
        "path as on the host, with mountPropagation: Bidirectional.",
    )
    nvidia_driver_root: Path = NVIDIA_DRIVER_ROOT
    container_driver_root: Path | None = CONTAINER_DRIVER_ROOT
    nvidia_dev_root: Path | None = NVIDIA_DEV_ROOT
    proc_root: Path = PROC_ROOT
    compute_mode: bool = option(
        default=True,
        help="Set GPUs under MPS to EXCLUSIVE_PROCESS, so that nothing runs beside MPS.",
    )
    shm_size: str = option(
        default="",
        help="Size of each domain's /dev/shm, such as 8Gi; unset: half of the node's memory, "
        "divided among its GPUs, and for a MIG device a seventh of its GPU's part.",
    )
    cgroup_root: Path | None = option(
        default=None,
        help="The host's cgroup file system, writable, which lets daemons outlive this container.",
    )
    check_interval: float = option(
        check=SECONDS,
        default=60.0,
        help="Seconds between checks that each daemon answers and has its limits. A daemon's end "
        "is noticed at once.",
    )
    replace_after: float = option(
        check=SECONDS_OR_OFF,
        default=60.0,
        help="Seconds after which to replace a daemon that does not answer, or whose server is in "
        "FAULT; its clients lose their work; 0: never.",
    )
    http_endpoint: str = changed(
        HTTP_ENDPOINT, help="Address for metrics and /healthz, such as :8081; unset: off."
    )
    metrics_path: str = METRICS_PATH
    log_level: LogLevelName = LOG_LEVEL
    log_format: LogFormatName = LOG_FORMAT

    def cli_cmd(self) -> None:
        """Run until told to stop; ends with SystemExit, whose code is the exit status.

        Raises:
            SetupError: the settings or this node lack something.
        """
        configure_logs(level=self.log_level, form=self.log_format, stream=sys.stderr)
        metrics = MpsMetrics(driver=DRIVER_NAME, version=version("dra-driver"))
        supervisor = build(self, on_death=metrics.daemon_died)
        metrics.watch_domains(supervisor.states, states=tuple(State))
        http = HttpEndpoint(self.http_endpoint, {self.metrics_path: metrics.wsgi_app})
        raise SystemExit(run(supervisor, http if self.http_endpoint else None))


def build(settings: MpsSupervisor, *, on_death: Callable[[], None] = lambda: None) -> Supervisor:
    """Return the supervisor, ready to run.

    Raises SetupError if the settings or this node lack something.
    """
    _check_container(settings.kubelet_plugins_directory_path)
    roots = find_roots(
        driver_root=settings.nvidia_driver_root,
        container_driver_root=settings.container_driver_root,
        dev_root=settings.nvidia_dev_root,
        proc_root=settings.proc_root,
    )
    directory = settings.kubelet_plugins_directory_path / DRIVER_NAME / "mps"
    context = SupervisorContext(
        supervisor=str(uuid.uuid4()),
        boot_id=read_boot_id(settings.proc_root),
        files=MpsFiles(root=directory),
        control=Control(
            roots.driver,
            roots.proc,
            host_view(settings.nvidia_driver_root, dev=roots.own_dev_on_host),
            own_dev=roots.own_dev,
        ),
        modes=ComputeModes(NvmlModes(roots.driver, roots.proc), change=settings.compute_mode),
        group=DaemonGroup(settings.cgroup_root),
        gpus=roots.proc / "driver/nvidia/gpus",
        shm_bytes=_shm_bytes(settings.shm_size),
        on_death=on_death,
    )
    timing = WorkerTiming(
        check_interval=settings.check_interval,
        replace_after=settings.replace_after,
    )
    return Supervisor(context, timing, time.monotonic)


def run(supervisor: Supervisor, http: HttpEndpoint | None) -> int:
    """Run the supervisor until SIGTERM or SIGINT, or until a thread dies; return the exit status.

    Raises SetupError if it cannot listen on the HTTP address.
    """
    shutdown = Shutdown()
    shutdown.watch_signals()
    shutdown.watch_threads()
    if http is not None:
        http.start()
    supervisor.start()
    reason = shutdown.wait()
    log.info("mps supervisor stopping", reason=reason.text)
    if reason.exit_status == 0:
        supervisor.let_domains_end(shutdown.comes_within)
    supervisor.stop(_STOP_SECONDS)
    if http is not None:
        http.stop()
    return reason.exit_status


def _check_container(plugins: Path) -> None:
    """Check for missing rights that would show only once a claim's pod is in use."""
    if os.getpid() == 1:
        raise SetupError(
            "this container has its own PID namespace, because this is its first process: MPS "
            "daemons and their clients identify each other by the host's PIDs, and daemons would "
            "end with the container; set hostPID: true in its pod, as the manifests do"
        )
    if mounts.hides_mounts(plugins):
        raise SetupError(
            f"what is mounted below {plugins} in this container is not visible on the host, so no "
            "pod would find its MPS daemon; mount that folder with mountPropagation: "
            "Bidirectional, as the manifests do"
        )


def _shm_bytes(size: str) -> int | None:
    if not size:
        return None
    try:
        nanos = Quantity.parse(size).nanos
    except ValueError as error:
        raise SetupError(f"--shm-size: {error}") from error
    if nanos < _PAGE * 10**9:
        raise SetupError(f"--shm-size: {size} is less than one page of memory")
    return nanos // 10**9
