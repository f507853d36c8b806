"""Names, addresses and records of clusters."""

import signal
import socket
from pathlib import Path

import pytest
from cluster.inotify import ensure_instances
from cluster.network import free_ports, free_subnet
from cluster.processes import Service, wait_until
from cluster.state import Cluster, Options, Ports

from cluster import network

PORTS = Ports(**{name: 20000 + n for n, name in enumerate(Ports.__dataclass_fields__)})


def cluster(name: str, state: Path) -> Cluster:
    options = Options(kubernetes="1.37.1")
    return Cluster(name=name, state=state, subnet=3, ports=PORTS, options=options)


def values(ports: Ports) -> list[int]:
    return [getattr(ports, name) for name in Ports.__dataclass_fields__]


def test_a_port_in_use_or_given_to_another_cluster_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        others = range(port + 1, port + 20)
        monkeypatch.setattr(network, "PORT_RANGE", range(port, port + 200))
        found = values(free_ports(others))
    assert port not in found
    assert not set(found) & set(others)


def test_a_subnet_of_another_cluster_is_not_chosen() -> None:
    first = free_subnet([])
    assert free_subnet([first]) != first


def test_a_machine_with_too_few_inotify_instances_gets_enough_and_no_other_is_changed(
    tmp_path: Path,
) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text("128\n")
    assert ensure_instances(limit) == 128
    assert limit.read_text() == "1024\n"
    limit.write_text("8192\n")
    assert ensure_instances(limit) is None
    assert limit.read_text() == "8192\n"
    assert ensure_instances(tmp_path / "not-there") is None


@pytest.mark.leaves("a component that ended is a zombie until the command that started it ends")
def test_the_record_of_an_ended_process_is_not_taken_for_a_running_one(tmp_path: Path) -> None:
    service = Service(name="sleeper", state=tmp_path)
    started = service.start(["/bin/sleep", "60"], {})
    assert service.process() == started
    # The same pid with another start time is another process.
    record = tmp_path / "pids" / "sleeper.json"
    record.write_text(record.read_text().replace(str(started.started), "1"))
    assert service.process() is None
    record.write_text(record.read_text().replace('"started": 1', f'"started": {started.started}'))
    assert service.stop(signal.SIGKILL, grace_s=10) == signal.SIGKILL
    assert service.process() is None
    assert service.stop(signal.SIGKILL, grace_s=10) is None


@pytest.mark.leaves("a component that ended is a zombie until the command that started it ends")
def test_a_process_that_ignores_the_polite_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    service = Service(name="stubborn", state=tmp_path)
    ready = tmp_path / "ready"
    script = f"trap '' TERM; : > '{ready}'; while :; do sleep 0.1; done"
    service.start(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"})
    assert wait_until(ready.exists, timeout_s=20)
    assert service.stop(signal.SIGTERM, grace_s=0.2) == signal.SIGKILL


def test_clusters_of_one_name_under_two_roots_share_no_name(tmp_path: Path) -> None:
    one, two = cluster("dra", tmp_path / "a"), cluster("dra", tmp_path / "b")
    assert one.bridge != two.bridge
    assert one.cgroup != two.cgroup
    assert one.network_name != two.network_name
    assert len(one.bridge) <= 15
