"""The pods that are to be placed, with what they ask for and by which of the API's three ways.

In: the name of a load, a number of pods, and the profile of the smallest partition that the nodes
offer. Out: the objects to create. The pods of a load may differ; they take turns. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Made:
    claims: list[Object] = field(default_factory=list)
    templates: dict[str, Object] = field(default_factory=dict)


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
    made = _Made()
    turns = LOADS[load]
    asked = [turns[number % len(turns)] for number in range(count)]
    if profile is None and any(one.part for one in asked):
        raise ValueError(f"the load {load} asks for partitions, and the GPUs have none")
    pods = tuple(_pod(f"pod-{number}", one, profile, made) for number, one in enumerate(asked))
    return Workload(
        pods=pods,
        claims=tuple(made.claims),
        templates=tuple(made.templates.values()),
        claims_before=sum(one.by != "extended" for one in asked),
    )


def whole_gpus(load: str, count: int) -> int:
    """Return how many whole GPUs a load of `count` pods takes."""
    turns = LOADS[load]
    return sum(not turns[number % len(turns)].part for number in range(count))


def plain_pod(name: str) -> Object:
    """Return a pod that asks for nothing."""
    spec: Object = {"containers": [{"name": "main", "image": _IMAGE}], "restartPolicy": "Never"}
    return thing("Pod", name, spec=spec)


def _pod(name: str, asked: Asked, profile: str | None, made: _Made) -> Object:
    pod = plain_pod(name)
    spec: Object = pod["spec"]
    container: Object = spec["containers"][0]
    if asked.by == "extended":
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        return pod
    wanted = _claim_spec(profile if asked.part else None)
    if asked.by == "claim":
        made.claims.append(thing("ResourceClaim", name, spec=wanted))
        source = {"resourceClaimName": name}
    else:
        template = "mig" if asked.part else "gpu"
        made.templates[template] = thing("ResourceClaimTemplate", template, spec={"spec": wanted})
        source = {"resourceClaimTemplateName": template}
    spec["resourceClaims"] = [{"name": "gpu", **source}]
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def _claim_spec(profile: str | None) -> Object:
    wanted = claim("")
    if profile is not None:
        wanted = claim("", device_class="mig.nvidia.com", selectors=mig_profile(profile))
    spec: Object = wanted["spec"]
    return spec
