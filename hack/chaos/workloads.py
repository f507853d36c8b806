"""The workloads: claims and pods of every kind, and what each must see at the end.

Also the share configs between which a campaign switches. Each of them divides all GPUs, so that a
workload with a share always has a place; claims for whole GPUs and for MIG devices get theirs, too.
Shares serve a name that whole GPUs do not serve.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml
from testbed.api import Object, thing
from testbed.claims import claim, gpu_config, mig_profile, opaque
from testbed.driver import DRIVER_NAME
from testbed.pods import container

NAMESPACE = "chaos"
MIG_CLASS = "mig.nvidia.com"
SHARE_CLASS = "gpu.shared.resource.nvidia.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of workload: its claims, and how many pods use them together."""

    claims: Mapping[str, Object]
    """Specs of its claims, by their names in pods."""

    pods: int = 1
    gpus: int = 1
    """The most GPUs that others cannot get because of it."""

    whole: int = 0
    """Whole GPUs that each pod sees."""

    migs: int = 0
    """MIG devices that each pod sees."""

    domains: int = 0
    """MPS daemons that serve it."""

    is_share: bool = False
    """Whether it has a share of a GPU, and others have more of it; then `whole` counts that GPU."""

    compute_mode: str = "Default"
    time_slice: str = "Default"


def _claim(
    *,
    count: int = 1,
    profile: str = "",
    config: Object | None = None,
    device_class: str = DRIVER_NAME,
) -> Object:
    selectors = {"selectors": mig_profile(profile)} if profile else {}
    device_class = MIG_CLASS if profile else device_class
    spec: Object = claim("", device_class=device_class, count=count, **selectors)["spec"]
    if count > 1 and profile:
        spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER_NAME}/parentUUID"}]
    if config:
        spec["devices"]["config"] = opaque(config)
    return spec


_LIMITS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"}
_SLICE = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
_MPS = gpu_config(strategy="MPS", mpsConfig=_LIMITS)
_MIG_MPS = _MPS | {"kind": "MigDeviceConfig"}

_SHARE = _claim(device_class=SHARE_CLASS)

KINDS: Mapping[str, Kind] = {
    "whole": Kind(claims={"gpu": _claim()}, whole=1),
    "two": Kind(claims={"gpus": _claim(count=2)}, gpus=2, whole=2),
    "sliced": Kind(claims={"gpu": _claim(config=_SLICE)}, pods=2, whole=1, time_slice="Long"),
    "mps": Kind(
        claims={"gpu": _claim(config=_MPS)},
        pods=2,
        whole=1,
        domains=1,
        compute_mode="Exclusive_Process",
    ),
    "mig": Kind(claims={"migs": _claim(count=3, profile="1g.10gb")}, migs=3),
    "mig-mps": Kind(
        claims={"mig": _claim(profile="2g.20gb", config=_MIG_MPS)},
        pods=2,
        migs=1,
        domains=1,
    ),
    "mixed": Kind(
        claims={"gpu": _claim(), "mig": _claim(profile="3g.40gb")},
        gpus=2,
        whole=1,
        migs=1,
    ),
    "share": Kind(claims={"share": _SHARE}, whole=1, is_share=True),
    "share-pair": Kind(claims={"share": _SHARE}, pods=2, whole=1, is_share=True),
}
"""Every kind of device and of sharing, and mixtures."""


def kind_of(workload: str) -> Kind:
    """The kind of a workload by its name, such as `mig-mps-12`."""
    return KINDS[workload.rpartition("-")[0]]


def pods_of(workload: str) -> list[str]:
    """The names of a workload's pods."""
    return [f"{workload}-{letter}" for letter in "abcd"[: kind_of(workload).pods]]


def claims_of(workload: str) -> list[str]:
    """The names of a workload's claims."""
    return [f"{workload}-{name}" for name in kind_of(workload).claims]


def objects(workload: str) -> list[Object]:
    """The objects of a workload: its claims, then its pods."""
    specs = zip(claims_of(workload), kind_of(workload).claims.values(), strict=True)
    made = [thing("ResourceClaim", name, spec=spec) for name, spec in specs]
    return made + [_pod(pod, *claims_of(workload)) for pod in pods_of(workload)]


def _pod(name: str, *claims: str) -> Object:
    """Return a pod of one container with these claims, which ends at once when it is deleted."""
    entries = [
        {"name": f"c{number}", "resourceClaimName": one} for number, one in enumerate(claims)
    ]
    resources: Object = {"claims": [{"name": entry["name"]} for entry in entries]}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Always",
        "resourceClaims": entries,
        "containers": [container("ctr", resources)],
    }
    return thing("Pod", name, spec=spec)


# Share configs

_RESOURCE = "nvidia.com/gpu"
_COUNTS: Mapping[str, tuple[str, int]] = {"mps": ("mps", 10), "turns": ("timeSlicing", 4)}
_MORE: Mapping[str, Object] = {"mps": {}, "turns": {"memory": "equal"}}
_SHARE_NAME = re.compile(r"^gpu-\d+-single-share-\d+-of-(?P<count>\d+)$")

DIVISIONS = tuple(_COUNTS)
"""Their names, that of the first config first."""

MPS = "mps"
"""The one whose shares are served by MPS."""


def config(division: str) -> str:
    """The share config, as a file's text."""
    kind, count = _COUNTS[division]
    sharing: Object = {
        "renameByDefault": True,
        "failRequestsGreaterThanOne": True,
        "resources": [{"name": _RESOURCE, "replicas": count, **_MORE[division]}],
    }
    flags = {"plugin": {"sharedDevicesAllocationPolicy": "packed"}}
    return yaml.safe_dump({"version": "v1", "flags": flags, "sharing": {kind: sharing}})


def division_of(device: str) -> str | None:
    """The division in which a device of this name is a share; None if it is no share."""
    match = _SHARE_NAME.match(device)
    if match is None:
        return None
    return next(name for name, (_, count) in _COUNTS.items() if count == int(match["count"]))
