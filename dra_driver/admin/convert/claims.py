"""Claims, templates and DeviceClasses that ask for devices, v1alpha3 to v1, as those of v1. Pure.

Up to v1beta1 a request had its fields beside its name; since v1beta2 they are under `exactly`. All
other fields have had their names since v1alpha3; only its first form had `controller` and
`suitableNodes` (k8s.io/api/resource). Configs of gpu.nvidia.com/v1alpha1 have the fields of
resource.nvidia.com/v1beta1: NVIDIA's DRA driver only renamed the group.
"""

import re
from collections.abc import Iterable, Mapping

from dra_driver.admin.convert.outcome import SPECS, VERSION, Object, Outcome, loss, replaced
from dra_driver.admin.validate.objects import OLD_CONFIGS
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, text
from resource_nvidia_com.decode import MODELS
from resource_nvidia_com.printable import plain
from resource_nvidia_com.problems import Path, Problem, parts
from resource_nvidia_com.v1beta1.names import API_VERSION

INSTALLED = ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")
"""The DeviceClasses for claims that come with the driver."""

_EXACTLY = (
    *("deviceClassName", "selectors", "allocationMode", "count"),
    *("adminAccess", "tolerations", "capacity"),
)
GONE: Mapping[str, str] = {
    "controller": "the scheduler, not a driver's controller, allocates all claims now: check that "
    "the requests ask for the right devices",
    "suitableNodes": "a class selects devices, not nodes: write a nodeSelector or nodeAffinity in "
    "the pods",
}
"""Fields of a spec that v1 does not have."""

_BY_OTHER = "choose GPUs by uuid, productName or resource.kubernetes.io/pciBusID"
ATTRIBUTES: Mapping[str, str] = {
    "index": _BY_OTHER,
    "minor": _BY_OTHER,
    "parentIndex": "use parentUUID",
    "pcieBusID": "use device.attributes['resource.kubernetes.io'].pciBusID",
}
"""Attributes that earlier releases of NVIDIA's DRA driver published, and this driver does not."""

_READ = re.compile(
    rf"attributes\[(['\"]){re.escape(DRIVER_NAME)}\1\]\.\??({'|'.join(ATTRIBUTES)})\b"
    rf"|^{re.escape(DRIVER_NAME)}/({'|'.join(ATTRIBUTES)})$"
)


def convert(value: Object) -> Outcome:
    """Return a claim, template or DeviceClass of v1alpha3 or later as one of v1."""
    kind, outdated = str(value["kind"]), value["apiVersion"] != VERSION
    name, path = text(value, "metadata", "name"), SPECS[kind]
    if kind == "DeviceClass" and outdated and name in INSTALLED:
        why = (
            f"left out: the driver's installation has the class {name}: give this one another name"
        )
        return Outcome(losses=(loss(("metadata", "name"), f"{why} if it is to be kept"),))
    losses: list[Problem] = []
    new = {field: member for field, member in value.items() if not (outdated and field == "status")}
    spec = at(value, *path)
    if isinstance(spec, Mapping):
        new = replaced(new, path, _spec(spec, path, losses))
    return Outcome(objects=({**new, "apiVersion": VERSION},), losses=tuple(losses))


def _spec(spec: Object, path: Path, losses: list[Problem]) -> Object:
    """Return the spec of a claim or class as v1 has it."""
    losses += (loss((*path, field), text) for field, text in GONE.items() if field in spec)
    losses += _gone_attributes(spec, path)
    new: dict[str, object] = {field: member for field, member in spec.items() if field not in GONE}
    for where in (("devices", "requests"), ("devices", "config"), ("config",)):
        listed = at(spec, *where)
        if not isinstance(listed, list):
            continue
        if where[-1] == "requests":
            kept = [_request(request) for request in listed]
        else:
            numbered = ((entry, (*path, *where, index)) for index, entry in enumerate(listed))
            kept = [
                made for each, at_ in numbered if (made := _config(each, at_, losses)) is not None
            ]
        new = replaced(new, where, kept)
    return new


def _request(request: object) -> object:
    if not isinstance(request, Mapping) or not request.keys().isdisjoint(
        ("exactly", "firstAvailable")
    ):
        return request
    exactly = {field: member for field, member in request.items() if field in _EXACTLY}
    others = {field: member for field, member in request.items() if field not in _EXACTLY}
    return {**others, "exactly": exactly}


def _config(entry: object, path: Path, losses: list[Problem]) -> object:
    """Return a config in today's group; None if this driver has none of its kind."""
    parameters = at(entry, "opaque", "parameters")
    version, kind = text(parameters, "apiVersion"), text(parameters, "kind")
    if text(entry, "opaque", "driver") != DRIVER_NAME or version != OLD_CONFIGS:
        return entry
    where: Path = ("opaque", "parameters", "apiVersion")
    if kind in MODELS:
        return replaced(entry, where, API_VERSION)
    why = f"left out: this driver has no {plain(kind)}: if it is for NVIDIA's compute domains, see"
    losses.append(loss((*path, *where[:-1], "kind"), f"{why} the documentation of that driver"))
    return None


def _gone_attributes(value: object, path: Path) -> Iterable[Problem]:
    """Yield the attributes that a spec reads but no device has."""
    for where, part in parts(value, path):
        if isinstance(part, str) and where[-1] in ("expression", "matchAttribute"):
            for name in dict.fromkeys(match[2] or match[3] for match in _READ.finditer(part)):
                yield loss(where, f'no device has the attribute "{name}" now: {ATTRIBUTES[name]}')
