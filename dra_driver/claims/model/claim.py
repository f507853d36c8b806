"""ResourceClaims as this driver needs them, parsed from the JSON of the API.

In: the dict of a resource.k8s.io/v1 ResourceClaim. Out: frozen values that hold only what belongs
to this driver; those of other drivers in the same claim are left out (dra-driver-nvidia-gpu#1327).
Rules: KEP-4381 and the API reference of resource.k8s.io/v1.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NewType

from msgspec import Struct, field

from dra_driver.errors import ConfigError
from dra_driver.host.words import named
from dra_driver.kube.fields import at
from resource_nvidia_com.quantity import Quantity

ClaimUid = NewType("ClaimUid", str)

UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
"""What may become a file name and part of a CDI device name. Kubernetes' own UIDs are RFC 4122."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


def check_uid(uid: str) -> ClaimUid:
    """Return the claim UID if it is safe as a file name, else raise ConfigError."""
    if UID.fullmatch(uid) is None:
        raise ConfigError(
            f"claim UID {uid[:160]!r} is not a valid UID: it must have 1 to 128 letters, digits, "
            "'-', '_' and '.'"
        )
    return ClaimUid(uid)


class ClaimRef(Struct, frozen=True, kw_only=True):
    """A claim as the kubelet names it. State is keyed by `uid`, because names can be used again.

    The names may still be unknown for a claim that another driver prepared; both are empty then.
    """

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"of UID {self.uid}"


class ConfigSource(StrEnum):
    """Where an opaque config was written (status.allocation.devices.config[].source)."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class OpaqueConfig(Struct, frozen=True, kw_only=True):
    """One opaque config for this driver. No `requests` means all requests of the claim.

    `origin` tells people where the config was written.
    """

    source: ConfigSource
    requests: tuple[str, ...]
    parameters: object
    origin: str


class Result(Struct, frozen=True, kw_only=True):
    """One allocated device of this driver. `request` is `name` or `name/subrequest`.

    With a `share_id`, other claims or requests can have the same device. `consumed` is how much of
    each capacity is taken: memory in bytes, cores in percent, others as a number.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    consumed: Mapping[str, int] = field(default_factory=dict)

    @property
    def allocation_id(self) -> str:
        """What distinguishes this device from the claim's other devices."""
        return allocation_id(self.device, self.share_id)

    @property
    def base_request(self) -> str:
        """The request's name without a sub-request, as a pod's containers refer to it."""
        return self.request.partition("/")[0]

    @property
    def subrequest(self) -> str | None:
        """The sub-request that was chosen; None if the request has no sub-requests."""
        return self.request.partition("/")[2] or None


class ConsumerPod(Struct, frozen=True, kw_only=True):
    """A pod that the claim is reserved for (status.reservedFor)."""

    name: str
    uid: str


PodsOf = Callable[[Collection[ClaimUid]], Mapping[ClaimUid, Sequence[ConsumerPod]]]
"""Returns the pods that have claims now, as far as they are known."""


class PodName(Struct, frozen=True, kw_only=True, order=True):
    """A pod by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ConsumerGroup(Struct, frozen=True, kw_only=True):
    """A PodGroup that the claim is reserved for: every pod of the group may use it (KEP-5729).

    The group's pods have its name in `spec.schedulingGroup`. The claim does not name them, and the
    driver may not read pods.
    """

    name: str
    uid: str


class Claim(Struct, frozen=True, kw_only=True):
    """An allocated claim, reduced to what belongs to this driver.

    `pod_claim_name` is the pod's name for a claim that was made from a template; else empty. It
    comes from an annotation, which a tenant can write, so it is used only in paths within the
    claim's containers.
    """

    ref: ClaimRef
    results: tuple[Result, ...]
    configs: tuple[OpaqueConfig, ...]
    pods: tuple[ConsumerPod, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()
    pod_claim_name: str = ""


def is_label(text: str) -> bool:
    """Tell whether a text is a DNS label: at most 63 lower-case letters, digits and `-`."""
    return _LABEL.fullmatch(text) is not None


def uid_of(claim: Mapping[str, Any]) -> str | None:
    """Return the UID of a ResourceClaim object."""
    uid = at(claim, "metadata", "uid")
    return uid if isinstance(uid, str) else None


def parse_claim(claim: Mapping[str, Any], driver: str) -> Claim:
    """Parse a ResourceClaim for `driver`. Raises ConfigError if it is unallocated or malformed."""
    try:
        metadata = claim["metadata"]
        ref = ClaimRef(
            uid=ClaimUid(_text(metadata["uid"])),
            namespace=_text(metadata["namespace"]),
            name=_text(metadata["name"]),
        )
        status = claim.get("status") or {}
        allocation = status.get("allocation")
        if allocation is None:
            raise ConfigError(
                f"claim {ref} is not allocated: its devices were given back; delete and recreate "
                "the pod if this persists"
            )
        devices = allocation.get("devices") or {}
        spec = claim.get("spec") or {}
        results = tuple(
            _result(entry) for entry in devices.get("results") or () if entry["driver"] == driver
        )
        return Claim(
            ref=ref,
            results=results,
            configs=_configs(devices, spec, driver),
            pods=tuple(
                ConsumerPod(name=_text(pod["name"]), uid=_text(pod["uid"]))
                for pod in status.get("reservedFor") or ()
                if pod["resource"] == "pods"
            ),
            groups=tuple(
                ConsumerGroup(name=_text(group["name"]), uid=_text(group["uid"]))
                for group in status.get("reservedFor") or ()
                if is_pod_group(group)
            ),
            pod_claim_name=_pod_claim_name(metadata.get("annotations") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"what the API server sent is not a valid resource.k8s.io/v1 ResourceClaim: {error!r}; "
            "this driver needs Kubernetes 1.34 or newer"
        ) from error


def is_pod_group(user: Mapping[str, Any]) -> bool:
    """Tell whether a reference in status.reservedFor names a PodGroup."""
    return user.get("resource") == "podgroups" and user.get("apiGroup") == "scheduling.k8s.io"


def _pod_claim_name(annotations: Mapping[str, object]) -> str:
    """Return the pod's name for its claim; an empty text if it is missing or not a valid name."""
    name = annotations.get(_POD_CLAIM_NAME)
    return name if isinstance(name, str) and is_label(name) else ""


def _result(entry: Mapping[str, Any]) -> Result:
    share = entry.get("shareID")
    return Result(
        request=_text(entry["request"]),
        pool=_text(entry["pool"]),
        device=_text(entry["device"]),
        admin_access=bool(entry.get("adminAccess")),
        share_id=None if share is None else _text(share),
        consumed={
            name: Quantity.parse(_text(amount)).whole
            for name, amount in (entry.get("consumedCapacity") or {}).items()
        },
    )


def allocation_id(device: str, share_id: str | None) -> str:
    """Return what distinguishes a device within its claim, which can have two shares of it."""
    return device if share_id is None else f"{device}/{share_id}"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _configs(
    devices: Mapping[str, Any], spec: Mapping[str, Any], driver: str
) -> tuple[OpaqueConfig, ...]:
    """Return this driver's configs, those of classes first: later ones override earlier ones."""
    configs: dict[ConfigSource, list[OpaqueConfig]] = {source: [] for source in ConfigSource}
    written = _written(devices, spec)
    of_claim = 0
    for entry in devices.get("config") or ():
        source = _source(entry.get("source"))
        requests = tuple(map(_text, entry.get("requests") or ()))
        if source is ConfigSource.CLAIM:
            # The scheduler copies all configs of the claim in order, other drivers' too.
            index, requests = written[of_claim] if written else (of_claim, requests)
            origin = f"spec.devices.config[{index}] of the claim"
            of_claim += 1
        else:
            origin = f"config of the DeviceClass of request {named(requests) or '(all)'}"
        # An entry without `opaque` is of a kind from the future, so it may not be for this driver.
        opaque = entry.get("opaque")
        if opaque and opaque["driver"] == driver:
            config = OpaqueConfig(
                source=source,
                requests=requests,
                parameters=opaque.get("parameters"),
                origin=origin,
            )
            configs[source].append(config)
    return tuple(configs[ConfigSource.CLASS] + configs[ConfigSource.CLAIM])


def _written(
    devices: Mapping[str, Any], spec: Mapping[str, Any]
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the index in the spec, and the request names, of each of the claim's own configs.

    The scheduler of Kubernetes 1.37 leaves out configs of sub-requests that were not chosen, and
    names in a config for all requests. If spec and allocation disagree, nothing is returned: then
    only the allocation counts.
    """
    copied = [
        copy for copy in devices.get("config") or () if copy.get("source") == ConfigSource.CLAIM
    ]
    got = {name for result in devices.get("results") or () for name in _names(result["request"])}
    written = [
        (index, tuple(map(_text, config.get("requests") or ())), config)
        for index, config in enumerate((spec.get("devices") or {}).get("config") or ())
        if not config.get("requests") or got.intersection(config["requests"])
    ]
    pairs = list(zip(written, copied, strict=False))
    agree = len(written) == len(copied) and all(
        _driver(config) == _driver(copy) and (copy.get("requests") or list(names)) == list(names)
        for (_, names, config), copy in pairs
    )
    return [(index, names) for index, names, _ in written] if agree else []


def _names(request: str) -> tuple[str, str]:
    """Return the names by which a config can refer to a request that got a device."""
    return request, request.partition("/")[0]


def _driver(config: Mapping[str, Any]) -> object:
    return (config.get("opaque") or {}).get("driver")


def _source(value: object) -> ConfigSource:
    try:
        return ConfigSource(str(value))
    except ValueError as error:
        raise ConfigError(
            f"invalid config source: {value}: want {' or '.join(ConfigSource)}"
        ) from error
