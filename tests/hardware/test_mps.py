"""Undocumented parts of MPS: what clients may do, and programs outside it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from dra_driver.bench.mps_daemon import MpsDaemon, clean_environment, mps_daemon
from dra_driver.devices.model import MigMode
from dra_driver.errors import SetupError
from dra_driver.mps.supervisor.compute_modes import EXCLUSIVE_PROCESS
from hardware.client import Client, built, environment
from hardware.run import Run

_MPS_PERCENT = "Can a client lower its percentage where the daemon's default is 100?"
_MPS_EXCLUSIVE = "Does EXCLUSIVE_PROCESS keep out programs that do not find the MPS daemon?"

_PERCENT = "default_active_thread_percentage"


@contextmanager
def _daemon(run: Run) -> Iterator[tuple[MpsDaemon, dict[str, str]]]:
    """Run an MPS daemon for the card; yield it, and the environment of its clients."""
    if run.card.facts().mig_mode is MigMode.ENABLED:
        pytest.skip("the card is in MIG mode")
    own = environment(run)
    daemons = clean_environment(own)
    try:
        with mps_daemon(run.card.root, run.card.uuid, daemons) as daemon:
            yield daemon, own | {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)}
    except SetupError as error:
        pytest.skip(str(error))


@pytest.mark.changes("mps")
def test_mps_percentages(run: Run) -> None:
    """Check how many SMs a client has that lowers its percentage under a default of 100."""
    with _daemon(run) as (daemon, env):
        default = " ".join(daemon.ask([f"get_{_PERCENT}"])) or "nothing"
        run.note(f"get_{_PERCENT} says {default}")
        any_has = _sms(run, env)
        wisher_has = _sms(run, env | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"})
    run.note(f"multiprocessors of a client: {any_has}, and with a wish of 30 %: {wisher_has}")
    if wisher_has < any_has:
        run.answer(_MPS_PERCENT, "Yes: a client that asks for 30 % has fewer SMs.")
    else:
        run.answer(_MPS_PERCENT, "No: a client that asks for 30 % has as many SMs as any.")


def _sms(run: Run, env: Mapping[str, str]) -> int:
    with Client(built(run.folder), env) as client:
        client.said.check(is_simulated=run.card.is_simulated)
        return int(client.said.facts["multiprocessors"])


@pytest.mark.changes("mps", "compute-mode")
def test_mps_exclusive(run: Run) -> None:
    """Run a program beside MPS on a card in EXCLUSIVE_PROCESS that does not find the daemon."""
    outside = environment(run)
    with run.card.nvml() as library:
        library.set_compute_mode(run.card.uuid, EXCLUSIVE_PROCESS)
    with _daemon(run) as (_, env), Client(built(run.folder), env) as client:
        client.said.check(is_simulated=run.card.is_simulated)
        with Client(built(run.folder), outside) as other:
            run.note(f"the program outside of MPS: {other.said.failed or 'it ran'}")
            if other.said.failed:
                run.answer(_MPS_EXCLUSIVE, f"Yes: it fails ({other.said.failed}).")
            else:
                run.answer(_MPS_EXCLUSIVE, "No: it runs beside MPS.")
