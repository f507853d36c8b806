"""ResourceClaims as this driver needs them, parsed from the API's JSON, and what it answers.

In: the dict of a resource.k8s.io/v1 ResourceClaim. Out: frozen values that hold only what belongs
to this driver; results and configs of other drivers are left out (a claim may mix drivers).
Rules: KEP-4381 and the API reference of resource.k8s.io/v1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

ClaimUid = NewType("ClaimUid", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A claim as the kubelet names it. State is keyed by `uid`; names can be used again."""

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ConfigSource(StrEnum):
    """Where an opaque config was written (status.allocation.devices.config[].source)."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """One opaque config for this driver. No `requests` means all requests of the claim."""

    source: ConfigSource
    requests: tuple[str, ...]
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One allocated device of this driver. `request` is `name` or `name/subrequest`."""

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPod:
    """A pod that the claim is reserved for (status.reservedFor)."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An allocated claim, reduced to what belongs to this driver."""

    ref: ClaimRef
    results: tuple[Result, ...]
    configs: tuple[OpaqueConfig, ...]
    pods: tuple[ConsumerPod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of the answer to NodePrepareResources (k8s.io/kubelet dra/v1 Device).

    `request_names` hold no subrequest suffix; the first CDI id is unique to the device, because the
    kubelet takes it as the device's id in pod status.
    """

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None
