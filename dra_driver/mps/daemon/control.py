"""Starts NVIDIA's nvidia-cuda-mps-control as a domain's daemon, and sends it commands.

Commands reach the daemon at the socket in its own folder, which no container has (mps/pipes.py).
The daemon inherits nothing of this process's environment, so settings for another MPS, such as the
host's, have no effect on it.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct

from dra_driver.cdi.driver_libraries import find_driver_libraries
from dra_driver.devices.driver_root import rooted
from dra_driver.devices.driver_root.programs import MPS_CONTROL, MPS_SERVER, SEARCHED, find_program
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DeviceError, SilenceError
from dra_driver.host.files import file_error
from dra_driver.host.process import has_pids_of_host
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.limits import ANSWERED
from dra_driver.mps.domain import Daemon, Domain
from dra_driver.mps.files import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM, DomainPaths
from dra_driver.mps.pipes import CONTROL_SOCKET

log = structlog.get_logger()

ASK_SECONDS = 5.0
START_SECONDS = 20.0
QUIT_SECONDS = 5
QUIT_ANSWER_SECONDS = QUIT_SECONDS + 2.0
"""How long to wait for a daemon to quit before it is killed. A tenant can keep it busy."""

# Where a daemon sees its links to the driver's libraries. Its servers run as their clients' users,
# who have no access to the kubelet's directory.
_LIBRARY_FOLDER = Path("/tmp/nvidia-mps-lib")  # noqa: S108 (a folder of its own is mounted there)
_ANSWERED = (ANSWERED, "get_server_status ")
_NO_LIBRARY = "error while loading shared libraries"
_LOG_FOLDER = Path("/tmp/nvidia-mps-log")  # noqa: S108 (as above)
# The option that starts it for clients of several users, as documented and in its short form.
_MULTI_USER = ("-multiuser-server", "-M")


class _NotRunnableError(DeviceError):
    """The kernel cannot start the program: it or its loader is missing."""


class View(Struct, frozen=True, kw_only=True):
    """Where a daemon runs: a mount namespace (None: this process's), and the driver root in it.

    `dev` returns where the driver's device nodes are; None if they are in /dev.
    """

    driver_root: Path
    namespace: Path | None = None
    dev: Callable[[], Path | None] = lambda: None


def host_view(
    driver_root: Path,
    proc: Path = Path("/proc"),
    dev: Callable[[], Path | None] = lambda: None,
) -> View | None:
    """Return the host's view for daemons; None if this process cannot get it or is on the host.

    A daemon that runs in this container's mounts would lose them with the container: its servers,
    which start whenever clients come, would no longer find a loader and a C library. The driver
    root and its device nodes are those of the host; `proc` has the host's processes.
    """
    if not has_pids_of_host(proc):
        return None
    try:
        own, host = (proc / "self/ns/mnt").stat(), (proc / "1/ns/mnt").stat()
    except OSError:
        return None
    if os.path.samestat(own, host):
        return None
    return View(driver_root=driver_root, namespace=proc / "1/ns/mnt", dev=dev)


class Control:
    """The program in one driver root. Methods may be called from any thread.

    Daemons are started with the host's view if there is one, otherwise with that of this process.
    """

    def __init__(
        self,
        driver_root: Path,
        proc_root: Path,
        host: View | None = None,
        *,
        own_dev: Callable[[], Path | None] = lambda: None,
    ) -> None:
        """Take where the GPU driver is, and the host's view if this process is not on the host.

        `proc_root` tells which GPU driver runs; `own_dev` is the `View.dev` of this process.
        """
        self._root = driver_root
        self._proc = proc_root
        own = View(driver_root=driver_root, dev=own_dev)
        self._views = (own,) if host is None else (host, own)

    def start(self, domain: Domain, paths: DomainPaths, token: str) -> Daemon:
        """Start the domain's daemon in its existing folders, and return it once it listens.

        The daemon and its servers have the token in their environment, which no tenant can read.
        Raises DeviceError with the daemon's message if it does not start.
        """
        said = ""
        for view in self._views:
            try:
                said = self._launch_in(view, domain, paths, token)
                is_possible = _NO_LIBRARY not in said
            except (_NotRunnableError, mounts.EnterError) as error:
                said, is_possible = str(error), False
            daemon = self.listening(paths)
            if daemon is not None and processes.has_token(daemon, token):
                return daemon
            if is_possible:
                break
            log.warning("mps daemon not started", view=str(view.namespace or "own"), cause=said)
        raise DeviceError(_not_started(domain, said, paths))

    def _launch_in(self, view: View, domain: Domain, paths: DomainPaths, token: str) -> str:
        control, environment = self._find(view)
        environment |= {
            "LD_LIBRARY_PATH": str(_LIBRARY_FOLDER),
            "CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY,
            "CUDA_MPS_LOG_DIRECTORY": str(_LOG_FOLDER),
            "CUDA_VISIBLE_DEVICES": domain.visible_devices,
            processes.MARK: str(paths.folder),
            processes.GENERATION: domain.daemon_generation,
            processes.TOKEN: token,
        }
        binds = self._binds(view, paths)
        binds |= {_LOG_FOLDER: paths.log, _LIBRARY_FOLDER: paths.libraries}
        self._link_libraries(paths, view)
        said = ""
        for options in _users_options(domain):
            command = [str(control), "-d", *options]
            said = mounts.in_private_mounts(
                binds,
                partial(_launch, command, environment),
                without=paths.folder.parent,
                namespace=view.namespace,
            )
            if self.listening(paths) is not None:
                break
        return said

    def listening(self, paths: DomainPaths) -> Daemon | None:
        """Return the daemon that listens in its own folder, None if there is none."""
        return processes.listener(paths.own, CONTROL_SOCKET)

    def ask(
        self, paths: DomainPaths, commands: Sequence[str], *, seconds: float = ASK_SECONDS
    ) -> list[str]:
        """Send commands to the domain's daemon and return its reply, as `ask_daemon` does."""
        control, environment = self._find(self._views[-1])
        return ask_daemon(
            control,
            commands,
            # Relative, because a socket's path has at most 107 bytes, and this one may be longer.
            environment=environment | {"CUDA_MPS_PIPE_DIRECTORY": "."},
            log=paths.log,
            folder=paths.own,
            seconds=seconds,
        )

    def quit(self, paths: DomainPaths, daemon: Daemon) -> None:
        """Make the daemon and its servers quit within seconds. Raises DeviceError."""
        if self.listening(paths) != daemon:
            raise DeviceError("the MPS control daemon no longer listens")
        self.ask(paths, [f"quit -t {QUIT_SECONDS}"], seconds=QUIT_ANSWER_SECONDS)

    def _find(self, view: View) -> tuple[Path, dict[str, str]]:
        """Return where a view has the program, and which environment it needs."""
        control = find_program(self._root, MPS_CONTROL)
        if control is None:
            raise DeviceError(
                f"{MPS_CONTROL} not found under {self._root} (looked in {SEARCHED}); install the"
                " part of the GPU driver that holds it (nvidia-compute-utils, nvidia-cuda-mps),"
                " or point --nvidia-driver-root at where it is"
            )
        server = find_program(self._root, MPS_SERVER) or control
        there = [rooted.outside(view.driver_root, program.source) for program in (server, control)]
        folders = dict.fromkeys(str(path.parent) for path in there)
        return there[1], {"PATH": os.pathsep.join(folders), "LC_ALL": "C"}

    def _binds(self, view: View, paths: DomainPaths) -> dict[Path, Path]:
        """Return what daemons see, with a driver container's /dev.

        A simulated /dev is not used, as it has only GPUs. /dev comes before /dev/shm inside it.
        """
        seen_here, there = self._views[-1].dev(), view.dev()
        is_whole = seen_here is not None and (seen_here / "null").exists()
        dev = {Path("/dev"): there} if there is not None and is_whole else {}
        return dev | {Path(CONTAINER_PIPE_DIRECTORY): paths.own, Path(CONTAINER_SHM): paths.shm}

    def _link_libraries(self, paths: DomainPaths, view: View) -> None:
        """Make the folder in which the daemon's servers find the GPU driver's libraries.

        The driver's own folder is not suitable. On a host it also has the host's C library, not
        this container's, and it may have libraries of a driver that is not running.
        """
        try:
            libraries = find_driver_libraries(self._root, running_driver(self._proc)).by_name()
        except OSError as error:
            raise DeviceError(
                f"the GPU driver's libraries under {self._root} cannot be read: "
                f"{error.strerror} ({error.filename}); check the mount of the driver root"
            ) from error
        wanted = {
            name: rooted.outside(view.driver_root, source) for name, source in libraries.items()
        }
        try:
            _write_links(paths.libraries, wanted)
        except OSError as error:
            raise file_error("make", paths.libraries, error) from error


def ask_daemon(
    program: Path,
    commands: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    seconds: float = ASK_SECONDS,
) -> list[str]:
    """Send commands to a daemon by running its program again; return the lines of its reply.

    The program finds the daemon by CUDA_MPS_PIPE_DIRECTORY; `environment` is all that it has, and
    `folder` is where it runs, for relative paths. Its exit status says only whether it reached the
    daemon, so the caller reads back what was set. The daemon answers one caller at a time, and
    rejects others.

    Raises SilenceError if the daemon does not run, answers somebody else, or does not answer in
    time, and DeviceError if the program cannot be run. If two ask at once, one is told that the
    command cannot be sent, or often nothing at all, with status 0 (seen with R535).
    """
    try:
        done = subprocess.run(
            [program],
            input="".join(f"{command}\n" for command in commands),
            cwd=folder,
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SilenceError(
            f"the MPS control daemon did not answer in {seconds:g} s; see {log}"
        ) from error
    except OSError as error:
        raise DeviceError(f"cannot run {program}: {error.strerror}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise SilenceError(f"the MPS control daemon does not answer ({said}); see {log}")
    lines = done.stdout.splitlines()
    if not lines and any(command.startswith(_ANSWERED) for command in commands):
        raise SilenceError(f"the MPS control daemon does not answer (it says nothing); see {log}")
    return lines


def _write_links(folder: Path, wanted: Mapping[str, Path]) -> None:
    """Make a folder contain exactly these links."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for name in os.listdir(folder):  # noqa: PTH208 (names are what is wanted)
        if name not in wanted or (folder / name).readlink() != wanted[name]:
            (folder / name).unlink()
    for name, target in wanted.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)


def _launch(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run the program until it is in the background; return what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{command[0]} did not start in {START_SECONDS:g} s; see dmesg for NVRM and Xid lines"
        ) from error
    except OSError as error:
        raise _NotRunnableError(f"cannot run {command[0]}: {error.strerror}") from error
    return " ".join(done.stdout.split()) or f"status {done.returncode}"


def _users_options(domain: Domain) -> list[list[str]]:
    """Return the options to try, one after the other, for the users of a domain's clients."""
    if not domain.multi_user:
        return [[]]
    several = [[option] for option in _MULTI_USER]
    return [*several, []] if domain.may_take_turns else several


def _not_started(domain: Domain, said: str, paths: DomainPaths) -> str:
    if domain.multi_user:
        return (
            f"{MPS_CONTROL} does not start for several users (it says: {said}); this driver may be"
            " too old for multiUser: update it, or run the claim's pods as one user without"
            " multiUser"
        )
    return f"{MPS_CONTROL} does not start (it says: {said}); see {paths.log / 'control.log'}"
