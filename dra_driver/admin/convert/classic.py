"""Claims, templates and classes of v1alpha1 and v1alpha2, which drivers allocated themselves. Pure.

A claim named a ResourceClass, which named a driver, and an object of that driver with parameters.
In v1 it asks for devices of a DeviceClass. Claims for other drivers stay as they are, because only
those drivers know their parameters.
"""

from collections.abc import Mapping

from msgspec import Struct

from dra_driver.admin.convert.claims import INSTALLED
from dra_driver.admin.convert.outcome import (
    SPECS,
    UNKNOWN_FIELD,
    VERSION,
    Object,
    Outcome,
    loss,
    replaced,
)
from dra_driver.admin.convert.parameters import GROUPS, KINDS, Asked, read
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import mapping, text
from resource_nvidia_com.printable import plain, shown
from resource_nvidia_com.problems import Path, Problem

VERSIONS = ("resource.k8s.io/v1alpha1", "resource.k8s.io/v1alpha2")
_DRIVER = "gpu.resource.nvidia.com"
_WHOLE_GPUS = (
    f"device.driver == '{DRIVER_NAME}' && "
    f"device.attributes['{DRIVER_NAME}'].?type.orValue('') == 'gpu' && "
    f"!('replicas' in device.attributes['{DRIVER_NAME}'])"
)
"""What the class gpu.nvidia.com selects (deviceclasses/gpu.yaml)."""

_REFERENCE = "parametersRef"
_CLAIM_FIELDS = ("resourceClassName", _REFERENCE, "allocationMode")

Key = tuple[str, str, str]
"""Kind, namespace and name of parameters."""


class Known(Struct, frozen=True, kw_only=True):
    """What the files contain that claims refer to: drivers by their class, and parameters."""

    drivers: Mapping[str, str]
    asked: Mapping[Key, Asked]
    referred: frozenset[Key]


def known(values: list[Object]) -> Known:
    """Gather what claims can refer to."""
    claims = [value for value in values if value.get("apiVersion") in VERSIONS]
    return Known(
        drivers={
            _name(each): text(each, "driverName")
            for each in claims
            if each.get("kind") == "ResourceClass"
        },
        asked={key(value): read(key(value)[0], value) for value in values if is_parameters(value)},
        referred=frozenset(
            _referred(each, path) for each in claims for path in (("spec",), ("spec", "spec"), ())
        ),
    )


def is_parameters(value: Object) -> bool:
    """Tell whether an object contains parameters that are read here."""
    group = str(value.get("apiVersion")).partition("/")[0]
    return group in GROUPS and value.get("kind") in KINDS


def key(value: Object) -> Key:
    """Return the key of parameters."""
    return str(value.get("kind")), _namespace(value), _name(value)


def parameters(value: Object, context: Known) -> Outcome:
    """Return what is lost of parameters, which are now in the claims that refer to them."""
    losses = context.asked[key(value)].losses
    if key(value) not in context.referred:
        text_ = "left out: nothing in these files refers to it: pass the file with the claim, too"
        losses = (*losses, loss(("metadata", "name"), text_))
    return Outcome(losses=losses)


def resource_class(value: Object, context: Known) -> Outcome:
    """Return a ResourceClass as a DeviceClass."""
    driver, name = text(value, "driverName"), _name(value)
    if driver != _DRIVER:
        return _of_another(value, ("driverName",), driver)
    losses = []
    if "suitableNodes" in value:
        instead = "write a nodeSelector or nodeAffinity in the pods"
        losses.append(loss(("suitableNodes",), f"a class selects devices, not nodes: {instead}"))
    if _REFERENCE in value and _referred(value, ()) not in context.asked:
        losses.append(_missing(value, ()))
    if name in INSTALLED:
        return Outcome(losses=tuple(losses))
    new = {
        "apiVersion": VERSION,
        "kind": "DeviceClass",
        "metadata": value.get("metadata"),
        "spec": {"selectors": [{"cel": {"expression": _WHOLE_GPUS}}]},
    }
    return Outcome(objects=(new,), losses=tuple(losses))


def claim(value: Object, context: Known) -> Outcome:
    """Return a claim or template as one of v1."""
    path = SPECS[str(value["kind"])]
    spec = mapping(value, *path)
    name, reference = text(spec, "resourceClassName"), mapping(spec, _REFERENCE)
    ours = reference.get("apiGroup") in GROUPS or (name in INSTALLED and not reference)
    driver = context.drivers.get(name, _DRIVER if ours else "")
    if driver != _DRIVER:
        return _of_another(value, (*path, "resourceClassName"), driver)
    asked = _asked(value, path, context)
    if isinstance(asked, Problem):
        return Outcome(losses=(asked,))
    losses = [loss((*path, field), UNKNOWN_FIELD) for field in spec if field not in _CLAIM_FIELDS]
    if spec.get("allocationMode") == "Immediate":
        why = "a claim is allocated when a pod first needs it: create the pod earlier to hold the"
        losses.append(loss((*path, "allocationMode"), f"{why} devices"))
    new = {field: member for field, member in value.items() if field != "status"}
    new = replaced(new, path, {"devices": _devices(name, asked)})
    return Outcome(objects=({**new, "apiVersion": VERSION},), losses=tuple(losses))


def _asked(value: Object, path: Path, context: Known) -> Asked | Problem:
    """Return what a claim asks for, or why nothing can replace it."""
    if not mapping(value, *path, _REFERENCE):
        return read("GpuClaimParameters", {})
    asked = context.asked.get(_referred(value, path))
    if asked is None:
        return _missing(value, path)
    if asked.request is None:
        kind, _, name = _referred(value, path)
        why = f"left out: {plain(kind)} {plain(name)} asks for something that no device offers"
        return loss((*path, _REFERENCE), f"{why}: remove the claim from its pods")
    return asked


def _devices(class_name: str, asked: Asked) -> Object:
    request = asked.request or {}
    if class_name not in INSTALLED and request["name"] == "gpu":
        request = replaced(request, ("exactly", "deviceClassName"), class_name)
    config = {"opaque": {"driver": DRIVER_NAME, "parameters": asked.config}}
    requests: Object = {"requests": [request]}
    return {**requests, "config": [config]} if asked.config else requests


def _missing(value: Object, path: Path) -> Problem:
    kind, _, name = _referred(value, path)
    if kind not in KINDS:
        why = f"left out: {shown(kind)} is not a kind of parameters of NVIDIA's DRA driver"
        return loss((*path, _REFERENCE), f"{why}: write a claim of {VERSION} by hand")
    why = f"left out: no {kind} {plain(name)} of its namespace is in these files"
    return loss((*path, _REFERENCE), f"{why}: pass the file that has it, too")


def _of_another(value: Object, path: Path, driver: str) -> Outcome:
    if driver:
        why = f"unchanged: it belongs to the driver {plain(driver)}: ask its vendor how"
        return Outcome(objects=(value,), losses=(loss(path, f"{why} it is written now"),))
    why = "unchanged: no ResourceClass in these files says which driver it belongs to"
    losses = (loss(path, f"{why}: pass the file with the class, too"),)
    return Outcome(objects=(value,), losses=losses)


def _referred(value: Object, path: Path) -> Key:
    reference = mapping(value, *path, _REFERENCE)
    kind = text(reference, "kind")
    # The parameters of a class have no namespace.
    namespace = "" if kind == "DeviceClassParameters" else _namespace(value)
    return kind, namespace, text(reference, "name")


def _name(value: Object) -> str:
    return text(value, "metadata", "name")


def _namespace(value: Object) -> str:
    return text(value, "metadata", "namespace")
