"""The liveness probe over real gRPC."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from testbed.kubelet import KubeletClient

from dra_driver.claims.model import ClaimRef, PreparedDevice
from dra_driver.errors import SetupError
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.liveness import Liveness
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import SocketPaths, socket_paths
from dra_driver.ops.metrics import Metrics

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class NoClaims:
    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[PreparedDevice, ...]:
        raise AssertionError("a probe prepares nothing")

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        raise AssertionError("a probe unprepares nothing")


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


@pytest.fixture
def liveness(paths: SocketPaths) -> Iterator[Liveness]:
    liveness = Liveness(paths, address="127.0.0.1", port=0)
    liveness.start()
    yield liveness
    liveness.stop()


def check(liveness: Liveness, service: str = "liveness") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{liveness.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


@pytest.mark.parametrize("service", ["", "liveness"])
def test_a_driver_whose_sockets_answer_is_serving(
    plugin: KubeletPlugin, liveness: Liveness, service: str
) -> None:
    assert check(liveness, service) == SERVING


def test_without_an_address_it_listens_on_all(plugin: KubeletPlugin, paths: SocketPaths) -> None:
    liveness = Liveness(paths, address="", port=0)
    liveness.start()
    try:
        assert check(liveness) == SERVING
    finally:
        liveness.stop()


def test_a_service_nobody_knows_is_not_found(plugin: KubeletPlugin, liveness: Liveness) -> None:
    with pytest.raises(grpc.RpcError) as unknown:
        check(liveness, "startup")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_driver_without_sockets_is_not_serving(liveness: Liveness) -> None:
    assert check(liveness) == NOT_SERVING


def test_a_lost_service_socket_is_noticed(
    plugin: KubeletPlugin, liveness: Liveness, paths: SocketPaths
) -> None:
    assert check(liveness) == SERVING
    paths.service.unlink()
    assert check(liveness) == NOT_SERVING


def test_a_driver_is_ready_once_the_kubelet_has_registered_it(
    plugin: KubeletPlugin, paths: SocketPaths
) -> None:
    liveness = Liveness(
        paths, address="127.0.0.1", port=0, is_registered=lambda: plugin.is_registered
    )
    liveness.start()
    try:
        assert check(liveness, "readiness") == NOT_SERVING
        assert check(liveness) == SERVING
        with KubeletClient(paths.registration.parent) as kubelet:
            kubelet.register()
            assert check(liveness, "readiness") == SERVING
            with pytest.raises(grpc.RpcError):
                kubelet.register(accept=False, reason="no")
        assert check(liveness, "readiness") == NOT_SERVING
        assert check(liveness) == SERVING
    finally:
        liveness.stop()


def test_a_port_in_use_is_named(liveness: Liveness, paths: SocketPaths) -> None:
    second = Liveness(paths, address="127.0.0.1", port=liveness.port)
    with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1:{liveness.port}"):
        second.start()
