"""Whether the configs of a claim are for devices that its requests can get. Pure.

In: the requests and configs of a claim as written. Out: what certainly has no effect, in words for
its author. Of DeviceClasses, only those that come with the driver are known, by their names; for
any other, only Prepare knows what a request got. A request with alternatives counts only if a
config fits none of them. Configs for requests with adminAccess are left to Prepare.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from dra_driver.kube.fields import mapping, objects, text
from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.printable import either

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu.nvidia.com": ("GpuConfig",),
        "mig.nvidia.com": ("MigDeviceConfig",),
        "vfio.gpu.nvidia.com": ("VfioDeviceConfig",),
        # With `migStrategy: single` in a share config, MIG devices serve nvidia.com/gpu as well.
        "gpu.resource.nvidia.com": ("GpuConfig", "MigDeviceConfig"),
    }
)
"""The kinds of configs that are for devices of a DeviceClass, by the class."""


class WrittenConfig(Struct, frozen=True, kw_only=True):
    """A config of this driver: its kind, and the requests it names; none means all."""

    kind: str
    requests: tuple[str, ...]


class _Device(Struct, frozen=True, kw_only=True):
    """A choice of a request, the kinds that fit it, and the config that Prepare uses for it."""

    request: str
    class_name: str
    kinds: tuple[str, ...]
    config: WrittenConfig | None

    @property
    def is_refused(self) -> bool:
        return bool(self.kinds and self.config and self.config.kind not in self.kinds)


def in_vain(requests: object, configs: Sequence[WrittenConfig]) -> Iterator[tuple[int, str]]:
    """Yield (index, why) of each config that has no effect; `requests` may have any shape."""
    asked = [[*_devices(one, configs)] for one in requests] if isinstance(requests, list) else []
    every = [one for devices in asked for one in devices if one.kinds]
    refused = [
        one for devices in asked if all(one.is_refused for one in devices) for one in devices
    ]
    for index, config in enumerate(configs):
        wrong = [one for one in refused if one.config is config]
        if not config.requests and not any(config.kind in one.kinds for one in every):
            wrong = [one for one in every if one.config is None]
        if config.kind in MODELS:
            yield from dict.fromkeys((index, _why(config.kind, one)) for one in wrong)


def overridden(requests: object, configs: Sequence[WrittenConfig]) -> Iterator[tuple[int, str]]:
    """Yield (index, why) of each config that later ones of its kind replace everywhere."""
    every = {text(request, "name") for request in requests} if isinstance(requests, list) else set()
    for index, config in enumerate(configs):
        later = {
            name
            for other in configs[index + 1 :]
            if other.kind == config.kind
            for name in other.requests or every
        }
        covered = set(config.requests) or every
        if covered and covered <= later:
            why = f"a later {config.kind} of this claim replaces this one for the same requests"
            yield index, f"{why}: write only one of them"


def _devices(request: object, configs: Sequence[WrittenConfig]) -> Iterator[_Device]:
    """Yield the choices of a request, of which it gets one."""
    name = text(request, "name")
    for asked in objects(request, "firstAvailable") or (mapping(request, "exactly"),):
        class_name = text(asked, "deviceClassName")
        kinds = () if asked.get("adminAccess") else KINDS.get(class_name, tuple(MODELS))
        names = {name, f"{name}/{text(asked, 'name')}"}
        found = (
            config
            for config in reversed(configs)
            if names & {*config.requests} or (not config.requests and config.kind in kinds)
        )
        yield _Device(request=name, class_name=class_name, kinds=kinds, config=next(found, None))


def _why(kind: str, device: _Device) -> str:
    asks = f"request {device.request}, which asks for DeviceClass {device.class_name}"
    kinds = either(device.kinds)
    return f"a {kind} has no effect on the devices of {asks}: write {kinds}"
