"""Configs that must be refused, each with the error its author gets to read.

The same table is held against the models, `dra-driver validate`, Prepare and the admission policy.
"""

import json
from dataclasses import dataclass

from resource_nvidia_com.problems import keep_duplicates

VERSION = "resource.nvidia.com/v1beta1"
ALLOWED_SHARING = "allowed fields: strategy, timeSlicingConfig, mpsConfig"
ALLOWED_MPS = (
    "allowed fields: defaultActiveThreadPercentage, defaultPinnedDeviceMemoryLimit, "
    "defaultPerDevicePinnedMemoryLimit, multiUser"
)
KINDS = "must be GpuConfig, MigDeviceConfig or VfioDeviceConfig"
STRATEGIES = "must be TimeSlicing or MPS, not"
POLICIES = "must be LegacyOnly or PreferIommuFD, not"
INTERVALS = "must be Default, Short, Medium or Long, not"
MPS = "sharing.mpsConfig"
PERCENT = f"{MPS}.defaultActiveThreadPercentage"
LIMIT = f"{MPS}.defaultPinnedDeviceMemoryLimit"
LIMITS = f"{MPS}.defaultPerDevicePinnedMemoryLimit"
NO_QUANTITY = "is not a valid quantity: write, for example, 512Mi, 10Gi or 2G"
DEVICE = "must be a device's UUID (GPU-… or MIG-…) or its index (0 to 31)"


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


def config(kind: str = "GpuConfig", **fields: object) -> str:
    return json.dumps({"apiVersion": VERSION, "kind": kind, **fields})


def gpu(**sharing: object) -> str:
    return config(sharing=sharing)


def slicing(settings: object) -> str:
    return gpu(strategy="TimeSlicing", timeSlicingConfig=settings)


def mps(**settings: object) -> str:
    return gpu(strategy="MPS", mpsConfig=settings)


def vfio(**iommu: object) -> str:
    return config("VfioDeviceConfig", iommu=iommu)


def limit(value: object) -> str:
    return mps(defaultPinnedDeviceMemoryLimit=value)


def limits(value: object) -> str:
    return mps(defaultPerDevicePinnedMemoryLimit=value)


_ROOT = [
    ("no-version", '{"kind": "GpuConfig"}', f'missing field "apiVersion": must be {VERSION}'),
    (
        "other-version",
        '{"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}',
        f'unknown apiVersion "resource.nvidia.com/v1": must be {VERSION}',
    ),
    (
        "other-group",
        '{"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"}',
        f'unknown apiVersion "gpu.nvidia.com/v1beta1": must be {VERSION}',
    ),
    (
        "version-is-a-number",
        '{"apiVersion": 1, "kind": "GpuConfig"}',
        f"unknown apiVersion 1: must be {VERSION}",
    ),
    ("no-kind", f'{{"apiVersion": "{VERSION}"}}', f'missing field "kind": {KINDS}'),
    ("empty-kind", config(""), f'missing field "kind": {KINDS}'),
    (
        "misspelt-kind",
        config("GPUConfig"),
        f'unknown kind "GPUConfig": did you mean "GpuConfig"? {KINDS}',
    ),
    ("kind-of-another-driver", config("Pod"), f'unknown kind "Pod": {KINDS}'),
    ("kind-is-a-list", f'{{"apiVersion": "{VERSION}", "kind": []}}', f"kind: {KINDS}, not a list"),
    (
        "unknown-field",
        config(share={}),
        'unknown field "share": allowed fields: apiVersion, kind, sharing',
    ),
    (
        "python-name",
        config(api_version=VERSION),
        (
            'unknown field "api_version": did you mean "apiVersion"? '
            "allowed fields: apiVersion, kind, sharing"
        ),
    ),
    ("sharing-is-a-text", config(sharing="MPS"), 'sharing: must be a JSON object, not "MPS"'),
    ("sharing-is-a-list", config(sharing=["MPS"]), "sharing: must be a JSON object, not a list"),
    ("no-strategy", gpu(), 'missing field "sharing.strategy": must be TimeSlicing or MPS'),
    (
        "device-plugin-field",
        gpu(strategy="TimeSlicing", replicas=4),
        f'unknown field "sharing.replicas": {ALLOWED_SHARING}',
    ),
    (
        "misspelt-strategy-field",
        gpu(stratgy="MPS"),
        (
            'missing field "sharing.strategy": must be TimeSlicing or MPS; '
            f'unknown field "sharing.stratgy": did you mean "strategy"? {ALLOWED_SHARING}'
        ),
    ),
    ("unknown-strategy", gpu(strategy="Exclusive"), f'sharing.strategy: {STRATEGIES} "Exclusive"'),
    ("strategy-in-lower-case", gpu(strategy="mps"), f'sharing.strategy: {STRATEGIES} "mps"'),
    ("empty-strategy", gpu(strategy=""), f'sharing.strategy: {STRATEGIES} ""'),
    ("strategy-of-two-lines", gpu(strategy="M\nPS"), f'sharing.strategy: {STRATEGIES} "M\\nPS"'),
    ("endless-strategy", gpu(strategy="x" * 5000), f'sharing.strategy: {STRATEGIES} "{"x" * 80}…"'),
    (
        "no-strategy-but-null",
        gpu(strategy=None),
        "sharing.strategy: must be TimeSlicing or MPS, not null",
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
        f'sharing.timeSlicingConfig.interval: {INTERVALS} "Forever"',
    ),
    (
        "empty-interval",
        slicing({"interval": ""}),
        f'sharing.timeSlicingConfig.interval: {INTERVALS} ""',
    ),
    (
        "interval-is-a-number",
        slicing({"interval": 2}),
        "sharing.timeSlicingConfig.interval: must be Default, Short, Medium or Long, not 2",
    ),
    (
        "misspelt-interval-field",
        slicing({"intervall": "Long"}),
        (
            'unknown field "sharing.timeSlicingConfig.intervall": did you mean "interval"? '
            "allowed fields: interval"
        ),
    ),
    (
        "time-slicing-settings-are-a-text",
        slicing("Long"),
        'sharing.timeSlicingConfig: must be a JSON object, not "Long"',
    ),
]

_MPS = [
    (
        "mps-settings-are-a-number",
        gpu(strategy="MPS", mpsConfig=50),
        f"{MPS}: must be a JSON object, not 50",
    ),
    (
        "negative-percentage",
        mps(defaultActiveThreadPercentage=-1),
        f"{PERCENT}: must be at least 0, not -1",
    ),
    (
        "percentage-over-100",
        mps(defaultActiveThreadPercentage=101),
        f"{PERCENT}: must be at most 100, not 101",
    ),
    (
        "percentage-is-a-text",
        mps(defaultActiveThreadPercentage="50"),
        f'{PERCENT}: must be a whole number, not "50"',
    ),
    (
        "percentage-is-a-fraction",
        mps(defaultActiveThreadPercentage=12.5),
        f"{PERCENT}: must be a whole number, not 12.5",
    ),
    (
        "percentage-is-a-flag",
        mps(defaultActiveThreadPercentage=True),
        f"{PERCENT}: must be a whole number, not true",
    ),
    ("flag-is-a-text", mps(multiUser="yes"), f'{MPS}.multiUser: must be true or false, not "yes"'),
    ("flag-is-a-number", mps(multiUser=1), f"{MPS}.multiUser: must be true or false, not 1"),
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
    ("limit-is-a-flag", limit(True), f"{LIMIT}: must be a quantity such as 10Gi, not true"),
    ("limit-is-a-list", limit(["1Gi"]), f"{LIMIT}: must be a quantity such as 10Gi, not a list"),
    ("limit-under-1-mebibyte", limit("1M"), f"{LIMIT}: 1M is too low: must be at least 1Mi"),
    ("limit-of-nothing", limit(0), f"{LIMIT}: 0 is too low: must be at least 1Mi"),
    ("negative-limit", limit("-10Gi"), f"{LIMIT}: -10Gi is too low: must be at least 1Mi"),
    (
        "limit-in-gigabytes-without-unit",
        limit("10"),
        f"{LIMIT}: 10 is too low: must be at least 1Mi",
    ),
    ("limits-are-one-limit", limits("10Gi"), f'{LIMITS}: must be a JSON object, not "10Gi"'),
    ("limit-of-a-name", limits({"gpu-0": "10Gi"}), f"{LIMITS}.gpu-0: {DEVICE}"),
    ("limit-of-a-negative-index", limits({"-1": "10Gi"}), f"{LIMITS}.-1: {DEVICE}"),
    ("limit-of-a-large-index", limits({"32": "10Gi"}), f"{LIMITS}.32: {DEVICE}"),
    ("index-that-could-stand-twice", limits({"00": "10Gi"}), f"{LIMITS}.00: {DEVICE}"),
    (
        "one-limit-too-low",
        limits({"0": "1k", "1": "1Gi"}),
        f"{LIMITS}.0: 1k is too low: must be at least 1Mi",
    ),
    ("one-limit-is-no-quantity", limits({"3": "half"}), f'{LIMITS}.3: "half" {NO_QUANTITY}'),
    (
        "one-limit-is-null",
        limits({"0": None}),
        f"{LIMITS}.0: must be a quantity such as 10Gi, not null",
    ),
    (
        "two-mistakes-at-once",
        mps(defaultActiveThreadPercentage=200, multiUser="no"),
        (
            f"{PERCENT}: must be at most 100, not 200; "
            f'{MPS}.multiUser: must be true or false, not "no"'
        ),
    ),
]

_OTHER_KINDS = [
    (
        "time-slice-of-a-mig-device",
        config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
        'unknown field "sharing.timeSlicingConfig": allowed fields: strategy, mpsConfig',
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
    ("unknown-iommu-policy", vfio(backendPolicy="Fast"), f'iommu.backendPolicy: {POLICIES} "Fast"'),
    ("empty-iommu-policy", vfio(backendPolicy=""), f'iommu.backendPolicy: {POLICIES} ""'),
    (
        "iommu-policy-of-another-type",
        vfio(backendPolicy=True),
        "iommu.backendPolicy: must be LegacyOnly or PreferIommuFD, not true",
    ),
    (
        "iommu-device-as-text",
        vfio(enableAPIDevice="true"),
        'iommu.enableAPIDevice: must be true or false, not "true"',
    ),
    (
        "misspelt-iommu-device",
        vfio(enableApiDevice=True),
        (
            'unknown field "iommu.enableApiDevice": did you mean "enableAPIDevice"? '
            "allowed fields: backendPolicy, enableAPIDevice"
        ),
    ),
    (
        "iommu-of-another-type",
        config("VfioDeviceConfig", iommu="LegacyOnly"),
        'iommu: must be a JSON object, not "LegacyOnly"',
    ),
    (
        "vfio-with-sharing",
        config("VfioDeviceConfig", sharing={"strategy": "MPS"}),
        'unknown field "sharing": allowed fields: apiVersion, kind, iommu',
    ),
    (
        "gpu-with-iommu",
        config(iommu={}),
        'unknown field "iommu": allowed fields: apiVersion, kind, sharing',
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
