"""Parameters of NVIDIA's first driver: what they ask for, as a request and a config. Pure.

In: GpuClaimParameters and similar kinds of gpu.resource.nvidia.com/v1alpha1. Out: what a claim that
refers to them has to say now. The field names used until October 2023 are read, too.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from dra_driver.admin.convert.outcome import UNKNOWN_FIELD, Object, loss
from dra_driver.admin.convert.selectors import expression, literal
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, mapping
from resource_nvidia_com.problems import Path, Problem
from resource_nvidia_com.v1beta1.names import API_VERSION

GROUPS = ("gpu.resource.nvidia.com", "gpu.nvidia.com")
"""The group of the parameters, and that of the later configs."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "GpuClaimParameters": ("count", "selector", "sharing"),
    "MigDeviceClaimParameters": ("profile", "sharing"),
    "DeviceClassParameters": ("sharable",),
    "ComputeInstanceClaimParameters": ("profile", "migDeviceClaimName"),
}
KINDS = tuple(_FIELDS)

LOST: Mapping[str, str] = {
    "gpuClaimName": "MIG devices of one GPU must now be in one claim: put the requests into one "
    "ResourceClaimTemplate with `constraints: [{matchAttribute: "
    "gpu.nvidia.com/parentUUID}]`, "
    "and remove the claim for the GPU",
    "uninitialized": "a MIG device has its compute instance from the start: remove claims for "
    "compute instances",
    "maxConnections": "an MPS daemon has no setting for the number of its clients: set "
    "defaultActiveThreadPercentage and memory limits",
}
"""Fields that cannot be converted, and what to do."""

_RENAMED: Mapping[str, str] = {
    "timeSlicingSettings": "timeSlicingConfig",
    "timeSlice": "interval",
    "activeThreadPercentage": "defaultActiveThreadPercentage",
    "pinnedDeviceMemoryLimit": "defaultPerDevicePinnedMemoryLimit",
}
"""Earlier names of the fields of `sharing`."""

_BY_DEVICE = "defaultPerDevicePinnedMemoryLimit"


class Asked(Struct, frozen=True, kw_only=True):
    """What a claim asks for; no request if nothing can replace it."""

    request: Object | None = None
    config: Object | None = None
    losses: tuple[Problem, ...] = ()


def read(kind: str, value: Object) -> Asked:
    """Return what parameters of one of `KINDS` ask for."""
    spec = mapping(value, "spec")
    losses = [
        loss(("spec", field), LOST.get(field, UNKNOWN_FIELD))
        for field in spec
        if field not in _FIELDS[kind]
    ]
    request = _REQUESTS[kind](spec, losses)
    config = None
    if request is not None and isinstance(spec.get("sharing"), Mapping):
        config = {
            "apiVersion": API_VERSION,
            "kind": "GpuConfig" if kind == "GpuClaimParameters" else "MigDeviceConfig",
            "sharing": _renamed(spec["sharing"], ("spec", "sharing"), losses),
        }
    return Asked(request=request, config=config, losses=tuple(losses))


def _gpu(spec: Object, losses: list[Problem]) -> Object | None:
    exactly: dict[str, object] = {"deviceClassName": "gpu.nvidia.com"}
    if spec.get("selector") is not None:
        path = ("spec", "selector")
        term = expression(spec["selector"], path, losses)
        if term is False:
            why = "GPUs in MIG mode are offered as MIG devices only: ask for those, and remove the"
            losses.append(loss(path, f"{why} claim for the GPU"))
            return None
        if isinstance(term, str):
            exactly["selectors"] = [{"cel": {"expression": term}}]
    if spec.get("count") not in (None, 1):
        exactly["count"] = spec["count"]
    return {"name": "gpu", "exactly": exactly}


def _mig(spec: Object, _losses: list[Problem]) -> Object:
    return {"name": "mig", "exactly": mig_devices(str(spec.get("profile", "")))}


def mig_devices(profile: str) -> Object:
    """Return what a request for a MIG device of a profile has under `exactly`."""
    says = f"device.attributes['{DRIVER_NAME}'].profile == {literal(profile)}"
    return {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": says}}]}


def _compute_instance(_spec: Object, losses: list[Problem]) -> None:
    text = "compute instances of a MIG device are not offered: ask for a smaller MIG device, or "
    losses.append(loss(("kind",), f"left out: {text}share one by MPS"))


def _class(spec: Object, losses: list[Problem]) -> None:
    if at(spec, "sharable") is False:
        text = "any claim can be shared by pods now: to keep pods apart, give each its own claim by"
        losses.append(loss(("spec", "sharable"), f"{text} a ResourceClaimTemplate"))


_REQUESTS: Mapping[str, Callable[[Object, list[Problem]], Object | None]] = {
    "GpuClaimParameters": _gpu,
    "MigDeviceClaimParameters": _mig,
    "ComputeInstanceClaimParameters": _compute_instance,
    "DeviceClassParameters": _class,
}


def _renamed(value: object, path: Path, losses: list[Problem]) -> object:
    if not isinstance(value, Mapping):
        return value
    new = {}
    for field, member in value.items():
        name = _RENAMED.get(field, field)
        if field in LOST:
            losses.append(loss((*path, field), LOST[field]))
        else:
            new[name] = member if name == _BY_DEVICE else _renamed(member, (*path, field), losses)
    return new
