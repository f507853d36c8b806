"""`dra-driver mps-supervisor` as a process: signals, exit status, and daemons that outlive it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.request import urlopen

import pytest

from dra_driver.host.ofd_lock import NamedLock
from dra_driver.mps import processes
from dra_driver.mps.files import MpsFiles
from dra_driver.mps.requests import DomainRequests
from exported import of_supervisor, same_as
from worlds.configs import PATIENCE
from worlds.mps import MpsDomains


@pytest.fixture
def command(mps: MpsDomains) -> Iterator["subprocess.Popen[bytes]"]:
    """The command on the mps's node; its MPS directory becomes the mps's."""
    plugins = mps.root / "plugins"
    mps.files = MpsFiles(root=plugins / "gpu.nvidia.com/mps")
    mps.requests = DomainRequests(mps.files.root, time.monotonic, supervisor_grace=PATIENCE)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "dra_driver", "mps-supervisor"),
            f"--nvidia-driver-root={mps.machine.driver_root}",
            f"--kubelet-plugins-directory-path={plugins}",
            f"--proc-root={mps.machine.proc_root}",
            "--shm-size=16Mi",
            "--log-format=json",
            "--log-level=debug",
            "--http-endpoint=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_its_metrics_count_domains_and_dead_daemons(
    mps: MpsDomains, command: "subprocess.Popen[bytes]"
) -> None:
    domain = mps.domain("claim", 0)
    daemon = mps.ready(domain).daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    mps.until(domain, lambda status: status.restarts == 1 and status.state == "ready")
    assert command.stderr is not None
    port = next(event["port"] for event in map(json.loads, command.stderr) if "port" in event)
    ready = 'nvidia_dra_mps_domains{driver="gpu.nvidia.com",state="ready"} 1.0'
    end = time.monotonic() + PATIENCE
    lines: list[str] = []
    text = ""
    while ready not in lines and time.monotonic() < end:  # said to the driver a moment before
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        lines = text.splitlines()
    assert ready in lines
    assert 'nvidia_dra_mps_domains{driver="gpu.nvidia.com",state="failed"} 0.0' in lines
    assert 'nvidia_dra_mps_daemon_deaths_total{driver="gpu.nvidia.com"} 1.0' in lines
    same_as(of_supervisor(), text)


def test_the_secret_of_its_daemons_is_in_no_log_and_in_no_file_that_others_read(
    mps: MpsDomains, command: "subprocess.Popen[bytes]"
) -> None:
    domain = mps.domain("claim", 0)
    secrets: set[str] = set()
    said: list[bytes] = []
    daemon = mps.ready(domain).daemon
    for restarts in (1, 2):
        assert daemon is not None
        secrets.add(processes.environment_of(daemon.pid)[processes.TOKEN])
        os.kill(daemon.pid, signal.SIGKILL)
        again = mps.until(
            domain,
            lambda status, want=restarts: status.restarts == want and status.state == "ready",
        )
        daemon = again.daemon
        record = mps.files.paths(domain.id).record
        for path in mps.files.root.rglob("*"):
            said.append(str(path).encode())
            with suppress(FileNotFoundError):  # it is being written
                said += [path.read_bytes()] if path.is_file() and path != record else []
    assert len(secrets) == 2
    mps.gone(domain)
    command.send_signal(signal.SIGTERM)
    said.append(command.communicate(timeout=PATIENCE)[1])
    assert b"mps daemon died" in said[-1]
    for secret in secrets:
        assert not [text for text in said if secret.encode() in text]


def test_while_an_evicted_driver_waits_for_claims_it_ends_their_daemons(
    mps: MpsDomains, command: "subprocess.Popen[bytes]"
) -> None:
    domain = mps.domain("claim", 0)
    status = mps.ready(domain)
    assert status.daemon is not None
    driver = NamedLock(mps.files.eviction)
    assert driver.take("driver")
    command.send_signal(signal.SIGTERM)
    time.sleep(4)  # twice as long as it waits for a driver to say so
    assert processes.is_alive(status.daemon)
    mps.gone(domain)
    assert mps.left(domain) == []
    driver.release()
    _, log = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, log.decode()


def test_it_leaves_when_the_evicted_driver_has_gone_and_its_daemons_stay(
    mps: MpsDomains, command: "subprocess.Popen[bytes]"
) -> None:
    domain = mps.domain("claim", 0)
    status = mps.ready(domain)
    driver = NamedLock(mps.files.eviction)
    assert driver.take("driver")
    command.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    driver.release()
    _, log = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, log.decode()
    assert status.daemon is not None
    assert processes.is_alive(status.daemon)
