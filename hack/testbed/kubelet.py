"""The kubelet's side of the plugin protocols: registers a driver and calls it as a kubelet does.

For tests, demos and measurements that do not need a whole kubelet. A kubelet (written in Go) dials
the registration socket by its raw path, so that the authority is the percent-encoded path, and the
service socket as `unix:` with authority `localhost`. It keeps one connection to each driver.
"""

import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from dra_driver.kubelet.protos import (
    dra_health_v1_pb2,
    dra_health_v1_pb2_grpc,
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
)
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as registration
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as registration_rpc
from testbed.commands import TestbedError, wait_until
from testbed.driver import DriverProcess

CALL_SECONDS = 45.0
"""The kubelet's own limit for a call (pkg/kubelet/cm/dra/plugin)."""
HEALTH: Mapping[str, tuple[Any, Any]] = {
    "v1": (dra_health_v1_pb2, dra_health_v1_pb2_grpc),
    "v1alpha1": (dra_health_v1alpha1_pb2, dra_health_v1alpha1_pb2_grpc),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """A claim as the kubelet names it to a driver."""

    namespace: str
    name: str
    uid: str


class KubeletClient:
    """A kubelet as a driver sees it. Use as a context manager; threads may share it."""

    def __init__(self, registry: Path, pattern: str = "[!.]*") -> None:
        self.registry = registry
        self._pattern = pattern
        self.info: Any = None
        self._channels: list[grpc.Channel] = []
        self._stub: Any = None
        self._dialling = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()

    def sockets(self) -> list[Path]:
        """The registration sockets that a kubelet would see."""
        return sorted(self.registry.glob(self._pattern))

    def register(
        self, *, accept: bool = True, reason: str = "", driver: DriverProcess | None = None
    ) -> Any:
        """Wait for the socket, get the driver's information within a second, report the outcome.

        Returns:
            What the driver reports about itself; calls go to its `endpoint` from now on.

        Raises TestbedError if no socket came in time, or the driver has ended before.
        """

        def look() -> bool:
            if driver is not None:
                driver.check_running()
            return any(path.is_socket() for path in self.sockets())

        wait_until(look, f"a socket in {self.registry}", timeout=30, interval=0.005)
        (socket,) = self.sockets()
        authority = urllib.parse.quote(str(socket), safe="")
        rpc: Any = registration_rpc
        stub = rpc.RegistrationStub(self._dial(socket, authority))
        # The kubelet allows one second, and tries again if that was too short.
        self.info = stub.GetInfo(
            registration.InfoRequest(), timeout=CALL_SECONDS, wait_for_ready=True
        )
        self._stub = None
        stub.NotifyRegistrationStatus(
            registration.RegistrationStatus(plugin_registered=accept, error=reason),
            timeout=CALL_SECONDS,
        )
        return self.info

    def prepare(self, *claims: ClaimName, **call: Any) -> Any:
        """Ask for claims to be prepared; returns the answers by UID, errors among them."""
        return self._ask("NodePrepareResources", claims, call)

    def unprepare(self, *claims: ClaimName, **call: Any) -> Any:
        """Ask for claims to be unprepared; returns the answers by UID, errors among them."""
        return self._ask("NodeUnprepareResources", claims, call)

    def watch_health(self, version: str = "v1") -> Any:
        """Let the driver report the health of claims' devices; return its messages."""
        messages, stubs = HEALTH[version]
        stub = stubs.DRAResourceHealthStub(self._dial(Path(self.info.endpoint), "localhost"))
        return stub.NodeWatchResources(messages.NodeWatchResourcesRequest(), wait_for_ready=True)

    def must_prepare(self, *claims: ClaimName) -> Any:
        """Ask for claims to be prepared; returns the answers by UID.

        Raises TestbedError if one of them was not, with the driver's words.
        """
        answers = self.prepare(*claims)
        _check(claims, answers)
        return answers

    def must_unprepare(self, *claims: ClaimName) -> None:
        """Ask for claims to be unprepared.

        Raises TestbedError if one of them was not, with the driver's words.
        """
        _check(claims, self.unprepare(*claims))

    def _ask(self, method: str, claims: Sequence[ClaimName], call: dict[str, Any]) -> Any:
        named = [dra_v1_pb2.Claim(**asdict(claim)) for claim in claims]
        request = getattr(dra_v1_pb2, f"{method}Request")(claims=named)
        ask = getattr(self._plugin(), method)
        return ask(request, **{"timeout": CALL_SECONDS, **call}).claims

    def _plugin(self) -> Any:
        with self._dialling:
            if self._stub is None:
                rpc: Any = dra_v1_pb2_grpc  # it has no types
                self._stub = rpc.DRAPluginStub(self._dial(Path(self.info.endpoint), "localhost"))
            return self._stub

    def _dial(self, path: Path, authority: str) -> grpc.Channel:
        channel = grpc.insecure_channel(
            f"unix:{path}",
            options=(
                ("grpc.default_authority", authority),
                # Tests that remove a socket need a kubelet that reconnects soon.
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
                # Clients of one process do not share connections.
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        self._channels.append(channel)
        return channel


def _check(claims: Sequence[ClaimName], answers: Mapping[str, Any]) -> None:
    for claim in claims:
        if claim.uid not in answers:
            raise TestbedError(f"no answer for the claim {claim.namespace}/{claim.name}")
        if answers[claim.uid].error:
            raise TestbedError(f"claim {claim.namespace}/{claim.name}: {answers[claim.uid].error}")
