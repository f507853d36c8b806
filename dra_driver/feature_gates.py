"""The feature gates of NVIDIA's own DRA driver, and what each of them means here.

In: nothing. Out: names, reasons for people, and how the setting `--feature-gates` is read. Its
DaemonSets name gates that this driver has no use for: what a card can do is always on here.
"""

from types import MappingProxyType

_NOT_HERE = "this driver does not have that feature"
_COMPUTE_DOMAINS = "it is about ComputeDomains, which are not part of this driver"
_KLOG = "it is about klog, which this driver does not log with"

GATES_ALWAYS_ON = MappingProxyType(
    {
        "TimeSlicingSettings": "time-slicing is always on here: a claim gets it by its config",
        "MPSSupport": "MPS is always on here: a claim gets it by its config",
        "NVMLDeviceHealthCheck": "health is always watched here: --taint-fault off sets no taints",
    }
)
"""The peer's feature gates of what this driver always does, and what to say of `=false`."""

GATES_OF_NOTHING_HERE = MappingProxyType(
    {
        "PassthroughSupport": f"{_NOT_HERE}: no VFIO devices are published",
        "DRAListTypeAttributes": f"{_NOT_HERE}: numaNode is published as a number",
        "FabricManagerPartitioning": f"{_NOT_HERE}: Fabric Manager is not asked for partitions",
        "HostManagedIMEXDaemon": _COMPUTE_DOMAINS,
        "IMEXDaemonsWithDNSNames": _COMPUTE_DOMAINS,
        "ComputeDomainCliques": _COMPUTE_DOMAINS,
        "CrashOnNVLinkFabricErrors": _COMPUTE_DOMAINS,
        "ContextualLogging": _KLOG,
        "LoggingAlphaOptions": _KLOG,
        "LoggingBetaOptions": _KLOG,
        "AllAlpha": "this driver has no stages of features: name the gates that you mean",
        "AllBeta": "this driver has no stages of features: name the gates that you mean",
    }
)
"""The peer's feature gates of what is not here, and what to say of `=true`."""

DYNAMIC_MIG = "DynamicMIG"
"""The peer's feature gate that means `--mig on-demand`, and `--mig existing` if it is false."""

CONSUMABLE_SHARES = "ConsumableShares"
"""The peer's feature gate of `--consumable-shares`: false means disabled, true means nothing."""

DEVICE_METADATA = "DeviceMetadata"
"""The peer's feature gate of `--device-metadata`: false means false, true means nothing."""

GATES_OF_SETTINGS = frozenset({DYNAMIC_MIG, CONSUMABLE_SHARES, DEVICE_METADATA})
"""The peer's feature gates of what a setting of this driver is about."""

KNOWN_FEATURE_GATES = GATES_OF_SETTINGS | GATES_ALWAYS_ON.keys() | GATES_OF_NOTHING_HERE.keys()

TRUE = frozenset({"true", "1", "t"})
FALSE = frozenset({"false", "0", "f"})


def split_gates(text: str) -> list[tuple[str, str]]:
    """Return names and values of gates as they are given: `A=true,B=false`."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]
