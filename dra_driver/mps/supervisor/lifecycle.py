"""Does everything that one domain needs, in order, and undoes all of it.

Every step can be repeated and checks first what exists. It is recorded before it is done if nobody
could see it afterwards. So if a supervisor is killed at any point, the next one continues from
there, and a running daemon is never started twice.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.devices.device import DeviceKind, is_uuid_of
from dra_driver.errors import DeviceError, StateError, VersionError
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.host.files import file_error
from dra_driver.mps import pipes, processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import Control
from dra_driver.mps.daemon.health import ServerState, server_states
from dra_driver.mps.daemon.limits import (
    Limits,
    LimitsError,
    read_limits,
    restore_limits,
    set_limits,
)
from dra_driver.mps.domain import Daemon, Domain, DomainId, State
from dra_driver.mps.files import MpsFiles, names_in, read_file, write_file
from dra_driver.mps.supervisor.cgroup import DaemonGroup
from dra_driver.mps.supervisor.compute_modes import DEFAULT, ComputeModes

log = structlog.get_logger()

LOST_WORK = (
    "the MPS control daemon died and is being started again; CUDA programs that used it have lost "
    "their work and must be restarted"
)

_KILL_SECONDS = 5.0
_LATE_SECONDS = 0.5
_SHM_FILES = 65_536  # files, links and folders: about 1 KiB of the kernel's memory each
_MOST_MIG_DEVICES = 7  # of a GPU, each with a domain of its own
_LOG_BYTES = 8 * 1024**2
_LOG_FOLDER_BYTES = 64 * 1024**2  # clients can make a daemon fill its logs between two checks


class SupervisorContext(Struct, frozen=True, kw_only=True):
    """What all domains of a supervisor have in common.

    `supervisor` identifies this process in the lock and in statuses. `shm_bytes` is the size of
    each domain's /dev/shm; if it is None, all domains share half of the memory, by the node's GPUs,
    each of which has an entry in the folder `gpus`. `on_death` is called when a daemon has died by
    itself.
    """

    supervisor: str
    boot_id: str
    files: MpsFiles
    control: Control
    modes: ComputeModes
    group: DaemonGroup
    gpus: Path
    shm_bytes: int | None = None
    on_death: Callable[[], None] = lambda: None


class DomainRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was done for a domain, so that another supervisor can undo it.

    It is written before the machine is changed and kept until everything is undone. The daemon in
    it may be gone, and after a reboot (another boot id) nothing that it says about the machine is
    true.

    Attributes:
        boot_id: the id of the boot in which it was done.
        modes_found: GPU UUID → compute mode before it was changed, as NVML numbers it.
        token: a secret in the environment of this domain's processes, which nobody else can read.
            Written before a daemon is started; empty before the first.
        restarts: how many daemons died and were replaced.
        is_damaged: whether the file was damaged, so that nobody knows what was done.
    """

    boot_id: str = field(name="bootID")
    modes_found: Mapping[str, int] = field(default_factory=dict)
    daemon: Daemon | None = None
    token: str = ""
    restarts: int = 0
    is_damaged: bool = False


class ServingDaemon(Struct, frozen=True, kw_only=True):
    """A daemon that serves a domain, and the limits that it reported."""

    daemon: Daemon
    generation: str
    limits: Limits


class Lifecycle:
    """Serves and removes one domain, on one thread. Calls `report` with a state and its reason.

    A call that cannot finish raises DeviceError or StateError; the next call continues from there.
    """

    def __init__(
        self, domain: DomainId, context: SupervisorContext, report: Callable[[State, str], None]
    ) -> None:
        self._domain = domain
        self._context = context
        self._report = report
        self._paths = context.files.paths(domain)
        self._ask = partial(context.control.ask, self._paths)
        self._log = log.bind(domain=domain)

    @property
    def record(self) -> DomainRecord | None:
        """What was done for the domain, as it is on disk."""
        return read_record(self._paths.record, self._context.boot_id)

    def ensure_serving(self, wanted: Domain, serving: ServingDaemon | None) -> ServingDaemon:
        """Make sure that a daemon serves the domain; `serving` is what the last call returned."""
        record = self._begin(wanted)
        daemon = self._running_daemon(record)
        environment = processes.environment_of(daemon.pid) if daemon is not None else {}
        if daemon and environment.get(processes.GENERATION) != wanted.daemon_generation:
            self._log.info("mps daemon replaced", reason="it was started for other devices")
            self._stop_daemon(record)
            daemon, record = None, replace(record, daemon=None)
        if daemon is None:
            if record.daemon is not None:
                record = self._record_death(record)
            daemon = self._start(wanted, record)
        elif record.daemon != daemon:
            write_record(self._paths.record, replace(record, daemon=daemon))
        pipes.publish_pipes(self._paths)
        if serving and (serving.daemon, serving.generation) == (daemon, wanted.generation):
            self._trim_logs()
            if self._has_limits(wanted):
                return serving
        self._context.group.take(daemon)
        set_limits(self._ask, wanted)
        limits = read_limits(self._ask, wanted)
        return ServingDaemon(daemon=daemon, generation=wanted.generation, limits=limits)

    def _has_limits(self, wanted: Domain) -> bool:
        """Check that the daemon still has the limits, because its clients can change them."""
        try:
            read_limits(self._ask, wanted)
        except LimitsError as error:
            self._log.warning("mps limits restored", cause=str(error))
            return False
        return True

    def server_states(self) -> tuple[ServerState, ...]:
        """Return what the daemon says about its servers."""
        return server_states(self._ask)

    def keep_limits(self, wanted: Domain, states: Iterable[ServerState]) -> None:
        """Restore the limits of servers that clients have changed."""
        servers = [state.pid for state in states if state.is_active]
        for words in restore_limits(self._ask, wanted, servers):
            self._log.warning("mps limits restored", cause=words)

    def give_up(self, reason: str) -> None:
        """Kill a daemon that no longer serves anybody, and its servers; this counts as a death."""
        record = self.record
        if record is not None and record.daemon is not None:
            self._log.error("mps daemon given up", pid=record.daemon.pid, cause=reason)
            self._kill_all(record)
            self._record_death(record)

    def tear_down(self) -> None:
        """Undo everything that was done for the domain."""
        record = self.record
        if self._paths.folder.exists():
            self._report(State.STOPPING, "")
            if self._is_lost(record):
                record = self._guess(self._visible_devices())
            if record is not None:
                self._stop_daemon(record)
            for folder in self._paths.mounted:
                mounts.unmount_all(folder)
        with self._context.modes.using():
            for uuid in record.modes_found if record is not None else ():
                self._context.modes.release(self._domain, uuid)
        self._remove_folders()

    # To serve

    def _begin(self, wanted: Domain) -> DomainRecord:
        record = self.record
        if self._is_lost(record):
            return self._guess(wanted.whole_gpus)
        if record is None:
            self._report(State.STARTING, "")
            # The driver deletes its request, then looks for a status; this does it the other way
            # round. So one of both notices the other, and nothing is done for what counts as gone.
            if not self._context.files.desired(self._domain).exists():
                raise StateError("the driver does not request it any more")
            return DomainRecord(boot_id=self._context.boot_id)
        return record

    def _is_lost(self, record: DomainRecord | None) -> bool:
        """Tell whether a record was lost: it is damaged, or is missing although a daemon runs."""
        if record is None:
            return self._unrecorded_daemon() is not None
        return record.is_damaged

    def _guess(self, gpus: Sequence[str]) -> DomainRecord:
        """Replace a lost record; assume that the modes were DEFAULT, as they nearly always are."""
        modes = dict.fromkeys(gpus, DEFAULT)
        self._context.modes.remember(self._domain, modes)
        daemon = self._unrecorded_daemon()
        left = [*filter(None, [daemon]), *processes.marked(self._paths.folder)]
        # A daemon that was just killed has no environment any more, but its servers have one.
        tokens = (processes.environment_of(known.pid).get(processes.TOKEN, "") for known in left)
        record = DomainRecord(
            boot_id=self._context.boot_id,
            modes_found=modes,
            daemon=daemon,
            token=next(filter(None, tokens), ""),
        )
        write_record(self._paths.record, record)
        return record

    def _visible_devices(self) -> list[str]:
        """Return the whole GPUs that the running daemon was started for."""
        daemon = self._unrecorded_daemon()
        environment = processes.environment_of(daemon.pid) if daemon is not None else {}
        devices = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return [uuid for uuid in devices if is_uuid_of(DeviceKind.GPU, uuid)]

    def _running_daemon(self, record: DomainRecord) -> Daemon | None:
        """Return the domain's daemon, if one runs, whichever supervisor started it.

        It is the one in the record, or it has the record's token and listens where tenants cannot.
        """
        if record.daemon is not None and processes.is_alive(record.daemon):
            # A killed process loses its memory, and so its environment, before its PID.
            has_memory = bool(processes.environment_of(record.daemon.pid))
            if has_memory or not processes.wait_for_end(record.daemon, _LATE_SECONDS):
                return record.daemon
        daemon = self._context.control.listening(self._paths)
        return daemon if daemon and processes.has_token(daemon, record.token) else None

    def _unrecorded_daemon(self) -> Daemon | None:
        """Return the daemon of a domain without a record: it listens where tenants cannot."""
        daemon = self._context.control.listening(self._paths)
        return daemon if daemon and processes.is_outside_containers(daemon) else None

    def _record_death(self, record: DomainRecord) -> DomainRecord:
        record = replace(record, daemon=None, restarts=record.restarts + 1)
        write_record(self._paths.record, record)
        self._log.error("mps daemon died", restarts=record.restarts)
        self._context.on_death()
        self._report(State.RESTARTING, LOST_WORK)
        return record

    def _start(self, wanted: Domain, record: DomainRecord) -> Daemon:
        # Servers that outlived their daemon would keep a new daemon's servers off the GPU.
        self._kill_all(record)
        self._make_folders()
        self._mount_folders(wanted)
        record = replace(record, token=secrets.token_hex(16))
        with self._context.modes.using():
            record = self._set_modes(wanted, record)
        daemon = self._context.control.start(wanted, self._paths, record.token)
        write_record(self._paths.record, replace(record, daemon=daemon))
        self._log.info("mps daemon started", pid=daemon.pid, devices=wanted.visible_devices)
        return daemon

    def _trim_logs(self) -> None:
        """Keep the logs short: the daemon appends, so they can be truncated while it runs."""
        with suppress(OSError):
            for path in self._paths.log.glob("*.log"):
                if path.stat().st_size > _LOG_BYTES:
                    with suppress(OSError):  # a copy may not fit, but the log is still cut
                        shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)

    def _make_folders(self) -> None:
        paths = self._paths
        try:
            for folder in (paths.folder, *paths.mounted):
                folder.mkdir(exist_ok=True)
                if not mounts.layers(folder):
                    folder.chmod(0o755)  # for clients of any user, whatever the umask is
        except OSError as error:
            raise file_error("make", paths.folder, error) from error

    def _mount_folders(self, wanted: Domain) -> None:
        """Mount a tmpfs on each folder that tenants can fill, to keep it off the node's disk."""
        paths = self._paths
        mounts.mount_tmpfs(paths.shm, size_bytes=self._shm_bytes(wanted), files=_SHM_FILES)
        mounts.mount_tmpfs(paths.log, size_bytes=_LOG_FOLDER_BYTES, mode=0o755, files=pipes.FILES)
        mounts.mount_tmpfs(paths.run, size_bytes=pipes.SIZE, mode=0o755, files=pipes.FILES)
        pipes.make_pipes(paths)

    def _shm_bytes(self, wanted: Domain) -> int:
        """Return the size of /dev/shm: as set, or the domain's part of half of the node's memory.

        Page-locked host memory of clients is in it, too. NVIDIA's DRA driver gives half of the
        memory to each daemon, so that tenants of two daemons can take all of it.
        """
        if self._context.shm_bytes is not None:
            return self._context.shm_bytes
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        devices = len(wanted.devices)
        per_gpu = half // max(len(names_in(self._context.gpus)), devices)
        return per_gpu * devices if wanted.whole_gpus else per_gpu // _MOST_MIG_DEVICES

    def _set_modes(self, wanted: Domain, record: DomainRecord) -> DomainRecord:
        """Set the compute mode of each whole GPU, after recording the mode that was found."""
        gpus = wanted.whole_gpus
        for uuid in set(record.modes_found) - set(gpus):
            self._context.modes.release(self._domain, uuid)
        modes = {uuid: self._context.modes.acquire(self._domain, uuid) for uuid in gpus}
        known = {uuid: mode for uuid, mode in modes.items() if mode is not None}
        # Modes that were recorded before stay recorded, even if modes are not changed any more.
        before = {uuid: mode for uuid, mode in record.modes_found.items() if uuid in gpus}
        record = replace(record, modes_found={**before, **known})
        write_record(self._paths.record, record)
        for uuid in known:
            self._context.modes.set_exclusive(uuid)
        return record

    # To tear down

    def _stop_daemon(self, record: DomainRecord) -> None:
        """End the daemon: ask it to quit, and kill it if it does not."""
        daemon = self._running_daemon(record)
        if daemon is not None:
            self._quit(daemon)
        self._kill_all(record)
        if record.daemon is not None:
            write_record(self._paths.record, replace(record, daemon=None))

    def _quit(self, daemon: Daemon) -> None:
        try:
            self._context.control.quit(self._paths, daemon)
        except DeviceError as error:
            # It may have quit although one of its servers did not end properly.
            if not processes.wait_for_end(daemon, _LATE_SECONDS):
                self._log.warning("mps daemon did not quit", cause=str(error))
        else:
            processes.wait_for_end(daemon, _KILL_SECONDS)

    def _kill_all(self, record: DomainRecord) -> None:
        """Kill every process of the domain that the record proves to be ours."""
        left = processes.owned(record.token)
        if record.daemon is not None and record.daemon not in left:
            left.append(record.daemon)
        if left and not processes.kill(left, _KILL_SECONDS):
            pids = ", ".join(str(daemon.pid) for daemon in left)
            raise DeviceError(
                f"MPS processes cannot be killed (PID {pids}): they hang in the GPU driver; see "
                "dmesg for NVRM and Xid lines, the GPU may need a reset"
            )

    def _remove_folders(self) -> None:
        folder = self._paths.folder
        for path in self._paths.mounted:
            if mounts.layers(path):
                raise DeviceError(f"{path} is still mounted, so {folder} is kept")
        try:
            with suppress(FileNotFoundError):
                for path in folder.iterdir():
                    # The record is removed last, because it says what still has to be undone.
                    if path != self._paths.record:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                shutil.rmtree(folder)
        except OSError as error:
            raise file_error("remove", folder, error) from error


def read_record(path: Path, boot_id: str) -> DomainRecord | None:
    """Return the record, as far as it is true in this boot; None if there is none."""
    data = read_file(path)
    if data is None:
        return None
    try:
        record = value_of(unseal(data), DomainRecord, "a record")
    except VersionError:
        return DomainRecord(boot_id=boot_id, is_damaged=True)
    except StateError as error:
        log.warning("mps record damaged", file=str(path), reason=str(error))
        return DomainRecord(boot_id=boot_id, is_damaged=True)
    if record.boot_id != boot_id:
        return replace(record, boot_id=boot_id, modes_found={}, daemon=None, token="")
    return record


def write_record(path: Path, record: DomainRecord) -> None:
    """Write the record; it survives a crash from now on."""
    write_file(path, seal(record), durable=True, mode=0o600)
