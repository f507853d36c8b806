"""Passthrough: moves a claim's GPUs from the GPU driver to a VFIO driver, and back.

In: GPUs on the PCI bus, with or without a VfioDeviceConfig. Out: the GPU's functions are bound to
vfio-pci, or to a variant of it that the kernel has, and a virtual machine gets the device nodes to
open them. At the end, each function is bound again to what it was bound to before. A function that
somebody else has bound meanwhile is left alone. The record has everything that the undo needs, so
it works after a restart, even one during a switch.

A GPU is not taken from the GPU driver while a process has it open, because the kernel would wait
for that process, possibly for ever (devices/passthrough/bus.py). So the driver looks for such
processes before it writes anything, and closes its own NVML during the switch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog
from msgspec import Struct

from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.devices.device import DeviceKey, Vfio
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import GPU_DRIVER, PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.gpus import companions
from dra_driver.devices.passthrough.variants import module_for, vfio_driver
from dra_driver.errors import DeviceError, DriverError, HeldError, TransientError
from dra_driver.host.turns import waiting
from dra_driver.sharing.base import Doer, Group, Unit
from dra_driver.sharing.steps import BoundFunction, PassThrough, SharingStep

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

log = structlog.get_logger()

SWITCH_SECONDS = 15.0
"""How long the kernel may take to change a function's driver; to initialise a GPU takes seconds."""

_RELEASE_SECONDS = 10.0
_LOOK_SECONDS = 1.1  # devices/holders.py caches what it found for a second
_PERSISTENCED = "nvidia-persiste"  # nvidia-persistenced, cut by the kernel (TASK_COMM_LEN)

_NO_CONTAINER_EDITS = ("NVIDIA_VISIBLE_DEVICES=void",)  # so that no container toolkit adds GPUs


class Nvml(Protocol):
    """What passthrough needs of NVML; devices/session.py implements it."""

    def apart(self) -> AbstractContextManager[None]:
        """Keep NVML closed in this context. Raises TransientError if it cannot be closed."""
        ...

    def look(self) -> object:
        """Read all GPUs; opens NVML if it is closed. Raises DeviceError."""
        ...

    def set_persistence(self, uuid: str, *, on: bool) -> None:
        """Set a GPU's persistence mode. Raises DeviceError, TransientError."""
        ...


class PassthroughNode(Struct, frozen=True, kw_only=True):
    """What passthrough needs to know about the node.

    `holders` returns the processes that have a GPU open, by the minor number of its device node.
    `dev` returns where device nodes are, for this process and for the container runtime. `aliases`
    are the possible places of the kernel's modules.alias.
    """

    bus: PciBus
    proc: Path
    dev: Callable[[], tuple[Path, str]]
    aliases: tuple[Path, ...]
    holders: Callable[[int], tuple[Holder, ...]]
    on_switched: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class Passthrough(Doer[PassThrough]):
    """Takes GPUs from the GPU driver for virtual machines, with one step for each GPU."""

    def __init__(self, node: PassthroughNode, nvml: Nvml) -> None:
        self._node = node
        self._bus = node.bus
        self._nvml = nvml

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:  # noqa: ARG002
        """Return a step for each GPU, with the drivers to which its functions are bound now."""
        return tuple(self._step(group, unit) for group in groups for unit in group.units)

    def do(self, step: PassThrough, deadline: float) -> None:
        """Bind the GPU to its VFIO driver.

        Raises HeldError while processes have the GPU open, TransientError if the kernel does not
        finish the switch in time, DeviceError if it refuses.
        """
        if all(self._bus.driver_of(each.address) == step.driver for each in step.functions):
            return
        end = min(deadline, self._node.clock() + _RELEASE_SECONDS)
        self._wait_until_free(step, end, but={_PERSISTENCED})
        if step.was_persistent:
            self._nvml.set_persistence(step.gpu, on=False)
        try:
            with self._nvml.apart():
                self._wait_until_free(step, end)
                for each in step.functions:
                    self._switch(each.address, step.driver, override=step.driver)
        except HeldError:
            self._nvml.look()
            self._restore_persistence(step)
            raise
        finally:
            self._node.on_switched()
        log.info(
            "gpu given to a vfio driver", gpu=step.gpu, address=step.address, driver=step.driver
        )

    def ensure(self, step: PassThrough) -> None:
        """Check that the GPU still has its VFIO driver; what others have changed stays."""
        for each in step.functions:
            now = self._bus.driver_of(each.address)
            if now != step.driver:
                raise DeviceError(
                    f"{each.address} was taken from {step.driver} by others on the node, and is "
                    f"bound to {now or 'no driver'} now; delete the pod and its claim so that they "
                    "are scheduled again"
                )

    def undo(self, step: PassThrough, deadline: float) -> None:  # noqa: ARG002 (it has its own)
        """Bind each function to its driver from before, unless somebody else has bound it."""
        changed = False
        for each in reversed(step.functions):
            now = self._bus.driver_of(each.address)
            if now not in {step.driver, None} and now != each.found_driver:
                log.warning("gpu left to others", address=each.address, driver=now)
                continue
            changed |= now != each.found_driver
            self._switch(each.address, each.found_driver, override=each.found_override)
        if changed:
            self._node.on_switched()
            log.info("gpu given back", gpu=step.gpu, address=step.address)
        if step.was_persistent and self._bus.driver_of(step.address) == GPU_DRIVER:
            self._nvml.look()  # NVML does not see the GPU unless it is opened after the switch
            self._restore_persistence(step)

    def edits(self, step: PassThrough) -> Mapping[DeviceKey, Edits]:
        """Return the VFIO nodes of the GPU. Raises DeviceError if its IOMMUFD node is missing."""
        key = step.devices[0].key
        nodes = tuple(self._nodes(step))
        return {} if key is None else {key: Edits(env=_NO_CONTAINER_EDITS, device_nodes=nodes)}

    def _step(self, group: Group, unit: Unit) -> PassThrough:
        base = unit.device.base
        if not isinstance(base, Vfio):
            raise DeviceError(f'device "{unit.name}" is not for virtual machines')
        function = self._bus.function(base.address)
        if function is None or function.group is None:
            raise DeviceError(
                f'device "{unit.name}": {base.address} is in no IOMMU group any more; delete the '
                "pod and its claim so that they are scheduled again"
            )
        modalias = self._bus.modalias(base.address)
        driver = vfio_driver(modalias, self._node.aliases, self._bus.has_driver)
        if driver is None:
            module = module_for(modalias, self._node.aliases)
            raise TransientError(
                f'device "{unit.name}": kernel module {module} is not loaded on the node: load it '
                f"(modprobe {module}, and a file in /etc/modules-load.d)"
            )
        owed = _owed(group.owed, base.address)
        found = {each.address: each for each in (owed.functions if owed else ())}
        functions = (function, *companions(self._bus, function))
        wants_iommufd, wants_api = wishes(group.config)
        return PassThrough(
            devices=(unit.device,),
            address=base.address,
            driver=driver,
            functions=tuple(
                found.get(each.address)
                or BoundFunction(
                    address=each.address,
                    found_driver=each.driver,
                    found_override=self._bus.override_of(each.address),
                )
                for each in functions
            ),
            group=function.group,
            was_persistent=owed.was_persistent if owed else bool(unit.gpu.is_persistent),
            iommufd=wants_iommufd and (self._node.dev()[0] / "iommu").exists(),
            api_device=wants_api,
        )

    def _switch(self, address: PciAddress, driver: str | None, *, override: str) -> None:
        self._bus.switch(address, driver, override=override, seconds=SWITCH_SECONDS)

    def _wait_until_free(
        self, step: PassThrough, end: float, but: frozenset[str] | set[str] = frozenset()
    ) -> None:
        """Wait until no process has the GPU open, except those in `but`. Raises HeldError."""
        minor = _minor(self._node.proc, step.address)
        while minor is not None:
            held = [each for each in self._node.holders(minor) if each.name not in but]
            if not held:
                return
            if self._node.clock() >= end:
                names = ", ".join(map(str, held))
                raise HeldError(
                    f"GPU {step.address} cannot be given to a virtual machine while {names} "
                    "has it open: end that, or have it let go of the GPU",
                    minor=minor,
                )
            with waiting():
                self._node.pause(_LOOK_SECONDS)

    def _restore_persistence(self, step: PassThrough) -> None:
        if not step.was_persistent:
            return
        try:
            self._nvml.set_persistence(step.gpu, on=True)
        except DriverError as error:
            log.warning("persistence mode not turned on again", gpu=step.gpu, reason=str(error))

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
        path, on_host = f"/dev/{name}", f"{self._node.dev()[1].rstrip('/')}/{name}"
        return DeviceNode(path=path, host_path=None if path == on_host else on_host)


def _owed(steps: Sequence[SharingStep], address: PciAddress) -> PassThrough | None:
    """Return a former claim's step for the GPU that could not be undone; None if there is none."""
    owed = (step for step in steps if isinstance(step, PassThrough) and step.address == address)
    return next(owed, None)


def wishes(config: "Config | None") -> tuple[bool, bool]:
    """Return whether a config asks for IOMMUFD, and whether for the API device."""
    if config is None or config.kind != "VfioDeviceConfig":
        return False, False
    return config.prefers_iommufd, config.wants_api_device


def _minor(proc: Path, address: PciAddress) -> int | None:
    """Return the minor number of a GPU's node; None while the GPU driver does not have the GPU."""
    try:
        text = (proc / "driver/nvidia/gpus" / address / "information").read_text(errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Device Minor" and value.strip().isdecimal():
            return int(value)
    return None
