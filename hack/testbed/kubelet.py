"""The kubelet's side of the DRA protocol, for what needs no whole kubelet.

Registers a driver as the plugin watcher does and makes the calls of the DRA manager, over the same
sockets and with the same messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from dra_driver.kubelet.protos import dra_v1_pb2 as dra
from dra_driver.kubelet.protos import dra_v1_pb2_grpc as dra_rpc
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as registration
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as registration_rpc
from testbed.commands import TestbedError, wait_until
from testbed.driver import DriverProcess

CALL_SECONDS = 45
"""The kubelet's own limit for a call (pkg/kubelet/cm/dra/plugin)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """A claim as the kubelet names it to a driver."""

    uid: str
    namespace: str
    name: str

    def message(self) -> dra.Claim:
        """The claim as a message."""
        return dra.Claim(uid=self.uid, namespace=self.namespace, name=self.name)


class KubeletClient:
    """Calls to one registered driver."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{endpoint}")
        self._plugin = dra_rpc.DRAPluginStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def prepare(self, *claims: ClaimName) -> dra.NodePrepareResourcesResponse:
        """Ask for claims to be prepared.

        Raises:
            TestbedError: One of them was not, with the driver's words.
        """
        request = dra.NodePrepareResourcesRequest(claims=[claim.message() for claim in claims])
        answer: dra.NodePrepareResourcesResponse
        answer = self._plugin.NodePrepareResources(request, timeout=CALL_SECONDS)
        _check(claims, {uid: one.error for uid, one in answer.claims.items()})
        return answer

    def unprepare(self, *claims: ClaimName) -> None:
        """Ask for claims to be unprepared.

        Raises:
            TestbedError: One of them was not, with the driver's words.
        """
        request = dra.NodeUnprepareResourcesRequest(claims=[claim.message() for claim in claims])
        answer = self._plugin.NodeUnprepareResources(request, timeout=CALL_SECONDS)
        _check(claims, {uid: one.error for uid, one in answer.claims.items()})


def _check(claims: Sequence[ClaimName], errors: dict[str, str]) -> None:
    for claim in claims:
        if claim.uid not in errors:
            raise TestbedError(f"no answer for the claim {claim.namespace}/{claim.name}")
        if errors[claim.uid]:
            raise TestbedError(f"claim {claim.namespace}/{claim.name}: {errors[claim.uid]}")


def register(driver: DriverProcess, *, timeout: float = 30) -> registration.PluginInfo:
    """Find a driver's registration socket, take its information, and tell it that all is well.

    Returns:
        What the driver said of itself; `endpoint` is the path for `KubeletClient`.

    Raises:
        TestbedError: The driver has ended, or no socket came in time.
    """
    registry = driver.place.registry

    def look() -> Path | None:
        driver.check_running()
        return next((path for path in registry.glob("[!.]*.sock") if path.is_socket()), None)

    socket = wait_until(look, f"a socket in {registry}", timeout=timeout, interval=0.005)
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = registration_rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        info: registration.PluginInfo = stub.GetInfo(
            registration.InfoRequest(), timeout=1, wait_for_ready=True
        )
        stub.NotifyRegistrationStatus(
            registration.RegistrationStatus(plugin_registered=True), timeout=5
        )
    return info
