"""The kubelet's side of the plugin protocols, for tests: dials and asks as a kubelet does.

A kubelet (written in Go) dials the registration socket by its raw path, so that the authority is
the percent-encoded path, and the service socket as `unix:` with authority `localhost`.
"""

import urllib.parse
from pathlib import Path
from typing import Any, Self

import grpc

from dra_driver.kubelet.protos import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2
from dra_driver.kubelet.protos import dra_v1beta1_pb2_grpc as dra_v1beta1_rpc
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as registration
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as registration_rpc

KUBELET_SECONDS = 45.0


class KubeletClient:
    """One kubelet, as far as one driver sees it. Use as a context manager."""

    def __init__(self, registrar: Path, pattern: str = "[!.]*") -> None:
        self.registrar = registrar
        self._pattern = pattern
        self.info: Any = None
        self._channels: list[grpc.Channel] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()

    def _dial(self, path: Path, authority: str) -> grpc.Channel:
        channel = grpc.insecure_channel(
            f"unix:{path}",
            options=(
                ("grpc.default_authority", authority),
                # Tests of lost sockets need a kubelet that comes back soon.
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
                # No sharing of connections between clients of one process.
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        self._channels.append(channel)
        return channel

    def sockets(self) -> list[Path]:
        """The registration sockets that a kubelet would see."""
        return sorted(self.registrar.glob(self._pattern))

    def registration(self) -> Any:
        (socket,) = self.sockets()
        authority = urllib.parse.quote(str(socket), safe="")
        return registration_rpc.RegistrationStub(self._dial(socket, authority))

    def register(self, *, accept: bool = True, reason: str = "") -> Any:
        """GetInfo within its one second, then tell the outcome. Returns the info."""
        stub = self.registration()
        self.info = stub.GetInfo(registration.InfoRequest(), timeout=1, wait_for_ready=True)
        stub.NotifyRegistrationStatus(
            registration.RegistrationStatus(plugin_registered=accept, error=reason), timeout=5
        )
        return self.info

    def plugin(self, version: str = "v1") -> Any:
        rpc = {"v1": dra_v1_pb2_grpc, "v1beta1": dra_v1beta1_rpc}[version]
        return rpc.DRAPluginStub(self._dial(Path(self.info.endpoint), "localhost"))

    def prepare(self, *claims: tuple[str, str, str], version: str = "v1", **call: Any) -> Any:
        """Prepare claims given as (namespace, name, uid); returns answers by UID."""
        request = _messages(version).NodePrepareResourcesRequest(claims=_claims(version, claims))
        call.setdefault("timeout", KUBELET_SECONDS)
        return self.plugin(version).NodePrepareResources(request, **call).claims

    def unprepare(self, *claims: tuple[str, str, str], version: str = "v1", **call: Any) -> Any:
        """Unprepare claims given as (namespace, name, uid); returns answers by UID."""
        request = _messages(version).NodeUnprepareResourcesRequest(claims=_claims(version, claims))
        call.setdefault("timeout", KUBELET_SECONDS)
        return self.plugin(version).NodeUnprepareResources(request, **call).claims


def _messages(version: str) -> Any:
    return {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}[version]


def _claims(version: str, claims: tuple[tuple[str, str, str], ...]) -> list[Any]:
    claim = _messages(version).Claim
    return [claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
