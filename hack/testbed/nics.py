"""Simulated network cards: published as by dranet, and prepared for pods.

In: a node whose GPUs are published. Out: a ResourceSlice of the driver dra.net with cards for RDMA
below PCIe roots of these GPUs, and a plugin on the kubelet's sockets that answers for their claims.
Names and attributes are dranet's (its pkg/apis/attributes.go, pkg/inventory); containers do not
really get a card.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from dra_driver.kubelet.protos import dra_v1_pb2 as dra
from dra_driver.kubelet.protos import dra_v1_pb2_grpc as dra_rpc
from dra_driver.kubelet.protos import pluginregistration_v1_pb2 as registration
from dra_driver.kubelet.protos import pluginregistration_v1_pb2_grpc as registration_rpc
from dra_driver.kubelet.sockets import SocketServer
from testbed.api import Object, thing
from testbed.commands import wait_until
from testbed.driver import DRIVER_NAME
from testbed.node import GpuNode

NIC_DRIVER = "dra.net"
_ROOT = "resource.kubernetes.io/pcieRoot"
_WORKERS = 4


class _Plugin(dra_rpc.DRAPluginServicer):
    """Reports every claim as prepared, because there is nothing to do."""

    def NodePrepareResources(  # noqa: N802
        self, request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodePrepareResourcesResponse:
        del context
        done = {claim.uid: dra.NodePrepareResourceResponse() for claim in request.claims}
        return dra.NodePrepareResourcesResponse(claims=done)

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodeUnprepareResourcesResponse:
        del context
        done = {claim.uid: dra.NodeUnprepareResourceResponse() for claim in request.claims}
        return dra.NodeUnprepareResourcesResponse(claims=done)

    def attach(self, server: grpc.Server) -> None:
        dra_rpc.add_DRAPluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]


class _Registration(registration_rpc.RegistrationServicer):
    """Tells the kubelet where the plugin is."""

    def __init__(self, service: Path) -> None:
        self._service = service
        self.is_registered = False

    def GetInfo(  # noqa: N802
        self, request: registration.InfoRequest, context: grpc.ServicerContext
    ) -> registration.PluginInfo:
        del request, context
        return registration.PluginInfo(
            type="DRAPlugin",
            name=NIC_DRIVER,
            endpoint=str(self._service),
            supported_versions=["v1.DRAPlugin"],
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        del context
        self.is_registered = request.plugin_registered
        return registration.RegistrationStatusResponse()

    def attach(self, server: grpc.Server) -> None:
        registration_rpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]


@contextmanager
def made_up_nics(node: GpuNode, count: int) -> Iterator[list[str]]:
    """Give a node `count` network cards, each below another PCIe root with GPUs.

    Yields the roots, such as `pci0000:16`: neither the first nor the last, if there are more.
    """
    of_gpus = list(dict.fromkeys(_root(gpu) for gpu in _gpus(node)))
    roots = [of_gpus[(number + 1) * len(of_gpus) // (count + 1)] for number in range(count)]
    service = node.place.plugins / NIC_DRIVER / "dra.sock"
    told = _Registration(service)
    sockets = (service, node.place.registry / f"{NIC_DRIVER}-reg.sock")
    server = SocketServer(sockets, [_Plugin().attach, told.attach], name="nics", workers=_WORKERS)
    with ExitStack() as stack:
        server.start()
        stack.callback(server.stop, 1.0)
        wait_until(lambda: told.is_registered, f"the kubelet to know {NIC_DRIVER}", timeout=60)
        api, slice_ = node.cluster.api, nic_slice(node.place.node, roots)
        api.create(slice_)
        stack.callback(api.delete, "ResourceSlice", slice_["metadata"]["name"])
        yield roots


def gpus_beside_nics(node: GpuNode) -> set[str]:
    """The UUIDs of the GPUs that are below one PCIe root with a network card, as published."""
    roots = {_root(nic) for nic in _devices(node, NIC_DRIVER)}
    return {gpu["attributes"]["uuid"]["string"] for gpu in _gpus(node) if _root(gpu) in roots}


def _gpus(node: GpuNode) -> list[Object]:
    devices = _devices(node, DRIVER_NAME)
    return [device for device in devices if device["attributes"]["type"]["string"] == "gpu"]


def _devices(node: GpuNode, driver: str) -> list[Object]:
    slices = (each["spec"] for each in node.cluster.api.all("ResourceSlice"))
    return [
        device for each in slices if each["driver"] == driver for device in each.get("devices", [])
    ]


def _root(device: Object) -> str:
    return str(device["attributes"][_ROOT]["string"])


def nic_slice(node: str, roots: Sequence[str]) -> Object:
    """Return the ResourceSlice of a node with a card for RDMA below each root."""
    spec = {
        "driver": NIC_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [_nic(number, root) for number, root in enumerate(roots)],
    }
    return thing("ResourceSlice", f"{node}-{NIC_DRIVER}", spec=spec)


def _nic(number: int, root: str) -> Object:
    bus = int(root.rpartition(":")[2], 16)
    address = f"{root.removeprefix('pci').partition(':')[0]}:{bus + 3:02x}:00.0"
    texts = {
        "ifName": f"rdma{number}",
        "mac": f"02:00:00:00:00:{number:02x}",
        "pciAddress": address,
        "pciDevice": "MT2910 Family [ConnectX-7]",
        "pciVendor": "Mellanox Technologies",
        "rdmaDevice": f"mlx5_{number}",
        "state": "up",
        "type": "device",
    }
    attributes: Object = {f"{NIC_DRIVER}/{name}": {"string": text} for name, text in texts.items()}
    attributes |= {
        f"{NIC_DRIVER}/mtu": {"int": 4200},
        f"{NIC_DRIVER}/rdma": {"bool": True},
        f"{NIC_DRIVER}/virtual": {"bool": False},
        _ROOT: {"string": root},
    }
    return {"name": f"pci-{address.translate(str.maketrans(':.', '--'))}", "attributes": attributes}
