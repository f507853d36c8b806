"""What is wrong with an object's CEL selectors, so that no device of this driver matches. Pure.

In: the expressions of claims, templates and DeviceClasses. Out: an error for what no API server
accepts, as far as the evaluator supports CEL; a warning for a selector that fails on each kind of
device that this driver publishes, with what to write instead. Selectors for other drivers' devices
are ignored.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from dra_driver.admin.cel.advice import advice
from dra_driver.admin.cel.selector import Selector, Subject
from dra_driver.admin.cel.values import (
    EvaluationError,
    NotCelError,
    NotUnderstoodError,
    Semver,
)
from dra_driver.admin.validate.claim_fields import requests_of
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, entries, text
from resource_nvidia_com.problems import Path, Problem, dotted
from resource_nvidia_com.quantity import Quantity

_WHOLE: Mapping[str, object] = {
    "type": "gpu",
    "uuid": "GPU-5c9e7a1b-0000-4000-8000-000000000000",
    "productName": "NVIDIA H100 80GB HBM3",
    "brand": "Nvidia",
    "architecture": "Hopper",
    "cudaComputeCapability": Semver.parse("9.0.0"),
    "driverVersion": Semver.parse("580.95.5"),
    "cudaDriverVersion": Semver.parse("13.0.0"),
    "addressingMode": "HMM",
    "resource.kubernetes.io/pciBusID": "0000:61:00.0",
    "resource.kubernetes.io/pcieRoot": "pci0000:5b",
    "resource.kubernetes.io/numaNode": 0,
}
_OF_GPUS = {"nvlinkIsland": "GPU-a", "fabricClusterUUID": "u"}
_OF_SHARES = {"resourceName": "nvidia.com/gpu", "replicas": 4, "sharedAs": "nvidia.com/gpu"}
_OF_MIG = {"type": "mig", "parentUUID": _WHOLE["uuid"], "profile": "1g.10gb"}
_CAPACITIES = (
    *("multiprocessors", "copyEngines", "decoders", "encoders"),
    *("jpegEngines", "ofaEngines"),
)

_VFIO: Mapping[str, object] = {
    **_WHOLE,
    "type": "vfio",
    "uuid": "GPU-pci-0000-65-00-0",
    "deviceID": "0x2330",
    "vendorID": "0x10de",
    "iommuFDEnabled": False,
}

_KINDS_OF = {
    "gpu.nvidia.com": ("gpu", "share"),
    "mig.nvidia.com": ("mig",),
    "vfio.gpu.nvidia.com": ("vfio",),
}
"""The kinds of devices that each class that comes with the driver may select."""

_TYPES = "no such overload"
_QUANTITIES = re.compile(r"[<>]=?\s*quantity\(")
_COMPARE = "operators cannot compare quantities: write `a.compareTo(b) > 0` for `a > b`"


@cache
def published() -> Mapping[str, Subject]:
    """Return a device of each kind that this driver publishes, with all attributes it may have."""
    capacity = {"memory": Quantity.parse("80Gi"), **dict.fromkeys(_CAPACITIES, Quantity.parse("1"))}

    def device(*attributes: Mapping[str, object]) -> Subject:
        values = {name: value for attribute in attributes for name, value in attribute.items()}
        return Subject(driver=DRIVER_NAME, attributes=values, capacity=capacity)

    return {
        "gpu": device(_WHOLE, _OF_GPUS),
        "share": device(_WHOLE, _OF_GPUS, _OF_SHARES),
        "mig": device(_WHOLE, _OF_MIG, _OF_SHARES),
        "vfio": Subject(
            driver=DRIVER_NAME,
            attributes=_VFIO,
            capacity={name: Quantity.parse("80Gi") for name in ("memory", "addressableMemory")},
        ),
    }


def refused(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what no API server accepts in the selectors of an object."""
    for path, _, expression in _selectors(value):
        try:
            Selector.of(expression)
        except NotCelError as error:
            yield _problem(path, f"this is not valid CEL, from {error} on")
        except NotUnderstoodError:
            continue
        else:
            if _QUANTITIES.search(expression):
                do = advice(_TYPES, expression, ()) or _COMPARE
                yield _problem(path, f"no API server accepts this: {do}")


def warnings(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield selectors that fail on every device of this driver, so that nothing is allocated."""
    for path, device_class, expression in _selectors(value):
        error = _failure(device_class, expression)
        if error and not _QUANTITIES.search(expression):
            what = f"this fails on each device of this driver: {_advised(error, expression)}"
            yield _problem(path, what)


def _advised(error: str, expression: str) -> str:
    do = advice(error, expression, published().values())
    return f"{error}; {do}" if do else error


def _failure(device_class: str, expression: str) -> str:
    """Return why a selector fails on all devices that a class may select; empty if it does not."""
    kinds = _KINDS_OF.get(device_class)
    if kinds is None and DRIVER_NAME not in expression:
        return ""
    failed = ""
    for kind in kinds or published():
        try:
            Selector.of(expression).selects(published()[kind])
        except EvaluationError as error:
            failed = failed or str(error)
        except NotUnderstoodError:
            return ""
        else:
            return ""
    return failed


def _selectors(value: Mapping[str, object]) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, DeviceClass, expression) of each; the DeviceClass is empty for its own."""
    if value.get("kind") == "DeviceClass":
        yield from _in(at(value, "spec"), ("spec",))
    for path, request in requests_of(value):
        yield from _in(request, path)


def _in(value: object, path: Path) -> Iterator[tuple[Path, str, str]]:
    for index, selector in enumerate(entries(value, "selectors")):
        expression = at(selector, "cel", "expression")
        if isinstance(expression, str):
            place = (*path, "selectors", index, "cel", "expression")
            yield place, text(value, "deviceClassName"), expression


def _problem(path: Path, what: str) -> Problem:
    return Problem(path=path, text=f"{dotted(path)}: {what}")
