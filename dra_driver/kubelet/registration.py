"""The registration service: tells the kubelet which driver this is and where it serves.

In: GetInfo and NotifyRegistrationStatus on a socket in the kubelet's `plugins_registry` folder.
Out: answers from memory, since the kubelet waits one second for GetInfo and neither GPUs nor the
API server may come into it. The kubelet picks the first of `supported_versions` it knows, and
tries again from the start, with a back-off of up to two minutes, after any failure.
(k8s.io/kubernetes pkg/kubelet/pluginmanager/operationexecutor, pkg/kubelet/cm/dra/plugin.)
"""

from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kubelet.health_stream import HEALTH_SERVICES
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as messages
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as rpc

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH_SERVICES)
"""The newest first: the kubelet takes the first DRAPlugin it knows, and looks for the services of
health by itself. What it does not know it passes over. These are no gRPC service names."""

log = structlog.get_logger()


class RegistrationService(rpc.RegistrationServicer):
    """Answers the kubelet's plugin watcher for one service socket."""

    def __init__(self, service_socket: Path, on_status: Callable[[bool], None]) -> None:
        """Take the path of the DRA socket, and whom to tell whether the kubelet took us."""
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE,
            name=DRIVER_NAME,
            endpoint=str(service_socket),
            supported_versions=SUPPORTED_VERSIONS,
        )
        self._on_status = on_status

    def attach(self, server: grpc.Server) -> None:
        """Add this service to a server that has not started."""
        rpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def GetInfo(  # noqa: N802
        self, request: messages.InfoRequest, context: grpc.ServicerContext
    ) -> messages.PluginInfo:
        """Answer what this plugin is."""
        del request, context
        log.debug("registration requested", driver=DRIVER_NAME, endpoint=self._info.endpoint)
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: messages.RegistrationStatus, context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        """Take note of how the registration went; a refusal is answered with an error.

        Kubernetes' own plugin library answers so too. The socket stays, and the kubelet retries.
        """
        self._on_status(request.plugin_registered)
        if not request.plugin_registered:
            log.error(
                "registration refused by the kubelet", driver=DRIVER_NAME, reason=request.error
            )
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"registration refused: {request.error}"
            )
        log.info("driver registered with the kubelet", driver=DRIVER_NAME)
        return messages.RegistrationStatusResponse()
