"""NVIDIA's nvidia-cuda-mps-control: starts it as a domain's daemon, and sends it commands.

In: a driver root, a domain and its folders. Out: a running daemon; the daemon's replies. Commands
reach the daemon through a second run of the same program, one command in each line. Its exit status
says only whether it reached the daemon, so the caller reads back what was set. The daemon inherits
nothing of this process's environment, so settings for another MPS, such as the host's, have no
effect on it.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dra_driver.devices import libraries, rooted
from dra_driver.devices.programs import MPS_CONTROL, MPS_SERVER, SEARCHED, find_program
from dra_driver.errors import DeviceError
from dra_driver.mps import mounts, processes
from dra_driver.mps.client_edits import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM
from dra_driver.mps.domain import Daemon, Domain
from dra_driver.mps.files import DomainPaths

ASK_SECONDS = 5.0
START_SECONDS = 20.0
QUIT_SECONDS = 5

# Where a daemon sees its links to the driver's libraries. Its servers run as their clients' users,
# who have no access to the kubelet's directory.
_LIBRARY_FOLDER = Path("/tmp/nvidia-mps-lib")  # noqa: S108 (a folder of its own is mounted there)
_LIBRARIES = ("libcuda.so*", "libnvidia-*.so*")
# The options that start it for clients of several users: the documented one, and its short form.
_MULTI_USER = ("-multiuser-server", "-M")
_CONTROL_SOCKET = "control_privileged"
_LEFT_IN_PIPE = ("control", "control_privileged", "control_lock", "log", f"{MPS_CONTROL}.pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programs:
    control: Path
    search_path: str


class Control:
    """The program in one driver root. Methods may be called from any thread."""

    def __init__(self, driver_root: Path) -> None:
        self._root = driver_root

    def start(self, domain: Domain, paths: DomainPaths) -> Daemon:
        """Start the domain's daemon, whose folders exist, and return it once it listens.

        Raises:
            DeviceError: it does not start; the text has what it says.
        """
        programs = self._find()
        environment = {
            **self._environment(programs, _LIBRARY_FOLDER),
            "CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY,
            "CUDA_MPS_LOG_DIRECTORY": str(paths.log),
            "CUDA_VISIBLE_DEVICES": domain.visible_devices,
            processes.MARK: str(paths.folder),
            processes.GENERATION: domain.daemon_generation,
        }
        binds = {Path(CONTAINER_PIPE_DIRECTORY): paths.pipe, Path(CONTAINER_SHM): paths.shm}
        if self._is_elsewhere:
            binds[_LIBRARY_FOLDER] = paths.libraries
        said = ""
        for options in [[one] for one in _MULTI_USER] if domain.multi_user else [[]]:
            command = [str(programs.control), "-d", *options]
            said = mounts.in_private_mounts(
                binds,
                partial(_launch, command, environment),
                without=paths.folder.parent,
            )
            daemon = processes.listener(paths.pipe, _CONTROL_SOCKET)
            if daemon is not None:
                return daemon
        raise DeviceError(_not_started(domain, said, paths))

    def listening(self, paths: DomainPaths) -> Daemon | None:
        """Return the daemon that listens in the domain's pipe directory, None if none does."""
        return processes.listener(paths.pipe, _CONTROL_SOCKET)

    def ask(
        self, paths: DomainPaths, commands: Sequence[str], *, seconds: float = ASK_SECONDS
    ) -> list[str]:
        """Send commands to the domain's daemon and return the lines of its reply.

        Raises:
            DeviceError: the daemon does not run, or does not answer in time.
        """
        programs = self._find()
        # Relative, because the path of a socket may have 107 bytes, and this one may have more.
        environment = self._environment(programs, paths.libraries)
        environment["CUDA_MPS_PIPE_DIRECTORY"] = "."
        try:
            done = subprocess.run(
                [str(programs.control)],
                input="".join(f"{command}\n" for command in commands),
                cwd=paths.pipe,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"the MPS control daemon did not answer in {seconds:g} s; see {paths.log}"
            ) from error
        except OSError as error:
            raise DeviceError(f"cannot run {programs.control}: {error.strerror}") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
            raise DeviceError(f"the MPS control daemon does not answer ({said}); see {paths.log}")
        return done.stdout.splitlines()

    def quit(self, paths: DomainPaths) -> None:
        """Ask the daemon to quit, which ends its servers too within seconds, whatever clients do.

        Raises:
            DeviceError: it does not answer.
        """
        self.ask(paths, [f"quit -t {QUIT_SECONDS}"], seconds=2 * QUIT_SECONDS)

    def _find(self) -> _Programs:
        control = find_program(self._root, MPS_CONTROL)
        if control is None:
            raise DeviceError(
                f"{MPS_CONTROL} not found under {self._root} (looked in {SEARCHED}); install the"
                " part of the NVIDIA driver that holds it (nvidia-compute-utils, nvidia-cuda-mps),"
                " or point --nvidia-driver-root at where it is"
            )
        server = find_program(self._root, MPS_SERVER) or control
        folders = dict.fromkeys((str(server.path.parent), str(control.path.parent)))
        return _Programs(control=control.path, search_path=os.pathsep.join(folders))

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the driver is somewhere else than where this process's loader looks."""
        return self._root != Path("/")

    def _environment(self, programs: _Programs, library_folder: Path) -> dict[str, str]:
        environment = {"PATH": programs.search_path, "LC_ALL": "C"}
        if self._is_elsewhere:
            environment["LD_LIBRARY_PATH"] = str(library_folder)
        return environment

    def link_libraries(self, paths: DomainPaths) -> None:
        """Make the folder in which the daemon's servers find the driver's libraries.

        The driver's own folder will not do: on a host it also has the host's C library, which is
        not the one of this container.

        Raises:
            OSError: the folder cannot be made.
        """
        if not self._is_elsewhere:
            return
        paths.libraries.mkdir(exist_ok=True)
        paths.libraries.chmod(0o755)
        wanted = dict(self._libraries())
        for name in os.listdir(paths.libraries):  # noqa: PTH208 (names are what is wanted)
            if name not in wanted or (paths.libraries / name).readlink() != wanted[name]:
                (paths.libraries / name).unlink()
        for name, target in wanted.items():
            if not (paths.libraries / name).is_symlink():
                (paths.libraries / name).symlink_to(target)

    def _libraries(self) -> list[tuple[str, Path]]:
        found = []
        for folder in reversed(
            libraries.LIBRARY_FOLDERS
        ):  # of two with one name the first one counts
            for pattern in _LIBRARIES:
                for path in rooted.matches(self._root, folder, pattern):
                    target = rooted.resolve(self._root, path)
                    if target is not None:
                        found.append((path.rpartition("/")[2], rooted.outside(self._root, target)))
        return found


def clean_pipe(paths: DomainPaths) -> None:
    """Remove what a dead daemon left in the pipe directory.

    Raises:
        OSError: it cannot be removed.
    """
    for name in _LEFT_IN_PIPE:
        (paths.pipe / name).unlink(missing_ok=True)


def _launch(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run the program until it runs in the background; return what it printed."""
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
        raise DeviceError(f"cannot run {command[0]}: {error.strerror}") from error
    return " ".join(done.stdout.split()) or f"status {done.returncode}"


def _not_started(domain: Domain, said: str, paths: DomainPaths) -> str:
    if domain.multi_user:
        return (
            f"{MPS_CONTROL} does not start for several users (it says: {said}); this driver may be"
            " too old for multiUser: update it, or run the claim's pods as one user without"
            " multiUser"
        )
    return f"{MPS_CONTROL} does not start (it says: {said}); see {paths.log / 'control.log'}"
