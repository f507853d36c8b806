"""What is not documented of MPS: what limits are called, what clients may do, what is shared."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dra_driver.bench.mps_daemon import MpsDaemon, clean_environment, mps_daemon
from dra_driver.devices.driver_root.programs import MPS_SERVER
from dra_driver.devices.model import MigMode
from dra_driver.errors import SetupError
from dra_driver.mps.supervisor.compute_modes import EXCLUSIVE_PROCESS
from hardware.claims import MEMORY_LIMIT_MIB
from hardware.client import Client, Said, built, environment
from hardware.processes import of_run
from hardware.run import Run, step
from hardware.steps import LeftOut, Unexpected

_LIMIT = "default_device_pinned_mem_limit"
_PERCENT = "default_active_thread_percentage"


@contextmanager
def _daemon(run: Run) -> Iterator[tuple[MpsDaemon, dict[str, str]]]:
    """Have an MPS daemon for the card; yield it, and the environment of its clients."""
    if run.card.facts().mig_mode is MigMode.ENABLED:
        raise LeftOut("the card is in MIG mode")
    own = environment(run)
    daemons = clean_environment(own)
    try:
        with mps_daemon(run.card.root, run.card.uuid, daemons) as daemon:
            run.reached("an MPS daemon runs")
            yield daemon, own | {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)}
    except SetupError as error:
        raise LeftOut(str(error)) from error


def _says(daemon: MpsDaemon, command: str) -> str:
    return " ".join(daemon.ask([command])) or "nothing"


@step(
    "mps-limit-names",
    "sets memory limits by ordinal and by UUID",
    changes="mps",
    asks="mps-limit-name",
)
def limit_names(run: Run) -> None:
    """Set a limit of memory by ordinal and by UUID, and read each by both."""
    taken: list[str] = []
    with _daemon(run) as (daemon, _):
        # Other values, or what was set by one name would pass for what was set by the other.
        for name, key, limit in (("ordinal", "0", "3G"), ("UUID", run.card.uuid, "5G")):
            set_to = _says(daemon, f"set_{_LIMIT} {key} {limit}")
            found = _says(daemon, f"get_{_LIMIT} {key}")
            run.note(f"by {name}: set_{_LIMIT} says {set_to}, get_{_LIMIT} {found}")
            if found.startswith(limit):
                taken.append(name)
    words = {0: "neither", 1: f"the {taken[0]} alone" if taken else "", 2: "both"}[len(taken)]
    run.answer("mps-limit-name", f"The daemon takes and reads back {words}.")


@step(
    "mps-shared-memory",
    "looks for files in /dev/shm that processes of MPS map",
    changes="mps",
    asks="mps-shm",
)
def shared_memory(run: Run) -> None:
    """Look what daemon, server and a client map from /dev/shm."""
    run.stop_stage()  # the driver maps what it likes
    with _daemon(run) as (_, env), Client(built(run.folder), env) as client:
        client.said.check(is_simulated=run.card.is_simulated)
        pids = of_run(run.name, run.folder)
        names = sorted(_program(pid) for pid in pids)
        run.note(f"looked at {', '.join(names)}")
        if MPS_SERVER not in names:
            raise Unexpected("a client has a context, and no MPS server runs")
        found = sorted({Path(name).name.split(".")[0] for pid in pids for name in _mapped(pid)})
    if not found:
        run.answer("mps-shm", "No: daemon, server and client map no file of /dev/shm.")
    else:
        run.answer("mps-shm", f"Yes: they map {', '.join(found)}… of /dev/shm.")


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return Path(os.fsdecode(words[0])).name


def _mapped(pid: int) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}  # noqa: S108


@step(
    "mps-percentages", "has an MPS client lower its percentage", changes="mps", asks="mps-percent"
)
def percentages(run: Run) -> None:
    """See how many SMs a client has that lowers its percentage under a default of 100."""
    with _daemon(run) as (daemon, env):
        default = _says(daemon, f"get_{_PERCENT}")
        run.note(f"get_{_PERCENT} says {default}")
        any_has = _sms(run, env)
        wisher_has = _sms(run, env | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"})
    run.note(f"multiprocessors of a client: {any_has}, and with a wish of 30 %: {wisher_has}")
    if wisher_has < any_has:
        run.answer("mps-percent", "Yes: a client that asks for 30 % has fewer SMs.")
    else:
        run.answer("mps-percent", "No: a client that asks for 30 % has as many SMs as any.")


def _sms(run: Run, env: Mapping[str, str]) -> int:
    return int(_served(run, env).facts["multiprocessors"])


def _served(run: Run, env: Mapping[str, str], mib: int = 1) -> Said:
    with Client(built(run.folder), env, mib) as client:
        if not client.said.is_refused:
            client.said.check(is_simulated=run.card.is_simulated)
        return client.said


@step("mps-limits", "has an MPS client ask for more than its memory beside another", changes="mps")
def limits(run: Run) -> None:
    """Have one client ask for more than its limit while its neighbour works."""
    with _daemon(run) as (daemon, env):
        daemon.ask([f"set_{_LIMIT} 0 {MEMORY_LIMIT_MIB}M"])
        with Client(built(run.folder), env) as neighbour:
            neighbour.said.check(is_simulated=run.card.is_simulated)
            with run.timed("the client that asks for too much"):
                greedy = _served(run, env, 2 * MEMORY_LIMIT_MIB)
            if not greedy.is_refused:
                raise Unexpected(f"a client got {2 * MEMORY_LIMIT_MIB} MiB of {MEMORY_LIMIT_MIB}")
            if not neighbour.goes_on():
                raise Unexpected("the neighbour of a client that asked for too much has failed")
    run.note("the client that asked for twice its limit was refused, and its neighbour went on")


@step(
    "mps-exclusive",
    "runs a program beside MPS in EXCLUSIVE_PROCESS",
    changes="mps compute-mode",
    asks="mps-exclusive",
)
def exclusive(run: Run) -> None:
    """Have a program run beside MPS on a card in EXCLUSIVE_PROCESS, without finding the daemon."""
    outside = environment(run)
    with run.card.nvml() as library:
        library.set_compute_mode(run.card.uuid, EXCLUSIVE_PROCESS)
    run.reached("EXCLUSIVE_PROCESS set")
    with _daemon(run) as (_, env), Client(built(run.folder), env) as client:
        client.said.check(is_simulated=run.card.is_simulated)
        with Client(built(run.folder), outside) as other:
            run.note(f"the program outside of MPS: {other.said.failed or 'it ran'}")
            if other.said.failed:
                run.answer("mps-exclusive", f"Yes: it fails ({other.said.failed}).")
            else:
                run.answer("mps-exclusive", "No: it runs beside MPS.")
