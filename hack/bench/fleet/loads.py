"""The pods to be placed, and what they request.

In: the name of a load, a number of pods, and the profile of the smallest partition that the nodes
offer. Out: the objects to create. Pure.
"""

from dataclasses import dataclass

from testbed.api import Object, thing
from testbed.claims import claim, mig_profile

from dra_driver.devices.model import Inventory

NAMESPACE = "fleet"
_IMAGE = "registry.local/never-pulled:1"

WHOLE, EXTENDED, PART = "whole", "whole-extended", "1g"
LOADS = (WHOLE, EXTENDED, PART)
"""A whole GPU by a claim that was made beforehand; by nvidia.com/gpu, for which the scheduler makes
the claim as it places the pod; and the smallest partition by a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The objects of a load."""

    pods: tuple[Object, ...]
    claims: tuple[Object, ...]


def smallest_profile(inventory: Inventory) -> str | None:
    """Return the name of the smallest partition of the GPUs; None if they have no MIG."""
    profiles = [
        profile
        for gpu in inventory.gpus
        if gpu.mig is not None
        for profile in gpu.mig.profiles
        if "+" not in profile.name
    ]
    if not profiles:
        return None
    return min(profiles, key=lambda profile: (profile.compute_slices, profile.memory_bytes)).name


def workload(load: str, count: int, profile: str | None) -> Workload:
    """Return the objects of a load of `count` pods; a load of partitions asks for a profile."""
    names = [f"pod-{number}" for number in range(count)]
    if load == EXTENDED:
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        return Workload(pods=tuple(pod(name, limits) for name in names), claims=())
    asked: Object = {}
    if load == PART:
        asked = {"device_class": "mig.nvidia.com", "selectors": mig_profile(str(profile))}
    return Workload(
        pods=tuple(
            pod(
                name,
                {"claims": [{"name": "gpu"}]},
                resourceClaims=[{"name": "gpu", "resourceClaimName": name}],
            )
            for name in names
        ),
        claims=tuple(claim(name, **asked) for name in names),
    )


def pod(name: str, resources: Object, **spec: object) -> Object:
    """Return a pod whose container has these resources."""
    container = {"name": "main", "image": _IMAGE, "resources": resources}
    return thing("Pod", name, spec={"containers": [container], "restartPolicy": "Never", **spec})
