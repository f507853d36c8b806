"""The inventory as devices of a ResourceSlice: one pure function, deterministic to the byte.

In: what the machine has. Out: `Device` objects of resource.k8s.io/v1 as plain dicts, and what was
left out with the reason. Names, attributes and capacities are those of NVIDIA's own DRA driver, so
that every selector written for it works here. Rules of the API: strings of at most 64 bytes,
versions in strict semver 2.0.0, at most 32 attributes and capacities together. Nothing here talks
to a server, and nothing is logged.
"""

import re
from dataclasses import dataclass, field

from dra_driver.devices.model import Gpu, Inventory, MigMode
from dra_driver.devices.names import gpu_name
from resource_nvidia_com.quantity import Quantity

LONGEST_VALUE = 64
"""Bytes of a string or version attribute (DeviceAttributeMaxValueLength)."""

_STANDARD = "resource.kubernetes.io"
"""Domain of the attributes that all drivers share (KEP-4381, KEP-6072)."""

_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"(?P<numbers>[0-9]+(?:\.[0-9]+){{0,2}})(?P<rest>(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?)"
)

WireDevice = dict[str, object]
"""A `Device` of resource.k8s.io/v1: name, attributes, capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A GPU that is not published, and why. `index` is NVML's."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """An attribute that a published device lacks because the API would refuse its value."""

    device: str
    attribute: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What is published of an inventory, and what is not."""

    devices: tuple[WireDevice, ...]
    withheld: tuple[Withheld, ...]
    omitted: tuple[Omitted, ...]


def project(inventory: Inventory) -> tuple[WireDevice, ...]:
    """Return the devices to publish, in order of PCI address.

    The scheduler takes the first device that fits, in this order.
    """
    return projection(inventory).devices


def projection(inventory: Inventory) -> Projection:
    """Return the devices to publish together with everything that was left out."""
    withheld = [Withheld(index=gpu.index, reason=gpu.reason) for gpu in inventory.sick]
    devices: dict[str, WireDevice] = {}
    omitted: list[Omitted] = []
    for gpu in sorted(inventory.gpus, key=lambda gpu: (gpu.pci_address, gpu.index)):
        name = gpu_name(gpu.minor)
        reason = _why_withheld(gpu, is_taken=name in devices)
        if reason is not None:
            withheld.append(Withheld(index=gpu.index, reason=reason))
            continue
        attributes = _Attributes(device=name)
        _describe(gpu, inventory, attributes)
        omitted += attributes.omitted
        devices[name] = {"name": name, "attributes": attributes.values, **_capacity(gpu)}
    return Projection(
        devices=tuple(devices.values()),
        withheld=tuple(sorted(withheld, key=lambda entry: entry.index)),
        omitted=tuple(omitted),
    )


def _why_withheld(gpu: Gpu, *, is_taken: bool) -> str | None:
    if gpu.mig_mode is MigMode.ENABLED:
        return (
            "MIG mode is on, so it runs no work as a whole GPU, and its instances are not "
            f"published; to publish the whole GPU: nvidia-smi -i {gpu.pci_address} -mig 0"
        )
    if is_taken:
        return f"another GPU has the same minor number {gpu.minor}; is /proc or /dev mounted twice?"
    return None


@dataclass(slots=True)
class _Attributes:
    """Attributes of one device as they are gathered."""

    device: str
    values: dict[str, dict[str, object]] = field(default_factory=dict)
    omitted: list[Omitted] = field(default_factory=list)

    def text(self, name: str, value: str) -> None:
        """Add a string, cut at 64 bytes without splitting a character."""
        cut = value.encode(errors="replace")[:LONGEST_VALUE].decode(errors="ignore")
        self.values[name] = {"string": cut}

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


def _describe(gpu: Gpu, inventory: Inventory, attributes: _Attributes) -> None:
    """Gather the attributes of a whole GPU; a fact the card lacks is left out."""
    attributes.text("type", "gpu")
    attributes.text("uuid", gpu.uuid)
    attributes.text("productName", gpu.product_name)
    attributes.text("brand", gpu.brand)
    attributes.text("architecture", gpu.architecture)
    attributes.version("cudaComputeCapability", _dotted(gpu.cuda_compute_capability))
    if inventory.driver_version is not None:
        attributes.version("driverVersion", inventory.driver_version)
    if inventory.cuda_version is not None:
        attributes.version("cudaDriverVersion", _dotted(inventory.cuda_version))
    if gpu.addressing_mode is not None:
        attributes.text("addressingMode", gpu.addressing_mode)
    attributes.text(f"{_STANDARD}/pciBusID", gpu.pci_address)
    if gpu.pcie_root is not None:
        attributes.text(f"{_STANDARD}/pcieRoot", gpu.pcie_root)
    if gpu.numa_node is not None and gpu.numa_node >= 0:
        attributes.values[f"{_STANDARD}/numaNode"] = {"int": gpu.numa_node}


def _capacity(gpu: Gpu) -> dict[str, object]:
    if gpu.memory_bytes is None:
        return {}
    return {"capacity": {"memory": {"value": str(Quantity.of_bytes(gpu.memory_bytes))}}}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def strict_semver(text: str) -> str | None:
    """Return a version as strict semver 2.0.0: three numbers without leading zeros.

    `535.261.03` becomes `535.261.3`, and `12.2` becomes `12.2.0`, as NVIDIA's driver publishes
    them.
    None: it has more than three numbers, or something else that semver does not know.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [*match["numbers"].split("."), "0", "0"][:3]
    semver = ".".join(number.lstrip("0") or "0" for number in numbers) + match["rest"]
    return semver if len(semver) <= LONGEST_VALUE else None
