"""The driver's health over its socket and its port, with the kubelet's sockets under it."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from testbed.kubelet import KubeletClient

import dra_driver.kubelet.probe
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.errors import SetupError
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.liveness import Health, HealthPort, HealthSocket
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import SocketPaths, socket_paths
from dra_driver.ops.metrics import Metrics

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNREGISTERED = "the kubelet has not registered the driver: see the driver's log\n"


class NoClaims:
    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[DeviceRecord, ...]:
        raise AssertionError("a probe prepares nothing")

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        raise AssertionError("a probe unprepares nothing")


@dataclass
class Unseen:
    """Stands for sockets that nobody has opened, or that cannot be."""

    is_open: bool = True
    is_registered: bool = True


@pytest.fixture
def paths(tmp_path: Path) -> SocketPaths:
    return socket_paths(plugins=tmp_path / "p", registrar=tmp_path / "r")


@pytest.fixture
def plugin(paths: SocketPaths) -> Iterator[KubeletPlugin]:
    calls = ClaimCalls(NoClaims(), Metrics(driver="d", node="n", version="1"), clock=lambda: 0.0)
    plugin = KubeletPlugin(
        calls, paths, HealthStream(tuple), on_status=lambda _: None, check_seconds=60
    )
    plugin.start()
    yield plugin
    plugin.stop(0)


@contextmanager
def local(health: Health, path: Path) -> Iterator[Path]:
    way = HealthSocket(health, path, register_seconds=0.5)
    way.start()
    try:
        yield path
    finally:
        way.stop()


@contextmanager
def opened(health: Health) -> Iterator[HealthPort]:
    way = HealthPort(health, address="127.0.0.1", port=0)
    way.start()
    try:
        yield way
    finally:
        way.stop()


def probe(path: Path, service: str = "liveness") -> tuple[int, str]:
    """Ask as the kubelet does, by the program that the image has; return status and words."""
    program = [sys.executable, "-I", "-S", dra_driver.kubelet.probe.__file__, str(path), service]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stdout


def check(way: HealthPort, service: str = "liveness") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{way.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def test_a_driver_whose_sockets_answer_is_alive(
    plugin: KubeletPlugin, paths: SocketPaths, tmp_path: Path
) -> None:
    health = Health(paths, plugin)
    with local(health, tmp_path / "s") as path, opened(health) as port:
        assert probe(path) == (0, "")
        assert [check(port, service) for service in ("", "liveness")] == [SERVING, SERVING]


def test_an_unknown_service_is_not_found(paths: SocketPaths, tmp_path: Path) -> None:
    health = Health(paths, Unseen(is_open=False))
    with local(health, tmp_path / "s") as path, opened(health) as port:
        assert probe(path, "startup") == (1, "unknown service 'startup'\n")
        with pytest.raises(grpc.RpcError) as unknown:
            check(port, "startup")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_driver_without_sockets_is_not_alive(paths: SocketPaths, tmp_path: Path) -> None:
    health = Health(paths, Unseen())
    with local(health, tmp_path / "s") as path, opened(health) as port:
        status, words = probe(path)
        assert (status, "UNAVAILABLE" in words) == (1, True)
        assert check(port) == NOT_SERVING


def test_a_driver_on_a_full_disk_is_alive_without_sockets(
    paths: SocketPaths, tmp_path: Path
) -> None:
    with local(Health(paths, Unseen(is_open=False)), tmp_path / "s") as path:
        assert probe(path) == (0, "")


def test_a_lost_service_socket_is_noticed(
    plugin: KubeletPlugin, paths: SocketPaths, tmp_path: Path
) -> None:
    with local(Health(paths, plugin, fresh_seconds=0), tmp_path / "s") as path:
        assert probe(path)[0] == 0
        paths.service.unlink()
        assert probe(path)[0] == 1


def test_a_driver_is_ready_once_the_kubelet_has_registered_it(
    plugin: KubeletPlugin, paths: SocketPaths, tmp_path: Path
) -> None:
    health = Health(paths, plugin)
    with local(health, tmp_path / "s") as path, opened(health) as port:
        assert (probe(path, "readiness"), probe(path)) == ((1, UNREGISTERED), (0, ""))
        assert (check(port, "readiness"), check(port)) == (NOT_SERVING, SERVING)
        with KubeletClient(paths.registration.parent) as kubelet:
            kubelet.register()
            assert (probe(path, "readiness")[0], check(port, "readiness")) == (0, SERVING)
            with pytest.raises(grpc.RpcError):
                kubelet.register(accept=False, reason="no")
        assert (probe(path, "readiness")[0], probe(path)[0]) == (1, 0)


def test_a_driver_that_is_registered_in_a_moment_is_ready_at_once(
    paths: SocketPaths, tmp_path: Path
) -> None:
    plugin = Unseen(is_open=False, is_registered=False)
    with local(Health(paths, plugin), tmp_path / "s") as path:
        threading.Timer(0.2, setattr, (plugin, "is_registered", True)).start()
        assert probe(path, "readiness") == (0, "")


def test_a_process_that_is_gone_is_not_alive_and_the_next_takes_its_place(
    paths: SocketPaths, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    missing = (1, f"the driver does not answer at {path}: No such file or directory\n")
    assert probe(path) == missing
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert probe(path) == (1, f"the driver does not answer at {path}: Connection refused\n")
    with local(Health(paths, Unseen(is_open=False)), path):
        assert probe(path) == (0, "")
        assert path.stat().st_mode & 0o777 == 0o600
    assert probe(path) == missing


def test_a_probe_without_an_answer_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as other:
        listener.bind(str(path))
        listener.listen()
        asked = other.submit(probe, path)
        connection, _ = listener.accept()
        assert connection.recv(64) == b"liveness"
        connection.close()  # as when the process is killed
        silent = f"the driver does not answer at {path}: it closed the connection\n"
        assert asked.result() == (1, silent)
    long = tmp_path / ("s" * 108)
    assert probe(long) == (1, f"the driver does not answer at {long}: AF_UNIX path too long\n")


def test_a_silent_probe_blocks_no_other(paths: SocketPaths, tmp_path: Path) -> None:
    with (
        local(Health(paths, Unseen(is_open=False)), tmp_path / "s") as path,
        subprocess.Popen(
            [sys.executable, "-c", _SILENT, str(path)], stdout=subprocess.PIPE
        ) as silent,
    ):
        assert silent.stdout is not None
        assert silent.stdout.read(1) == b"."
        assert probe(path) == (0, "")
        silent.kill()


_SILENT = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
print(".", flush=True)
time.sleep(60)
"""


def test_a_socket_that_cannot_be_made_is_named(paths: SocketPaths, tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none" / "s", "No such file or directory"),
        (tmp_path / ("x" * 200), "AF_UNIX path too long"),
    ):
        with pytest.raises(SetupError, match=f"health socket {path} cannot be made: {reason}"):
            HealthSocket(Health(paths, Unseen()), path).start()


def test_without_an_address_a_port_is_open_on_all(paths: SocketPaths) -> None:
    way = HealthPort(Health(paths, Unseen(is_open=False)), address="", port=0)
    way.start()
    try:
        assert check(way) == SERVING
    finally:
        way.stop()


@pytest.mark.leaves("gRPC frees a server that never started when it likes")
def test_a_port_in_use_is_named(paths: SocketPaths) -> None:
    health = Health(paths, Unseen())
    with opened(health) as port:
        second = HealthPort(health, address="127.0.0.1", port=port.port)
        with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1:{port.port}"):
            second.start()


def test_a_flood_of_checks_takes_bounded_memory_and_keeps_no_probe_out(
    plugin: KubeletPlugin, paths: SocketPaths, tmp_path: Path
) -> None:
    health = Health(paths, plugin)
    with local(health, tmp_path / "s") as path, opened(health) as port:
        assert check(port) == SERVING
        before = resident()
        with flood(port.port):
            found = []
            for _ in range(3):
                time.sleep(0.5)
                found.append(probe(path))
            grown = resident() - before
        assert found == [(0, "")] * 3
        assert grown < 30 * 2**20, f"{grown / 2**20} MiB"
        assert check(port) == SERVING


@contextmanager
def flood(port: int) -> Iterator[None]:
    """Have another process keep 4000 Checks and 200 idle connections open."""
    with subprocess.Popen(
        [sys.executable, "-c", _FLOOD, str(port)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.kill()


_FLOOD = """
import itertools, socket, sys, time
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
port = int(sys.argv[1])
idle = []
for _ in range(200):
    try:
        idle.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    except OSError:
        pass
options = [("grpc.use_local_subchannel_pool", 1)]
stubs = [
    health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{port}", options))
    for _ in range(8)
]
ask = health_pb2.HealthCheckRequest(service="liveness")
calls = []
end = time.monotonic() + 30
told = False
while time.monotonic() < end:
    calls = [one for one in calls if not one.done()]
    for stub, _ in zip(itertools.cycle(stubs), range(4000 - len(calls))):
        calls.append(stub.Check.future(ask, timeout=20))
    if not told:
        print(".", flush=True)
        told = True
    time.sleep(0.05)
"""


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
