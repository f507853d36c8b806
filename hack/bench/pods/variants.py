"""Pods that differ only in what they ask for.

In: the name of a variant. Out: its ResourceClaimTemplate, if it has one, and its pods. Each pod has
a claim of its own, made from the template by the controller manager, as in most workloads. Pure.
"""

from collections.abc import Mapping

from testbed.api import Object, thing
from testbed.claims import claim, gpu_config, mig_profile, opaque
from testbed.driver import DRIVER_NAME
from testbed.pods import STAY, container

BASELINE = "none"
"""The variant that asks for nothing; the others are compared with it."""

EXTENDED = "extended"
"""The variant that asks for nvidia.com/gpu; the scheduler makes its claims."""

PLUGIN = "device-plugin"
"""The same, served by NVIDIA's device plugin instead of this driver."""

MPS = "mps"
MIG = "mig"

_SLICE = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
_LIMITS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}


def _devices(
    config: Object | None = None, device_class: str = DRIVER_NAME, **request: object
) -> Object:
    spec: Object = claim("", device_class=device_class, **request)["spec"]
    if config is not None:
        spec["devices"]["config"] = opaque(config)
    return spec


CLAIMS: Mapping[str, Object] = {
    "whole": _devices(),
    "time-slicing": _devices(_SLICE),
    MPS: _devices(gpu_config(strategy="MPS", mpsConfig=_LIMITS)),
    MIG: _devices(device_class="mig.nvidia.com", selectors=mig_profile("1g.10gb")),
}
"""The specs of claims, by the variant that has them."""

VARIANTS = (BASELINE, "whole", EXTENDED, "time-slicing", MPS, MIG)
EVERY_VARIANT = (*VARIANTS, PLUGIN)


def template(variant: str) -> Object | None:
    """Return the template of a variant's claims, which has the variant's name."""
    if variant not in CLAIMS:
        return None
    return thing("ResourceClaimTemplate", variant, spec={"spec": CLAIMS[variant]})


def pod(variant: str, name: str, script: str = STAY) -> Object:
    """Return a pod that runs a script, by default one that waits."""
    spec: Object = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never"}
    resources: Object = {}
    if variant in CLAIMS:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": variant}]
        resources = {"claims": [{"name": "gpu"}]}
    elif variant in {EXTENDED, PLUGIN}:
        resources = {"limits": {"nvidia.com/gpu": "1"}}
    spec["containers"] = [container("ctr", resources, script)]
    return thing("Pod", name, spec=spec)


def order(variants: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the variants as they take turns in a round: each begins once in so many rounds."""
    first = number % len(variants)
    return variants[first:] + variants[:first]
