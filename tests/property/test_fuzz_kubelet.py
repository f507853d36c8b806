"""Messages of a kubelet with odd texts: every claim is answered, and no call fails as a whole."""

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fuzz
import make
from dra_driver.claims.model.claim import ClaimRef, check_uid
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.errors import ConfigError
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.plugin import KubeletPlugin
from dra_driver.kubelet.protos import dra_v1_pb2 as v1
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import socket_paths
from dra_driver.ops.metrics import Metrics

pytestmark = pytest.mark.leaves("the module's server starts threads as they are needed")

METHODS = ("NodePrepareResources", "NodeUnprepareResources")
sendable = fuzz.texts.filter(lambda text: text.isprintable() or text.isascii()).map(
    lambda text: text.encode(errors="replace").decode()
)


class Claims:
    """Refuses UIDs as the real one does; then answers what the test says, or raises it."""

    def __init__(self) -> None:
        self.outcome: str | Exception = "gpu-0"

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[DeviceRecord, ...]:
        check_uid(ref.uid)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return (
            DeviceRecord(
                name=self.outcome,
                device=make.device(make.gpu(0)),
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(f"a/b={self.outcome}",),
            ),
        )

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        self.prepare(ref, deadline=deadline)


class Kubelet:
    """Calls a plugin's service with any bytes."""

    def __init__(self, claims: Claims, channel: grpc.Channel) -> None:
        self.claims = claims
        self._channel = channel

    def call(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}")
        answer: bytes = call(request, timeout=20)
        return answer


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    root = tmp_path_factory.mktemp("k")
    claims = Claims()
    paths = socket_paths(plugins=root / "p", registrar=root / "r")
    calls = ClaimCalls(claims, Metrics(driver="d", node="n", version="1"), clock=lambda: 0.0)
    plugin = KubeletPlugin(
        calls, paths, HealthStream(tuple), on_status=lambda _: None, check_seconds=60
    )
    plugin.start()
    try:
        with grpc.insecure_channel(f"unix://{paths.service}") as channel:
            yield Kubelet(claims, channel)
    finally:
        plugin.stop(5)


@given(
    method=st.sampled_from(METHODS),
    claims=st.lists(st.tuples(sendable, sendable, sendable), max_size=4),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(METHODS[0], [("", "", "")])
@example(METHODS[1], [("../../etc/passwd", "\0", "%s{}")])
def test_every_claim_of_any_name_has_an_answer(
    kubelet: Kubelet, method: str, claims: list[tuple[str, str, str]]
) -> None:
    kubelet.claims.outcome = "gpu-0"
    request = getattr(v1, f"{method}Request")()
    for uid, namespace, name in claims:
        request.claims.add(uid=uid, namespace=namespace, name=name)
    answer = getattr(v1, f"{method}Response")()
    answer.ParseFromString(kubelet.call(method, request.SerializeToString()))
    assert set(answer.claims) == {uid for uid, _, _ in claims}
    for uid, entry in answer.claims.items():
        found = fuzz.ours(lambda uid=uid: check_uid(uid))  # type: ignore[misc]
        assert bool(entry.error) == isinstance(found, ConfigError)


@given(text=fuzz.texts, kind=st.sampled_from([ConfigError, ValueError, KeyError]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("\udcff", ConfigError)
@example("\ud800" * 3, ValueError)
@example("", ConfigError)
def test_an_error_of_any_text_is_that_claims_answer(
    kubelet: Kubelet, text: str, kind: type[Exception]
) -> None:
    kubelet.claims.outcome = kind(text)
    request = v1.NodePrepareResourcesRequest()
    request.claims.add(uid="one", namespace="ns", name="claim")
    answer = v1.NodePrepareResourcesResponse()
    answer.ParseFromString(kubelet.call("NodePrepareResources", request.SerializeToString()))
    assert answer.claims["one"].error
