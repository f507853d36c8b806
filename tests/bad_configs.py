"""Configs that must be refused, each with the error its author gets to read.

The same table is held against the models, `dra-driver validate`, Prepare and the admission policy.
"""

import json
import re
from dataclasses import dataclass

from resource_nvidia_com.decode import keep_duplicates

VERSION = "resource.nvidia.com/v1beta1"
ALLOWED_SHARING = "allowed here: strategy, timeSlicingConfig, mpsConfig"
ALLOWED_MPS = (
    "allowed here: defaultActiveThreadPercentage, defaultPinnedDeviceMemoryLimit, "
    "defaultPerDevicePinnedMemoryLimit, multiUser"
)
KINDS = "one of GpuConfig, MigDeviceConfig, VfioDeviceConfig"
STRATEGIES = "supported GPU sharing strategies: TimeSlicing, MPS"
INTERVALS = "supported time-slice intervals: Default, Short, Medium, Long"
MPS = "sharing.mpsConfig"
PERCENT = f"{MPS}.defaultActiveThreadPercentage"
LIMIT = f"{MPS}.defaultPinnedDeviceMemoryLimit"
LIMITS = f"{MPS}.defaultPerDevicePinnedMemoryLimit"
NO_QUANTITY = "is not a quantity: write for example 512Mi, 10Gi or 2G"
DEVICE = "want the UUID of a device (GPU-… or MIG-…) or its index (0 to 31)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadConfig:
    """Parameters as JSON text, and the error without the place where they stand."""

    name: str
    json: str
    error: str
    in_policy: bool = True
    """Whether the API server can see it too."""

    @property
    def parameters(self) -> object:
        """The parameters as the driver reads them."""
        return json.loads(self.json, object_pairs_hook=keep_duplicates)

    @property
    def error_of_policy(self) -> str:
        """The error without what CEL cannot find out: what was meant."""
        return re.sub(r'did you mean "[^"]*"\? ', "", self.error)


def config(kind: str = "GpuConfig", **fields: object) -> str:
    return json.dumps({"apiVersion": VERSION, "kind": kind, **fields})


def gpu(**sharing: object) -> str:
    return config(sharing=sharing)


def slicing(settings: object) -> str:
    return gpu(strategy="TimeSlicing", timeSlicingConfig=settings)


def mps(**settings: object) -> str:
    return gpu(strategy="MPS", mpsConfig=settings)


def limit(value: object) -> str:
    return mps(defaultPinnedDeviceMemoryLimit=value)


def limits(value: object) -> str:
    return mps(defaultPerDevicePinnedMemoryLimit=value)


_ROOT = [
    ("no-version", '{"kind": "GpuConfig"}', f'missing field "apiVersion": want {VERSION}'),
    (
        "other-version",
        '{"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}',
        f'unknown apiVersion "resource.nvidia.com/v1": want {VERSION}',
    ),
    (
        "other-group",
        '{"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"}',
        f'unknown apiVersion "gpu.nvidia.com/v1beta1": want {VERSION}',
    ),
    (
        "version-is-a-number",
        '{"apiVersion": 1, "kind": "GpuConfig"}',
        f"unknown apiVersion 1: want {VERSION}",
    ),
    ("no-kind", f'{{"apiVersion": "{VERSION}"}}', f'missing field "kind": {KINDS}'),
    ("empty-kind", config(""), f'missing field "kind": {KINDS}'),
    (
        "misspelt-kind",
        config("GPUConfig"),
        f'unknown kind "GPUConfig": did you mean "GpuConfig"? {KINDS}',
    ),
    ("kind-of-another-driver", config("Pod"), f'unknown kind "Pod": {KINDS}'),
    (
        "kind-is-a-list",
        f'{{"apiVersion": "{VERSION}", "kind": []}}',
        f"unknown kind a list: {KINDS}",
    ),
    (
        "unknown-field",
        config(share={}),
        'unknown field "share": allowed here: apiVersion, kind, sharing',
    ),
    (
        "python-name",
        config(api_version=VERSION),
        (
            'unknown field "api_version": did you mean "apiVersion"? '
            "allowed here: apiVersion, kind, sharing"
        ),
    ),
    ("sharing-is-a-text", config(sharing="MPS"), 'sharing: want a JSON object, got "MPS"'),
    ("sharing-is-a-list", config(sharing=["MPS"]), "sharing: want a JSON object, got a list"),
    ("no-strategy", gpu(), 'missing field "sharing.strategy": one of TimeSlicing, MPS'),
    (
        "misspelt-strategy-field",
        gpu(stratgy="MPS"),
        (
            'missing field "sharing.strategy": one of TimeSlicing, MPS; '
            f'unknown field "sharing.stratgy": did you mean "strategy"? {ALLOWED_SHARING}'
        ),
    ),
    (
        "unknown-strategy",
        gpu(strategy="Exclusive"),
        f"sharing.strategy: unknown GPU sharing strategy: Exclusive, {STRATEGIES}",
    ),
    (
        "strategy-in-lower-case",
        gpu(strategy="mps"),
        f"sharing.strategy: unknown GPU sharing strategy: mps, {STRATEGIES}",
    ),
    (
        "empty-strategy",
        gpu(strategy=""),
        f"sharing.strategy: unknown GPU sharing strategy: , {STRATEGIES}",
    ),
    (
        "strategy-of-two-lines",
        gpu(strategy="M\nPS"),
        f"sharing.strategy: unknown GPU sharing strategy: M\\nPS, {STRATEGIES}",
    ),
    (
        "endless-strategy",
        gpu(strategy="x" * 5000),
        f"sharing.strategy: unknown GPU sharing strategy: {'x' * 80}…, {STRATEGIES}",
    ),
    (
        "no-strategy-but-null",
        gpu(strategy=None),
        "sharing.strategy: want one of TimeSlicing, MPS, got null",
    ),
    (
        "settings-of-the-other-strategy-1",
        gpu(strategy="TimeSlicing", mpsConfig={}),
        "sharing: cannot use MpsConfig with the 'TimeSlicing' strategy",
    ),
    (
        "settings-of-the-other-strategy-2",
        gpu(strategy="MPS", timeSlicingConfig={"interval": "Short"}),
        "sharing: cannot use TimeSlicingConfig with the 'MPS' strategy",
    ),
]

_TIME_SLICING = [
    (
        "unknown-interval",
        slicing({"interval": "Forever"}),
        "sharing.timeSlicingConfig.interval: unknown time-slice interval: Forever, " + INTERVALS,
    ),
    (
        "empty-interval",
        slicing({"interval": ""}),
        f"sharing.timeSlicingConfig.interval: unknown time-slice interval: , {INTERVALS}",
    ),
    (
        "interval-is-a-number",
        slicing({"interval": 2}),
        "sharing.timeSlicingConfig.interval: want one of Default, Short, Medium, Long, got 2",
    ),
    (
        "misspelt-interval-field",
        slicing({"intervall": "Long"}),
        (
            'unknown field "sharing.timeSlicingConfig.intervall": did you mean "interval"? '
            "allowed here: interval"
        ),
    ),
    (
        "time-slicing-settings-are-a-text",
        slicing("Long"),
        'sharing.timeSlicingConfig: want a JSON object, got "Long"',
    ),
]

_MPS = [
    (
        "mps-settings-are-a-number",
        gpu(strategy="MPS", mpsConfig=50),
        f"{MPS}: want a JSON object, got 50",
    ),
    (
        "negative-percentage",
        mps(defaultActiveThreadPercentage=-1),
        f"{PERCENT}: active thread percentage must not be negative",
    ),
    (
        "percentage-over-100",
        mps(defaultActiveThreadPercentage=101),
        f"{PERCENT}: active thread percentage must not be greater than 100",
    ),
    (
        "percentage-is-a-text",
        mps(defaultActiveThreadPercentage="50"),
        f'{PERCENT}: want a whole number, got "50"',
    ),
    (
        "percentage-is-a-fraction",
        mps(defaultActiveThreadPercentage=12.5),
        f"{PERCENT}: want a whole number, got 12.5",
    ),
    (
        "percentage-is-a-flag",
        mps(defaultActiveThreadPercentage=True),
        f"{PERCENT}: want a whole number, got true",
    ),
    ("flag-is-a-text", mps(multiUser="yes"), f'{MPS}.multiUser: want true or false, got "yes"'),
    ("flag-is-a-number", mps(multiUser=1), f"{MPS}.multiUser: want true or false, got 1"),
    (
        "misspelt-flag",
        mps(multiuser=True),
        f'unknown field "{MPS}.multiuser": did you mean "multiUser"? {ALLOWED_MPS}',
    ),
    ("limit-is-no-quantity", limit("lots"), f'{LIMIT}: "lots" {NO_QUANTITY}'),
    ("limit-is-empty", limit(""), f'{LIMIT}: "" {NO_QUANTITY}'),
    ("limit-with-bytes", limit("10GiB"), f'{LIMIT}: "10GiB" {NO_QUANTITY}'),
    ("limit-with-a-blank", limit("10 Gi"), f'{LIMIT}: "10 Gi" {NO_QUANTITY}'),
    ("limit-without-digits", limit("Gi"), f'{LIMIT}: "Gi" {NO_QUANTITY}'),
    (
        "limit-with-an-endless-exponent",
        limit("1e999999999"),
        f'{LIMIT}: "1e999999999" {NO_QUANTITY}',
    ),
    ("limit-is-endless", limit("1" * 65), f'{LIMIT}: "{"1" * 65}" {NO_QUANTITY}'),
    ("limit-is-a-flag", limit(True), f"{LIMIT}: want a quantity such as 10Gi, got true"),
    ("limit-is-a-list", limit(["1Gi"]), f"{LIMIT}: want a quantity such as 10Gi, got a list"),
    (
        "limit-under-1-mebibyte",
        limit("1M"),
        f"{LIMIT}: invalid limit: default value set too low: 1M: want at least 1Mi",
    ),
    (
        "limit-of-nothing",
        limit(0),
        f"{LIMIT}: invalid limit: default value set too low: 0: want at least 1Mi",
    ),
    (
        "negative-limit",
        limit("-10Gi"),
        f"{LIMIT}: invalid limit: default value set too low: -10Gi: want at least 1Mi",
    ),
    (
        "limit-in-gigabytes-without-unit",
        limit("10"),
        f"{LIMIT}: invalid limit: default value set too low: 10: want at least 1Mi",
    ),
    (
        "limits-are-one-limit",
        limits("10Gi"),
        f'{LIMITS}: want a JSON object of device and limit, got "10Gi"',
    ),
    (
        "limit-of-a-name",
        limits({"gpu-0": "10Gi"}),
        f"{LIMITS}.gpu-0: invalid device: unable to parse key as an integer: gpu-0: {DEVICE}",
    ),
    (
        "limit-of-a-negative-index",
        limits({"-1": "10Gi"}),
        f"{LIMITS}.-1: invalid device: invalid device index: -1: want 0 to 31",
    ),
    (
        "limit-of-a-large-index",
        limits({"32": "10Gi"}),
        f"{LIMITS}.32: invalid device: invalid device index: 32: want 0 to 31",
    ),
    (
        "index-that-could-stand-twice",
        limits({"00": "10Gi"}),
        f"{LIMITS}.00: invalid device: invalid device index: 00: want 0 to 31",
    ),
    (
        "one-limit-too-low",
        limits({"0": "1k", "1": "1Gi"}),
        f"{LIMITS}.0: invalid limit: value set too low: 0: 1k: want at least 1Mi",
    ),
    ("one-limit-is-no-quantity", limits({"3": "half"}), f'{LIMITS}.3: "half" {NO_QUANTITY}'),
    (
        "one-limit-is-null",
        limits({"0": None}),
        f"{LIMITS}.0: want a quantity such as 10Gi, got null",
    ),
    (
        "two-mistakes-at-once",
        mps(defaultActiveThreadPercentage=200, multiUser="no"),
        (
            f"{PERCENT}: active thread percentage must not be greater than 100; "
            f'{MPS}.multiUser: want true or false, got "no"'
        ),
    ),
]

_OTHER_KINDS = [
    (
        "time-slice-of-a-mig-device",
        config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
        'unknown field "sharing.timeSlicingConfig": allowed here: strategy, mpsConfig',
    ),
    (
        "mig-device-with-settings-of-the-other-strategy",
        config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
        "sharing: cannot use MpsConfig with the 'TimeSlicing' strategy",
    ),
    (
        "mig-device-with-a-bad-limit",
        config(
            "MigDeviceConfig",
            sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1B"}},
        ),
        f'{LIMIT}: "1B" {NO_QUANTITY}',
    ),
    (
        "vfio",
        config("VfioDeviceConfig"),
        (
            "VfioDeviceConfig is not supported: this driver gives GPUs to containers, not to "
            "virtual machines; remove that config"
        ),
    ),
    (
        "vfio-with-an-unknown-policy",
        config("VfioDeviceConfig", iommu={"backendPolicy": "Fast"}),
        (
            "iommu.backendPolicy: unknown IOMMU backend policy: Fast, supported IOMMU backend "
            "policies: LegacyOnly, PreferIommuFD"
        ),
    ),
]

_DUPLICATES = [
    (
        "strategy-twice",
        (
            f'{{"apiVersion": "{VERSION}", "kind": "GpuConfig", '
            '"sharing": {"strategy": "MPS", "strategy": "TimeSlicing"}}'
        ),
        'duplicate field "sharing.strategy"',
    ),
    (
        "kind-twice",
        f'{{"apiVersion": "{VERSION}", "kind": "GpuConfig", "kind": "MigDeviceConfig"}}',
        'duplicate field "kind"',
    ),
]

BAD_CONFIGS = [
    BadConfig(name=name, json=text, error=error, in_policy=in_policy)
    for table, in_policy in (
        (_ROOT + _TIME_SLICING + _MPS + _OTHER_KINDS, True),
        # JSON as Kubernetes reads it for its policies keeps the last of two equal keys.
        (_DUPLICATES, False),
    )
    for name, text, error in table
]
