"""The pods that are to be placed, with what they ask for and by which of the API's three ways.

In: the name of a load, a number of pods, and the profile of the smallest partition that the nodes
offer. Out: the objects to create. The pods of a load may differ; they take turns. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.api import Object, thing
from testbed.claims import claim, mig_profile

from dra_driver.devices.model import Inventory

NAMESPACE = "fleet"
_IMAGE = "registry.local/never-pulled:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one pod asks for: `part`, the smallest partition and not a whole GPU; and how."""

    part: bool = False
    by: str = "claim"
    """`claim`: one of its own, made beforehand; `template`; `extended`: nvidia.com/gpu."""


LOADS: Mapping[str, tuple[Asked, ...]] = {
    "whole": (Asked(),),
    "whole-template": (Asked(by="template"),),
    "whole-extended": (Asked(by="extended"),),
    "1g": (Asked(part=True),),
    "mixed": (
        Asked(by="extended"),
        Asked(part=True, by="template"),
        Asked(by="claim"),
        Asked(part=True, by="claim"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The objects of a load, and how many claims there will be before anything is placed.

    Claims for extended resources are the scheduler's own, made as it places the pod.
    """

    pods: tuple[Object, ...]
    claims: tuple[Object, ...]
    templates: tuple[Object, ...]
    claims_before: int


def smallest_profile(inventory: Inventory) -> str | None:
    """Return the name of the smallest partition of the GPUs; None when they know no MIG."""
    profiles = [
        profile
        for gpu in inventory.gpus
        if gpu.mig is not None
        for profile in gpu.mig.profiles
        if "+" not in profile.name
    ]
    if not profiles:
        return None
    return min(profiles, key=lambda one: (one.compute_slices, one.memory_bytes)).name


def workload(load: str, count: int, profile: str | None) -> Workload:
    """Return the objects of a load of `count` pods.

    Raises ValueError if the load asks for partitions, and `profile` is None.
    """
    turns = LOADS[load]
    asked = [turns[number % len(turns)] for number in range(count)]
    if profile is None and any(one.part for one in asked):
        raise ValueError(f"the load {load} asks for partitions, and the GPUs have none")
    named = {f"pod-{number}": wish for number, wish in enumerate(asked)}
    claims = (name for name, wish in named.items() if wish.by == "claim")
    templates = dict.fromkeys(wish for wish in asked if wish.by == "template")
    return Workload(
        pods=tuple(_pod(name, wish) for name, wish in named.items()),
        claims=tuple(
            thing("ResourceClaim", name, spec=_claim_spec(named[name], profile)) for name in claims
        ),
        templates=tuple(
            thing("ResourceClaimTemplate", _kind(wish), spec={"spec": _claim_spec(wish, profile)})
            for wish in templates
        ),
        claims_before=sum(wish.by != "extended" for wish in asked),
    )


def whole_gpus(load: str, count: int) -> int:
    """Return how many whole GPUs a load of `count` pods takes."""
    turns = LOADS[load]
    return sum(not turns[number % len(turns)].part for number in range(count))


def plain_pod(name: str) -> Object:
    """Return a pod that asks for nothing."""
    spec: Object = {"containers": [{"name": "main", "image": _IMAGE}], "restartPolicy": "Never"}
    return thing("Pod", name, spec=spec)


def _pod(name: str, wish: Asked) -> Object:
    pod = plain_pod(name)
    spec: Object = pod["spec"]
    container: Object = spec["containers"][0]
    if wish.by == "extended":
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        return pod
    own, template = {"resourceClaimName": name}, {"resourceClaimTemplateName": _kind(wish)}
    spec["resourceClaims"] = [{"name": "gpu", **(own if wish.by == "claim" else template)}]
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def _kind(wish: Asked) -> str:
    """What a template, and the DeviceClass that it asks for, are called after."""
    return "mig" if wish.part else "gpu"


def _claim_spec(wish: Asked, profile: str | None) -> Object:
    selectors = {"selectors": mig_profile(profile)} if wish.part and profile else {}
    spec: Object = claim("", device_class=f"{_kind(wish)}.nvidia.com", **selectors)["spec"]
    return spec
