"""Slices as templates of future nodes for autoscalers (aws/karpenter-provider-aws#9550).

In: the slices of a simulated node. Out: the same without the values that only a real node has, for
Cluster Autoscaler (`NodeInfo.LocalResourceSlices` of a cloud provider's TemplateNodeInfo), or in
the form of Karpenter's `InstanceType.DynamicResources`. An autoscaler compares a template with the
selectors of pending claims: with an invented value, it starts nodes that do not fit the claim, or
no node although one would fit. A missing attribute matches no selector, which is right, because its
value is not known yet. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from dra_driver.admin.inspect.slices import Object, as_list

Template = Literal["cluster-autoscaler", "karpenter"]
"""The autoscalers that a template can be for."""

_USUAL_NAME = "template"
"""Name of a template's node, which the autoscaler replaces with that of each new node."""

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
"""Attributes that have the same values on all nodes of a machine type: others depend on the card,
on its place in the machine, or on the node's image."""

SHARED = frozenset({"parentUUID", "nvlinkIsland"})
"""Attributes whose values differ by node, but are equal for the same devices on every node."""


def node_name_of(wanted: Template | None, machines: str) -> str:
    """Return the name of node and pool in a template: for Karpenter, that of the machines.

    Karpenter takes devices of different machine types for the same if pools and devices have equal
    names, and remembers whether they match a selector (1.15.0, allocator.go: matchKey).
    """
    return machines.lower().replace("_", "-") if wanted == "karpenter" else _USUAL_NAME


def template(
    wanted: Template, slices: Iterable[Object], keep: frozenset[str] = frozenset()
) -> Object:
    """Return the slices of a node as a template in the form that an autoscaler accepts."""
    if wanted == "karpenter":
        return dynamic_resources(slices, keep)
    return as_list(template_of(slices, keep))


def template_of(slices: Iterable[Object], keep: frozenset[str] = frozenset()) -> Iterator[Object]:
    """Yield the slices without the attributes that are known only on a real node.

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

    A binding names devices that will have the same value of an attribute, so that claims with
    `matchAttribute` fit although the template does not have the value.
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
