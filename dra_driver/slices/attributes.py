"""Builds the attributes of a device in the form that resource.k8s.io/v1 accepts. Pure.

They are plain dicts, with the names that NVIDIA's own DRA driver uses. An attribute that the API
would refuse is left out and noted. Rules of the API: a string has at most 64 bytes, and a version
is strict semver 2.0.0.
"""

import re
from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct, field

from dra_driver.devices.device import Device, DeviceKind, Mig, NodeDevice, Vfio, Whole
from dra_driver.devices.model import Gpu, GpuUuid, Inventory
from dra_driver.devices.shares import EqualShare
from dra_driver.devices.versions import dotted

LONGEST_VALUE = 64
"""Maximum bytes of a string or version attribute (DeviceAttributeMaxValueLength)."""

RESOURCE_NAME = "resourceName"
"""The extended resource that a share serves, or a MIG device that is requested like a GPU.

NVIDIA's driver has no such attribute.
"""

REPLICAS = "replicas"
"""The number of shares into which a share's device is divided."""

SHARED_AS = "sharedAs"
"""The extended resource that only shares serve, not a whole device like this one."""

NVLINK_ISLAND = "nvlinkIsland"
"""The island of a GPU joined to others: equal for all GPUs that it reaches over NVLink."""

FABRIC_CLUSTER = "fabricClusterUUID"
"""UUID of the NVLink fabric that a GPU has joined, together with GPUs of other nodes."""

FABRIC_CLIQUE = "fabricClique"
"""That UUID and the clique's number, like GPU feature discovery's label nvidia.com/gpu.clique."""

_STANDARD = "resource.kubernetes.io"
"""Domain of the attributes that are common to all drivers (KEP-4381, KEP-6072)."""

_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"(?P<numbers>[0-9]+(?:\.[0-9]+){{0,2}})(?P<rest>(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?)"
)


class Omitted(Struct, frozen=True, kw_only=True):
    """An attribute that a published device lacks because the API would refuse its value."""

    device: str
    attribute: str
    reason: str


class Attributes(Struct):
    """The attributes of one device while they are gathered."""

    device: str
    values: dict[str, dict[str, object]] = field(default_factory=dict)
    omitted: list[Omitted] = field(default_factory=list)

    def text(self, name: str, value: str) -> None:
        """Add a string, cut at 64 bytes without splitting a character."""
        cut = value.encode(errors="replace")[:LONGEST_VALUE].decode(errors="ignore")
        self.values[name] = {"string": cut}

    def number(self, name: str, value: int) -> None:
        """Add a whole number."""
        self.values[name] = {"int": value}

    def version(self, name: str, value: str) -> None:
        """Add a version, or note why it cannot be one."""
        semver = strict_semver(value)
        if semver is None:
            self.omitted.append(
                Omitted(
                    device=self.device,
                    attribute=name,
                    reason=f"{value!r} cannot be written as a semantic version of at most "
                    f"{LONGEST_VALUE} bytes",
                )
            )
        else:
            self.values[name] = {"version": semver}


def describe(
    source: NodeDevice,
    inventory: Inventory,
    attributes: Attributes,
    islands: Mapping[GpuUuid, GpuUuid],
) -> None:
    """Gather the attributes of a device; a fact that it or its card lacks is left out."""
    kind = source.device.kind
    attributes.text("type", str(kind))
    _describe_device(source.device, attributes)
    _describe_card(source.gpu, inventory, attributes)
    if isinstance(source.device.base, Vfio):
        _describe_passthrough(source.device.base, inventory, attributes)
    if kind is DeviceKind.GPU:  # MIG devices have no peer access over NVLink
        _describe_joined(source.gpu, islands.get(source.gpu.uuid), attributes)


def _describe_joined(gpu: Gpu, island: GpuUuid | None, attributes: Attributes) -> None:
    if island is not None:
        attributes.text(NVLINK_ISLAND, island)
    fabric = gpu.fabric
    if fabric is not None and fabric.is_joined and fabric.cluster is not None:
        attributes.text(FABRIC_CLUSTER, fabric.cluster)
        attributes.text(FABRIC_CLIQUE, f"{fabric.cluster}.{fabric.clique}")


def _describe_device(device: Device, attributes: Attributes) -> None:
    if device.uuid is not None:
        attributes.text("uuid", device.uuid)
    match device.base:
        case Whole() | Vfio():
            pass
        case Mig():
            attributes.text("parentUUID", device.gpu)
            attributes.text("profile", device.base.profile)
        case _:
            assert_never(device.base)
    if isinstance(device.share, EqualShare):
        attributes.text(RESOURCE_NAME, device.share.division.served_as)
        attributes.number(REPLICAS, device.share.division.count)


def _describe_card(gpu: Gpu, inventory: Inventory, attributes: Attributes) -> None:
    attributes.text("productName", gpu.product_name)
    attributes.text("brand", gpu.brand)
    attributes.text("architecture", gpu.architecture)
    attributes.version("cudaComputeCapability", dotted(gpu.cuda_compute_capability))
    if inventory.driver_version is not None:
        attributes.version("driverVersion", inventory.driver_version)
    if inventory.cuda_version is not None:
        attributes.version("cudaDriverVersion", dotted(inventory.cuda_version))
    if gpu.addressing_mode is not None:
        attributes.text("addressingMode", gpu.addressing_mode)
    attributes.text(f"{_STANDARD}/pciBusID", gpu.pci_address)
    if gpu.pcie_root is not None:
        attributes.text(f"{_STANDARD}/pcieRoot", gpu.pcie_root)
    if gpu.numa_node is not None and gpu.numa_node >= 0:
        attributes.number(f"{_STANDARD}/numaNode", gpu.numa_node)


def _describe_passthrough(base: Vfio, inventory: Inventory, attributes: Attributes) -> None:
    """Gather the attributes that NVIDIA's DRA driver gives only to passthrough devices.

    Passthrough devices also get all attributes of other devices. If a selector reads an attribute
    that a device lacks, that is an error, and the scheduler gives up on the pod (KEP-4381).
    """
    for card in inventory.passthrough:
        if card.gpu.pci_address == base.address:
            attributes.text("vendorID", card.vendor_id)
            attributes.text("deviceID", card.device_id)
            attributes.values["iommuFDEnabled"] = {"bool": card.has_iommufd}


def strict_semver(text: str) -> str | None:
    """Return a version as strict semver 2.0.0: three numbers without leading zeros.

    `535.261.03` becomes `535.261.3` and `12.2` becomes `12.2.0`, as NVIDIA's driver publishes them.
    Returns None if it has more than three numbers, or anything else that semver does not allow.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [*match["numbers"].split("."), "0", "0"][:3]
    semver = ".".join(number.lstrip("0") or "0" for number in numbers) + match["rest"]
    return semver if len(semver) <= LONGEST_VALUE else None
