"""A server that hangs and does not say so: a probe notices, as a client would.

NVIDIA's control daemon runs; its server, which needs a GPU, is played by a process and a script.
The probe is the real one, with the simulator's libcuda.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from dra_driver.mps import processes
from dra_driver.mps.daemon import probe_client
from dra_driver.mps.daemon.health import WorkerTiming
from dra_driver.mps.domain import Domain, State
from dra_driver.mps.supervisor.record import read_record
from dra_driver.mps.supervisor.supervisor import Supervisor
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains
from worlds.process import eventually

Run = Callable[[AbstractContextManager[Supervisor]], Supervisor]

NEVER = 3600.0
LONG_MS = 3_600_000
USER = 1234
SERVER = """
import os, sys, time
user = int(sys.argv[1])
with open("/proc/self/comm", "w") as name:
    name.write("nvidia-cuda-mps-server")
os.setresgid(user, user, user)
os.setresuid(user, user, user)
time.sleep(600)
"""
QUICK = WorkerTiming(
    first_retry=0.02, longest_retry=0.1, check_interval=0.1, settled=0.0, unhealthy_interval=0.05,
    replace_after=NEVER, probe_interval=0.2, probe_timeout=0.3,
)  # fmt: skip
PATIENT = replace(QUICK, probe_timeout=NEVER)
ANSWERED = "mps server answered a probe"
NOT_PROBED = "mps server not probed"
IN_DOUBT = "mps server left a probe without an answer"
QUEUED = "mps probe may have waited for other users"


class Played:
    """The server of a domain, and its clients, as far as the daemon and the kernel tell of them."""

    def __init__(self, mps: MpsDomains) -> None:
        self.mps = mps
        self.servers, self.clients = mps.root / "servers", mps.root / "clients"
        self.children: list[subprocess.Popen[bytes]] = []
        self._list(self.servers, ())
        self._list(self.clients, ())
        # Which starts for all users, as a newer driver's would; $REAL, of R535, cannot.
        mps.wrap_control(
            f"""
[ "$#" = 0 ] || exec $REAL -d
read -r command
case "$command" in
get_server_list) /bin/cat {self.servers}; echo 100.0 ;;
get_server_status*) echo ACTIVE ;;
get_client_list*) /bin/cat {self.clients} ;;
*) {{ printf '%s\\n' "$command"; while read -r line; do printf '%s\\n' "$line"; done; }} | $REAL ;;
esac
"""
        )

    def ready(self, domain: Domain) -> None:
        """Have the domain served, by a daemon that has a server with one client."""
        self.mps.ready(domain)
        record = read_record(self.mps.files.paths(domain.id).record, self.mps.machine.boot_id)
        assert record is not None
        assert record.daemon is not None
        environment = processes.environment_of(record.daemon.pid)
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(USER)], env=environment)
        eventually(lambda: _status(server.pid)["Uid"].startswith(f"{USER}\t"), "the server")
        client = subprocess.Popen(["/bin/sleep", "600"])
        self.children += [server, client]
        self._list(self.clients, [client.pid])
        self._list(self.servers, [server.pid])

    def no_server(self) -> None:
        self._list(self.servers, ())
        self._list(self.clients, ())

    @staticmethod
    def _list(path: Path, pids: Sequence[int]) -> None:
        new = path.with_suffix(".new")
        new.write_text("".join(f"{pid}\n" for pid in pids))
        new.replace(path)

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(PATIENCE)


@pytest.fixture
def played(mps: MpsDomains) -> Iterator[Played]:
    made = Played(mps)
    yield made
    made.end()


def probes() -> list[int]:
    """The PIDs of the probes that this process has started and that run."""
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, children.read_text().split())
    return [pid for pid in found if probe_client.__file__ in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def a_hung_probe() -> int:
    """Wait for a probe that has asked and has no answer, and return its PID."""

    def hangs() -> list[int]:
        return [pid for pid in probes() if _status(pid).get("NoNewPrivs") == "1"]

    return int(eventually(hangs, "a probe")[0])


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def said(logs: list[Any], event: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == event]


def test_a_server_that_hangs_is_noticed_told_and_replaced(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    def step(_domain: str, name: str) -> None:
        if name == "given up":
            played.no_server()
            mps.machine.clear_faults()

    run(mps.supervised(step, replace(QUICK, replace_after=0.5)))
    domain = mps.domain("claim", 0, multi_user=True)
    before = mps.ready(domain)
    mps.machine.slow_call("cuInit", LONG_MS, uuid=mps.uuid(0))
    played.ready(domain)
    told = mps.until(domain, lambda now: now.state is State.FAULTED)
    assert f"the MPS server (PID {played.children[0].pid}) hangs: 2 probes in a row" in told.reason
    assert told.reason.endswith("restart the pods that use it")
    assert (told.daemon, told.restarts) == (before.daemon, 0)
    after = mps.until(domain, lambda now: bool(now.restarts) and now.state is State.READY)
    assert after.daemon not in (None, before.daemon)
    played.children[0].wait(PATIENCE)
    mps.gone(domain)
    assert mps.left(domain) == []
    eventually(lambda: not probes(), "no probe left")


def test_a_server_that_answers_again_is_ready_again_with_its_daemon(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    run(mps.supervised(timing=QUICK))
    domain = mps.domain("claim", 0, multi_user=True)
    played.ready(domain)
    before = mps.ready(domain)
    mps.machine.slow_call("cuCtxCreate_v2", LONG_MS, uuid=mps.uuid(0))
    mps.until(domain, lambda now: now.state is State.FAULTED)
    mps.machine.clear_faults()
    after = mps.until(domain, lambda now: now.state is State.READY)
    assert (after.daemon, after.restarts) == (before.daemon, 0)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("cuCtxCreate_v2", 2),  # out of memory
        ("cuInit", 100),  # no device
        ("cuInit", 805),  # MPS connection failed
        ("cuInit", 807),  # MPS server not ready: it is in FAULT, or begins
        ("cuInit", 808),  # MPS client limit reached
        ("cuCtxCreate_v2", 700),  # illegal address
        ("cuCtxDestroy_v2", 999),
    ],
)
def test_an_error_is_an_answer(
    mps: MpsDomains, run: Run, played: Played, function: str, code: int
) -> None:
    mps.machine.fail_call(function, code)
    with structlog.testing.capture_logs() as logs:
        run(mps.supervised(timing=PATIENT))
        domain = mps.domain("claim", 0, multi_user=True)
        played.ready(domain)
        eventually(lambda: len(said(logs, ANSWERED)) > 1, "probes")
    assert {entry["said"] for entry in said(logs, ANSWERED)} == {f"{function} {code}"}
    assert said(logs, IN_DOUBT) == []
    status = mps.requests.status(domain.id)
    assert status is not None
    assert (status.state, status.restarts) == (State.READY, 0)


@pytest.mark.parametrize("content", [None, b"not a library", b"\x7fELF\x01\x01\x01"])
def test_without_a_libcuda_that_fits_nothing_is_said_of_the_server(
    mps: MpsDomains, run: Run, played: Played, content: bytes | None
) -> None:
    library = (mps.machine.library_folder / "libcuda.so.1").resolve()
    with structlog.testing.capture_logs() as logs:
        run(mps.supervised(timing=PATIENT))
        domain = mps.domain("claim", 0, multi_user=True)
        mps.ready(domain)
        library.unlink()
        if content is not None:
            library.write_bytes(content)
        played.ready(domain)
        event = NOT_PROBED if content is None else ANSWERED
        eventually(lambda: len(said(logs, event)) > 1, "probes")
    assert said(logs, IN_DOUBT) == []
    status = mps.requests.status(domain.id)
    assert status is not None
    assert (status.state, status.restarts) == (State.READY, 0)


def test_the_probe_has_no_rights_and_nothing_of_the_supervisors_environment(
    mps: MpsDomains, run: Run, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere/else")
    mps.machine.slow_call("cuInit", LONG_MS)
    run(mps.supervised(timing=PATIENT))
    domain = mps.domain("claim", 0, multi_user=True)
    played.ready(domain)
    probe = a_hung_probe()
    facts = _status(probe)
    assert set(facts["Uid"].split()) == set(facts["Gid"].split()) == {str(USER)}
    assert (facts["CapEff"], facts["CapPrm"], facts["Groups"]) == ("0" * 16, "0" * 16, "")
    assert os.getsid(probe) == os.getpgid(probe) == probe
    assert processes.environment_of(probe) == {
        "LC_ALL": "C",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_VISIBLE_DEVICES": mps.uuid(0),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_CACHE_DISABLE": "1",
    }
    # It sees the daemon's own folder, and the /dev/shm of the domain's clients.
    paths = mps.files.paths(domain.id)
    inside = Path(f"/proc/{probe}/root")
    assert (inside / "tmp/nvidia-mps/control_privileged").is_socket()
    assert os.path.samestat((inside / "dev/shm").stat(), paths.shm.stat())


def test_a_probe_that_hangs_delays_neither_a_change_nor_the_end_of_its_domain(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    mps.machine.slow_call("cuInit", LONG_MS)
    run(mps.supervised(timing=PATIENT))
    domain = mps.domain("claim", 0, multi_user=True)
    played.ready(domain)
    a_hung_probe()
    changed = replace(domain, active_thread_percentage=40)
    assert mps.ready(changed).active_thread_percentage == 40.0
    a_hung_probe()
    mps.gone(changed)
    assert mps.left(changed) == []
    eventually(lambda: not probes(), "no probe left")


def test_a_supervisor_that_stops_leaves_no_probe(mps: MpsDomains, played: Played) -> None:
    mps.machine.slow_call("cuInit", LONG_MS)
    with mps.supervised(timing=PATIENT):
        played.ready(mps.domain("claim", 0, multi_user=True))
        a_hung_probe()
    assert probes() == []


def test_there_is_never_more_than_one_probe_of_a_domain(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    mps.machine.slow_call("cuInit", LONG_MS)
    run(mps.supervised(timing=replace(PATIENT, probe_interval=0.01)))
    played.ready(mps.domain("claim", 0, multi_user=True))
    only = a_hung_probe()
    for _ in range(20):
        time.sleep(0.02)
        assert probes() == [only]


def test_a_probe_that_waits_for_clients_of_another_user_is_no_sign_of_a_hang(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    mps.machine.slow_call("cuInit", LONG_MS)
    with structlog.testing.capture_logs() as logs:
        run(mps.supervised(timing=QUICK))
        domain = mps.domain("claim", 0)  # for one user at a time
        played.ready(domain)
        eventually(lambda: len(said(logs, QUEUED)) > 1, "probes without a meaning")
    assert said(logs, IN_DOUBT) == []


def test_a_probe_that_was_let_to_the_server_is_a_sign_also_where_users_take_turns(
    mps: MpsDomains, run: Run, played: Played
) -> None:
    mps.machine.slow_call("cuInit", LONG_MS)
    run(mps.supervised(timing=replace(QUICK, probe_timeout=1.0)))
    domain = mps.domain("claim", 0)
    played.ready(domain)
    log = mps.files.paths(domain.id).log / "control.log"
    end = time.monotonic() + PATIENCE
    while (status := mps.requests.status(domain.id)) is None or status.state is State.READY:
        assert time.monotonic() < end
        with log.open("a") as file:  # as the daemon writes it, of every client that it lets in
            file.writelines(
                f"NEW CLIENT {probe} from user {USER}: Server already exists\n"
                for probe in probes()
            )
        time.sleep(0.02)
    assert status.state is State.FAULTED
