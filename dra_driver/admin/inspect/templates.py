"""Slices as templates of future nodes for autoscalers (aws/karpenter-provider-aws#9550).

In: the slices of a simulated node. Out: the same without what only a real node can tell, for
Cluster Autoscaler (`NodeInfo.LocalResourceSlices` of a cloud provider's TemplateNodeInfo), or as
Karpenter's `InstanceType.DynamicResources` has it. An autoscaler compares a template with the
selectors of pending claims: with a made-up value, it starts nodes that do not fit the claim, or no
node although one would fit. A missing attribute matches no selector, which is right, because nobody
knows it yet. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from dra_driver.admin.inspect.slices import Object, as_list

Template = Literal["cluster-autoscaler", "karpenter"]
"""The autoscalers that a template can be for."""

_USUAL_NAME = "template"
"""Name of the node that a template is for; the autoscaler puts that of each new node there."""

OF_THE_TYPE = frozenset(
    {
        "type",
        "productName",
        "brand",
        "architecture",
        "cudaComputeCapability",
        "profile",
        "resourceName",
        "replicas",
        "sharedAs",
    }
)
"""Attributes that every node of a machine type has with the same values: the others are the card's
own, its place in the machine, or what the node's image brings."""

SHARED = frozenset({"parentUUID", "nvlinkIsland"})
"""Attributes whose value is the node's, and is the same for the same devices on every node."""


def node_name_of(wanted: Template | None, machines: str) -> str:
    """Return the name of node and pool in a template: for Karpenter, that of the machines.

    It mistakes devices of different machine types for the same if pools and devices have equal
    names, and remembers whether they match a selector (1.15.0, allocator.go: matchKey).
    """
    return machines.lower().replace("_", "-") if wanted == "karpenter" else _USUAL_NAME


def template(
    wanted: Template, slices: Iterable[Object], keep: frozenset[str] = frozenset()
) -> Object:
    """Return the slices of a node as the template that an autoscaler takes."""
    if wanted == "karpenter":
        return dynamic_resources(slices, keep)
    return as_list(template_of(slices, keep))


def template_of(slices: Iterable[Object], keep: frozenset[str] = frozenset()) -> Iterator[Object]:
    """Yield the slices without the attributes that only a real node can tell.

    Args:
        slices: of one node.
        keep: attributes that are known nevertheless.
    """
    for slice_ in slices:
        spec = slice_["spec"]
        if "devices" in spec:
            devices = [_without_node(device, keep) for device in spec["devices"]]
            spec = {**spec, "devices": devices}
        yield {**slice_, "spec": spec}


def dynamic_resources(slices: Iterable[Object], keep: frozenset[str] = frozenset()) -> Object:
    """Return Karpenter's `DynamicResources` of an instance type: templates and bindings.

    A binding names devices that will have the same value of an attribute: so claims with
    `matchAttribute` are served although the template lacks the value.
    """
    slices = list(slices)
    return {
        "resourceSliceTemplates": [
            {
                "driver": spec["driver"],
                "pool": {"name": spec["pool"]["name"]},
                **{key: spec[key] for key in ("sharedCounters", "devices") if key in spec},
            }
            for spec in (slice_["spec"] for slice_ in template_of(slices, keep))
        ],
        "attributeBindings": list(_bindings(slices)),
    }


def _without_node(device: Object, keep: frozenset[str]) -> Object:
    kept = OF_THE_TYPE | keep
    attributes = {name: value for name, value in device["attributes"].items() if name in kept}
    return {**device, "attributes": attributes}


def _bindings(slices: Iterable[Object]) -> Iterator[Object]:
    together: dict[tuple[str, str, str], list[Object]] = defaultdict(list)
    for slice_ in slices:
        spec = slice_["spec"]
        for device in spec.get("devices", ()):
            for name in sorted(SHARED & device["attributes"].keys()):
                place = {
                    "driver": spec["driver"],
                    "pool": spec["pool"]["name"],
                    "device": device["name"],
                }
                value = device["attributes"][name]["string"]
                together[spec["driver"], name, value].append(place)
    for (driver, name, _value), devices in together.items():
        if len(devices) > 1:  # Karpenter ignores others
            qualified = name if "/" in name else f"{driver}/{name}"
            yield {"attribute": qualified, "devices": devices}
