"""Warnings about claims that need a capable card or a setting, but may not get it. Pure.

The scheduler does not read configs: a claim whose requests select no card may get the least capable
one, where Prepare may refuse a time-slice or a limit of MPS, every time. Both work on cards of the
Volta generation and newer (NVIDIA's MPS documentation; some Pascal cards are known to have no
time-slices). `cudaComputeCapability` is published for every device, also by NVIDIA's DRA driver.
"""

from collections.abc import Iterator, Mapping

from dra_driver.admin.validate.claim_fields import alternatives, requests_of
from dra_driver.kube.fields import at, entries, mapping, text
from resource_nvidia_com.printable import shown
from resource_nvidia_com.problems import Path, Problem, dotted

FACTS = ("cudaComputeCapability", "architecture", "productName", "uuid", "pciBusID")
"""Attributes that distinguish cards: a selector that reads one has chosen its cards."""

SELECTOR = (
    "device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('7.0.0')) >= 0"
)
ADVICE = f"select GPUs that do: {SELECTOR}"
CLASS = "gpu.nvidia.com"
CLASS_OF_MIG = "mig.nvidia.com"


def parts(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield requests for a part of a device: without `--consumable-shares` they get all of it."""
    for path, request in requests_of(value):
        where = (*path, "capacity", "requests")
        if at(request, *where[-2:]) and text(request, "deviceClassName") in (CLASS, CLASS_OF_MIG):
            what = (
                f"{dotted(where)}: claims get parts of devices only if the driver runs with "
                "--consumable-shares (chart value consumableShares); otherwise this request gets "
                "a whole device with at least that much"
            )
            yield Problem(path=where, text=what)
            for name in mapping(request, *where[-2:]):
                domain, slash, short = str(name).partition("/")
                if slash and domain == CLASS:
                    what = (
                        f"{dotted(where)}: before Kubernetes 1.38 no device has {shown(name)}, and "
                        f"later a request must not have {shown(short)}, too: write {shown(short)}"
                    )
                    yield Problem(path=(*where, name), text=what)


def unasked(devices: object) -> Iterator[tuple[Path, str]]:
    """Yield (path below `devices`, why) of requests that may get a card unfit for their config."""
    needs = [
        (what, entries(config, "requests"))
        for config in entries(devices, "config")
        if (what := _needed(at(config, "opaque"))) is not None
    ]
    for path, name, request in alternatives(devices):
        names = (name, name.partition("/")[0])
        of = (what for what, named in needs if not named or any(one in named for one in names))
        what = next(of, None)
        if what is not None and _takes_any_card(request):
            why = f"the config sets {what}, which some cards, such as the Tesla P4, do not support"
            yield path, f"{why}; {ADVICE}"


def _needed(opaque: object) -> str | None:
    """Return what a config needs that some cards cannot do; None for nothing."""
    if text(opaque, "driver") != CLASS or at(opaque, "parameters", "kind") != "GpuConfig":
        return None
    sharing = at(opaque, "parameters", "sharing")
    interval = at(sharing, "timeSlicingConfig", "interval")
    if interval is not None and interval != "Default":
        return f"the time-slice interval {interval}"
    return "MPS limits" if at(sharing, "mpsConfig") else None


def _takes_any_card(request: object) -> bool:
    """Return whether a request gets whole GPUs of any kind, and may change them."""
    if text(request, "deviceClassName") != CLASS or at(request, "adminAccess"):
        return False
    read = [text(entry, "cel", "expression") for entry in entries(request, "selectors")]
    return not any(fact in expression for fact in FACTS for expression in read)
