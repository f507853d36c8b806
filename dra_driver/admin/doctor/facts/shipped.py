"""What an install brings into the cluster: DeviceClasses, admission policies, permissions.

Classes and the policy of claim configs are made by the code that writes their manifests; a test
compares the rest with the files. A class is recognised by its name; a policy by its rules, because
an install may give it another name. White space in CEL expressions is ignored.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import yaml

from dra_driver.admin.admission.policy import policy_checks
from dra_driver.admin.api.objects import texts
from dra_driver.admin.classes import manifest
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import Object, mapping, objects, text
from dra_driver.kube.resource import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Call
from resource_nvidia_com.resource_names import GPU

EXTENDED: Final = (GPU, f"{GPU}.shared")
"""The resource names that an install brings classes of."""

_OF_TYPE = (
    f"device.driver == '{DRIVER_NAME}' && "
    f"device.attributes['{DRIVER_NAME}'].?type.orValue('') == '{{type}}'"
)
_UNDIVIDED = f"{_OF_TYPE} && !('replicas' in device.attributes['{DRIVER_NAME}'])"
_NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 (no secret)

OF_CLAIM_STATUS: Final[Mapping[str, Call]] = {
    f"{call.verb} {call.permission}": call
    for call in (
        Call(verb="patch", resource=RESOURCE_CLAIMS, subresource="status"),
        Call(
            verb="associated-node:patch",
            resource=RESOURCE_CLAIMS,
            subresource="driver",
            name=DRIVER_NAME,
        ),
    )
}
"""The permissions that are needed only for claims' status."""

PERMISSIONS: Final[Mapping[str, Call]] = {
    **OF_CLAIM_STATUS,
    **{
        f"{verb} {resource}": Call(verb=verb, resource=resource)
        for resource, verbs in {
            RESOURCE_CLAIMS: ("get",),
            RESOURCE_SLICES: ("list", "watch", "create", "update", "delete"),
            NODES: ("get", "list", "watch"),
            EVENTS: ("create",),
        }.items()
        for verb in verbs
    },
}
"""The permissions that the driver's ServiceAccount needs, by name."""


@cache
def device_classes() -> Mapping[str, Object]:
    """Return the specs of the DeviceClasses that an install brings, by name."""
    classes: dict[str, Object] = {
        name: {"selectors": [{"cel": {"expression": selector.format(type=kind)}}]}
        for name, selector, kind in (
            ("gpu.nvidia.com", _UNDIVIDED, "gpu"),
            ("mig.nvidia.com", _UNDIVIDED, "mig"),
            ("vfio.gpu.nvidia.com", _OF_TYPE, "vfio"),
        )
    }
    for shown in yaml.safe_load_all(manifest(dict.fromkeys(EXTENDED))):
        classes[shown["metadata"]["name"]] = shown["spec"]
    return classes


def class_difference(shipped: Object, stored: Object) -> str | None:
    """Return how a DeviceClass's spec differs from the shipped one; None if it does not."""
    wrong = []
    if _expressions(shipped) != _expressions(stored):
        wrong.append("its selectors differ")
    name, other = (text(spec, "extendedResourceName") for spec in (shipped, stored))
    if name != other:
        wrong.append(f"its extendedResourceName is {other or 'missing'}, not {name or 'unset'}")
    return " and ".join(wrong) or None


def config_policies(policies: Iterable[Object]) -> dict[str, bool]:
    """Return the policies of claim configs by name, and whether each has this version's rules.

    A policy that shares any rule counts, so that those of other versions are found, too.
    """
    rules = {_squeezed(validation.expression) for validation in policy_checks().validations}
    current = {}
    for policy in policies:
        there = _rules(policy)
        if there & rules:
            current[text(policy, "metadata", "name")] = there == rules
    return current


def own_node_policies(
    policies: Iterable[Object], plural: str = RESOURCE_SLICES.plural
) -> dict[str, frozenset[str]]:
    """Return the policies that restrict drivers to their own node, each with its users.

    Such a policy reads the node of the caller's token, and applies to the resource `plural`.
    """
    return {
        text(policy, "metadata", "name"): frozenset(_users(policy))
        for policy in policies
        if _is_about(policy, plural) and _NODE_OF_TOKEN in _all_text(policy)
    }


def without_names(policies: Iterable[Object]) -> frozenset[str]:
    """Return the policies that do not restrict the names and pools of slices to a node."""
    return frozenset(
        text(policy, "metadata", "name")
        for policy in policies
        if not all(field in _all_text(policy) for field in ("metadata.name", "pool.name"))
    )


def actions_of(policy: str, bindings: Iterable[Object]) -> frozenset[str]:
    """Return what a policy does on violations: Deny, Warn, Audit; nothing if not bound."""
    actions: set[str] = set()
    for binding in bindings:
        if text(binding, "spec", "policyName") == policy:
            actions.update(texts(binding, "spec", "validationActions"))
    return frozenset(actions)


def _is_about(policy: Object, plural: str) -> bool:
    rules = objects(policy, "spec", "matchConstraints", "resourceRules")
    named = [rule.get("resources") for rule in rules]
    return any(plural in kinds or "*" in kinds for kinds in named if isinstance(kinds, list))


def _users(policy: Object) -> Iterable[str]:
    """Yield the ServiceAccounts, as user names, that match conditions compare the caller with."""
    for condition in objects(policy, "spec", "matchConditions"):
        parts = text(condition, "expression").replace('"', "'").split("'")
        yield from (part for part in parts if part.startswith("system:serviceaccount:"))


def _all_text(policy: Object) -> str:
    spec = mapping(policy, "spec")
    every = (*objects(spec, "variables"), *objects(spec, "validations"))
    return "\n".join(text(rule, "expression") for rule in every)


def _rules(policy: Object) -> set[str]:
    every = objects(policy, "spec", "validations")
    return {_squeezed(text(rule, "expression")) for rule in every}


def _expressions(spec: Object) -> list[str]:
    return sorted(
        _squeezed(text(selector, "cel", "expression")) for selector in objects(spec, "selectors")
    )


def _squeezed(expression: str) -> str:
    return "".join(expression.split())
