"""Passthrough: gives a claim's GPUs to a virtual machine.

In: GPUs that the node's admin has bound to a VFIO driver, with or without a VfioDeviceConfig. Out:
the device nodes that a virtual machine opens. Nothing is changed on the node, so nothing is undone
at the end. Whether the GPU may be given to a virtual machine is looked up when the claim is
prepared, and each time that it is prepared again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.devices.device import DeviceKey, Vfio
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.rules import PassthroughRules
from dra_driver.errors import DeviceError
from dra_driver.sharing.base import Doer, Group, Unit
from dra_driver.sharing.steps import PassThrough, SharingStep

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

_NO_CONTAINER_EDITS = ("NVIDIA_VISIBLE_DEVICES=void",)  # so that no container toolkit adds GPUs


class Passthrough(Doer[PassThrough]):
    """Gives GPUs to virtual machines, with one step for each GPU.

    `dev` returns where device nodes are, for this process and for the container runtime.
    """

    def __init__(
        self, bus: PciBus, rules: PassthroughRules, dev: Callable[[], tuple[Path, str]]
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._dev = dev

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:  # noqa: ARG002
        """Return a step for each GPU. Raises DeviceError if one cannot be given to a machine."""
        return tuple(self._step(group, unit) for group in groups for unit in group.units)

    def ensure(self, step: PassThrough) -> None:
        """Check that a virtual machine may have the GPU still. Raises DeviceError."""
        function, reason = self._bus.function(step.address), self._rules.why_not(step.address)
        if reason is None and function is not None and function.group != step.group:
            reason = f"its IOMMU group is {function.group} now"
        if reason is not None:
            raise DeviceError(
                f"GPU {step.address} was changed by others on the node since the claim was "
                f"prepared with it: {reason}; delete the pod and its claim so that they are "
                "scheduled again"
            )

    def edits(self, step: PassThrough) -> Mapping[DeviceKey, Edits]:
        """Return the VFIO nodes of the GPU. Raises DeviceError if its IOMMUFD node is missing."""
        nodes = tuple(self._nodes(step))
        return {step.devices[0].key: Edits(env=_NO_CONTAINER_EDITS, device_nodes=nodes)}

    def _step(self, group: Group, unit: Unit) -> PassThrough:
        base = unit.device.base
        if not isinstance(base, Vfio):
            raise DeviceError(f'device "{unit.name}" is not for virtual machines')
        function, reason = self._bus.function(base.address), self._rules.why_not(base.address)
        if function is None or function.driver is None or function.group is None or reason:
            raise DeviceError(
                f'device "{unit.name}" ({base.address}) cannot be given to a virtual machine any '
                f"more: {reason}; delete the pod and its claim so that they are scheduled again"
            )
        wants_iommufd, wants_api = wishes(group.config)
        return PassThrough(
            devices=(unit.device,),
            address=base.address,
            driver=function.driver,
            group=function.group,
            iommufd=wants_iommufd and (self._dev()[0] / "iommu").exists(),
            api_device=wants_api,
        )

    def _nodes(self, step: PassThrough) -> Iterator[DeviceNode]:
        if step.iommufd:
            name = self._bus.vfio_device(step.address)
            if name is None:
                raise DeviceError(
                    f"missing iommufd cdev for GPU {step.address}: the kernel was built without "
                    "CONFIG_VFIO_DEVICE_CDEV; write iommu.backendPolicy: LegacyOnly"
                )
            yield self._node_named(f"vfio/devices/{name}")
        else:
            yield self._node_named(f"vfio/{step.group}")
        if step.api_device:
            yield self._node_named("iommu" if step.iommufd else "vfio/vfio")

    def _node_named(self, name: str) -> DeviceNode:
        """Return a node without its numbers, which the runtime reads when the container starts."""
        path, on_host = f"/dev/{name}", f"{self._dev()[1].rstrip('/')}/{name}"
        return DeviceNode(path=path, host_path=None if path == on_host else on_host)


def wishes(config: "Config | None") -> tuple[bool, bool]:
    """Return whether a config asks for IOMMUFD, and whether for the API device."""
    if config is None or config.kind != "VfioDeviceConfig":
        return False, False
    return config.prefers_iommufd, config.wants_api_device
