"""Undocumented parts of MPS of protocol 3 (R620): namespaces that control groups choose.

A daemon of the run serves the card, by a folder that no other program knows. A client in its
namespace `small` has a quarter of the SMs, which shows that it is in it. The names of the commands
are those of R615; if R620 has others, its help is kept as evidence.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.bench.mps_daemon import control_program
from dra_driver.devices.model import MigMode
from dra_driver.errors import SetupError
from hardware.claims import own_group
from hardware.client import Client, built, environment
from hardware.run import Run

_MPS3_GROUP = "Does MPS (R620) choose a namespace by a client's control group, as the host has it?"
_MPS3_DEEPER = "Does a group count that is deeper than `cgroup_depth` says?"
_MPS3_LATER = "Can a namespace for a control group be made while the daemon runs?"
_MPS3_PARTITION = "Does a namespace's SM partition hold against a client that names another?"
_MPS3_ROOT = "What can root in a container do at the daemon's socket?"

FIRST_DRIVER = 620
_SERVER, _SMALL = "probe", "small"
_NOBODY = 65534
_SECONDS = 20.0
_OWN_GROUPS = ("unshare", "--cgroup")
_CONTAINER = (*_OWN_GROUPS, "--mount", "--uts", "--ipc", "--net", "--pid", "--fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Daemon:
    """A running daemon; `environment` is that of its clients."""

    control: Path
    environment: Mapping[str, str]

    def ask(
        self, *words: str, user: int | None = None, before: Sequence[str] = ()
    ) -> tuple[bool, str]:
        """Give it a command; return whether it succeeded, and the output, in a line.

        The words `before` start the program.
        """
        done = subprocess.run(
            (*before, self.control, *words),
            env=dict(self.environment),
            user=user,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return done.returncode == 0, " ".join((done.stdout + done.stderr).split()).rstrip(".")[:500]


def _config(gpu: str, *, small: Sequence[str] = (), server: Sequence[str] = ()) -> str:
    """Return a config with one server, and with a namespace of these lines, if any."""
    namespace = [f"[servers.{_SERVER}.namespaces.{_SMALL}]", *small] if small else []
    lines = (
        'schema_version = "1.0"',
        f"[servers.{_SERVER}]",
        f'allowed_devices = "{gpu}"',
        f"uid = {os.geteuid()}",
        *namespace,
        *server,
    )
    return "\n".join((*lines, ""))


def _quarter(group: Path) -> tuple[str, ...]:
    """Return the lines of a namespace for a control group, with a quarter of the SMs."""
    return ('active_thread_percentage = "25"', f'cgroup = "{group}"', "cgroup_depth = 1")


@contextmanager
def _group(run: Run) -> Iterator[Path]:
    """Make a control group with one inside; skips if MPS has no namespaces for groups."""
    with run.card.nvml() as library:
        version = library.driver_version()
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < FIRST_DRIVER:
        pytest.skip(f"the GPU driver {version} is older than R{FIRST_DRIVER}")
    if run.card.facts().mig_mode is MigMode.ENABLED:
        pytest.skip("the card is in MIG mode")
    with own_group(run) as group:
        _inner(group).mkdir(exist_ok=True)
        yield group


def _inner(group: Path) -> Path:
    return group / "inner"


@contextmanager
def _daemon(run: Run, config: str, before: Sequence[str] = ()) -> Iterator[_Daemon]:
    """Run a daemon of protocol 3 with a config, started by the words `before`."""
    try:
        control = control_program(run.card.root)
    except SetupError as error:
        pytest.skip(str(error))
    folder = run.folder / "mps3"
    for name in ("pipe", "log"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(config)
    env = environment(run) | {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    words: tuple[str | Path, ...] = (*before, control, "-f", "-p", "3", "-a")
    with (folder / "said").open("w") as said:
        child = subprocess.Popen(
            (*words, folder / "config.toml"),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    daemon = _Daemon(control=control, environment=env)
    try:
        _wait_until_it_answers(run, daemon, child, folder / "said")
        yield daemon
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            daemon.ask("-q")
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait_until_it_answers(
    run: Run, daemon: _Daemon, child: "subprocess.Popen[bytes]", said: Path
) -> None:
    end, answer = time.monotonic() + _SECONDS, ""
    while child.poll() is None and time.monotonic() < end:
        is_there, answer = daemon.ask("server", "list")
        if is_there:
            run.note(f"servers: {answer}")
            return
        time.sleep(0.1)
    words = " ".join(said.read_text(errors="replace").split()[-60:])
    pytest.skip(f"no MPS daemon of protocol 3 with this config: {words or answer or 'no word'}")


def _sms(run: Run, daemon: _Daemon, group: Path | None = None, **more: str) -> int:
    """Return how many SMs a client has, in a control group or in that of this process."""
    with Client(built(run.folder), {**daemon.environment, **more}, group=group) as client:
        client.said.check(is_simulated=run.card.is_simulated)
        return int(client.said.facts["multiprocessors"])


@pytest.mark.changes("mps", "memory-limit")
def test_mps_groups(run: Run) -> None:
    """Check which clients are in a group's namespace, also for a daemon that sees other paths."""
    with _group(run) as group:
        config = _config(run.card.uuid, small=_quarter(group))
        with _daemon(run, config) as daemon:
            every, inside = _sms(run, daemon), _sms(run, daemon, group)
            deeper = _sms(run, daemon, _inner(group))
        run.note(f"SMs of a client: {every}; in the group: {inside}; in one below it: {deeper}")
        if inside >= every:
            run.answer(_MPS3_GROUP, "No: a client in the group has as many SMs as any.")
            return
        run.answer(
            _MPS3_DEEPER,
            "Yes: with cgroup_depth = 1 a client in a group below has the limits, too."
            if deeper < every
            else "No: with cgroup_depth = 1 a client in a group below has as many SMs as any.",
        )
        with _daemon(run, config, _OWN_GROUPS) as daemon:
            inside = _sms(run, daemon, group)
        run.note(f"and by a daemon with a control group namespace of its own: {inside}")
        run.answer(
            _MPS3_GROUP,
            "Yes, also by a daemon with a control group namespace of its own."
            if inside < every
            else "Yes, but not by a daemon with a control group namespace of its own.",
        )


@pytest.mark.changes("mps", "memory-limit")
def test_mps_namespace_later(run: Run) -> None:
    """Make a namespace for a control group under a running daemon, and delete it."""
    with _group(run) as group, _daemon(run, _config(run.card.uuid)) as daemon:
        every = _sms(run, daemon)
        run.note(f"namespace create --help: {daemon.ask('namespace', 'create', '--help')[1]}")
        facts = ("--active-thread-percentage=25", f"--cgroup={group}", "--cgroup-depth=1")
        words = ("namespace", "create", _SMALL, f"--server={_SERVER}", *facts)
        is_made, said = daemon.ask(*words)
        run.note(f"{' '.join(words)}: {said or 'no word'}")
        if not is_made:
            run.answer(_MPS3_LATER, f"No: {said or 'it is refused'}.")
            return
        inside = _sms(run, daemon, group)
        is_deleted, said = daemon.ask("namespace", "delete", _SMALL, f"--server={_SERVER}")
        run.note(f"SMs of a client: {every}; in the group: {inside}; namespace delete: {said}")
        if inside >= every:
            run.answer(_MPS3_LATER, "It is made, but a client in the group has all SMs.")
        else:
            end = "can be deleted" if is_deleted else f"cannot be deleted ({said})"
            run.answer(_MPS3_LATER, f"Yes, and it {end} when its clients are gone.")


@pytest.mark.changes("mps", "memory-limit")
def test_mps_partition(run: Run) -> None:
    """Check how many SMs a client has that names the wider partition of its server."""
    gpu = run.card.uuid
    with _group(run) as group:
        small = (
            f'cgroup = "{group}"',
            f"[[servers.{_SERVER}.namespaces.{_SMALL}.devices]]",
            f'uuid = "{gpu}"',
            'sm_partition = "narrow"',
        )
        server = [f"[[servers.{_SERVER}.devices]]", f'uuid = "{gpu}"']
        for name, chunks in (("narrow", 1), ("wide", 2)):
            server += [f"[[servers.{_SERVER}.devices.sm_partitions]]", f'name = "{name}"']
            server += [f"chunks = {chunks}"]
        with _daemon(run, _config(gpu, small=small, server=server)) as daemon:
            _, listed = daemon.ask("sm-partition", "list", "--format=csv,noheader")
            run.note(f"sm-partition list: {listed}")
            own = _sms(run, daemon, group)
            # The ids are as listed: numbers, or the names themselves.
            ids = {word for word in listed.replace(",", " ").split() if word.isalnum()}
            names = [f"{gpu}/{word}" for word in sorted(ids | {"wide"})]
            had = {name: _sms_or_why(run, daemon, group, name) for name in names}
    run.note(f"SMs of a client: {own}; by what it names: {had}")
    most = max((sms for sms in had.values() if isinstance(sms, int)), default=own)
    run.answer(
        _MPS3_PARTITION,
        f"No: a client that names another has {most} SMs and not {own}."
        if most > own
        else f"Yes: a client has {own} SMs at most, whatever it names.",
    )


def _sms_or_why(run: Run, daemon: _Daemon, group: Path, name: str) -> int | str:
    more = {**daemon.environment, "CUDA_MPS_SM_PARTITION": name}
    with Client(built(run.folder), more, group=group) as client:
        said = client.said
        return said.failed or int(said.facts["multiprocessors"])


@pytest.mark.changes("mps", "memory-limit")
def test_mps_root(run: Run) -> None:
    """Check whether root can raise a namespace's limit, with and without its own namespaces."""
    with (
        _group(run) as group,
        _daemon(run, _config(run.card.uuid, small=_quarter(group))) as daemon,
    ):
        limited = _sms(run, daemon, group)
        words = ("namespace", "set", _SMALL, f"--server={_SERVER}")
        raised = (*words, "--active-thread-percentage=100")
        others = "a user who is not root"
        try:
            is_done, why = daemon.ask(*raised, user=_NOBODY)
        except OSError as error:
            run.note(f"{others}: {error}")
            others += " could not try"  # the program is not for all users
        else:
            run.note(f"{others}, namespace set: {why or 'no word'}")
            others += " can, too" if is_done else " is refused"
        by_root, said = daemon.ask(*raised, before=_CONTAINER)
        run.note(f"root, namespace set: {said or 'no word'}")
        after = _sms(run, daemon, group)
    run.note(f"SMs of a client in the group: {limited}, and then {after}")
    run.answer(
        _MPS3_ROOT,
        f"It can raise its own limit; {others}."
        if by_root and after > limited
        else f"It cannot raise its own limit ({said or 'no word'}); {others}.",
    )
