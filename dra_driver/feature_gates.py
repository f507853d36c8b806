"""The feature gates of NVIDIA's own DRA driver, and what each of them means here.

Its DaemonSets name gates that this driver has no use for: what a card can do is always on here. A
gate that is not in the table is one of a newer driver, or misspelled, and never a reason not to
start.
"""

import difflib
from enum import Enum
from typing import Final

from msgspec import Struct

DYNAMIC_MIG: Final = "DynamicMIG"
"""The peer's feature gate that means `--mig on-demand`, and `--mig existing` if it is false."""

CONSUMABLE_SHARES: Final = "ConsumableShares"
"""The peer's feature gate of `--consumable-shares`: false means disabled, true means nothing."""

DEVICE_METADATA: Final = "DeviceMetadata"
"""The peer's feature gate of `--device-metadata`: false means false, true means nothing."""


PASSTHROUGH: Final = "PassthroughSupport"
"""The peer's feature gate of GPUs for virtual machines: true means `--vfio`."""

NVML_HEALTH: Final = "NVMLDeviceHealthCheck"
"""The peer's feature gate of health checks: true means its taints without effect for XIDs of
programs, too; false means nothing."""


class Meaning(Enum):
    """What a gate is about, as far as this driver is concerned."""

    SETTING = "a setting of this driver: heard"
    ALWAYS_ON = "something that this driver always does: false is said to be in vain"
    NOT_HERE = "something that this driver does not have: true is said to be in vain"


class FeatureGate(Struct, frozen=True):
    """A gate: what it is called, where it is from, and what to say of it."""

    name: str
    source: str
    """The first release that has it, such as 0.5, or the issue that proposes it: #1358."""
    meaning: Meaning
    here: str
    """A sentence for people: what a setting of it does, or why it has no effect."""


_NOT_HERE = "not supported"
_COMPUTE_DOMAINS = "ComputeDomains are not supported"
_KLOG = "this driver does not log with klog"
_STAGES = "features have no stages here: name the gates that you mean"

_S, _ON, _NO = Meaning.SETTING, Meaning.ALWAYS_ON, Meaning.NOT_HERE

FEATURE_GATES: Final = (
    FeatureGate(
        DYNAMIC_MIG,
        "25.12",
        _S,
        "`true` is `--mig on-demand`, `false` is `--mig existing`, unless that flag is set",
    ),
    FeatureGate(
        CONSUMABLE_SHARES,
        "0.5",
        _S,
        "`false` disables `--consumable-shares`, `true` does nothing",
    ),
    FeatureGate(
        DEVICE_METADATA,
        "0.4",
        _S,
        "`false` is `--no-device-metadata`, `true` does nothing",
    ),
    FeatureGate(
        "TimeSlicingSettings",
        "25.8",
        _ON,
        "always on: a claim gets it by its config",
    ),
    FeatureGate("MPSSupport", "25.8", _ON, "always on: a claim gets it by its config"),
    FeatureGate(
        NVML_HEALTH,
        "25.12",
        _ON,
        "always on; `true` adds taints without effect for XIDs of programs",
    ),
    FeatureGate(
        "SeamlessUpgrades",
        "#1358",
        _ON,
        "always possible: it depends on the DaemonSet's update strategy",
    ),
    FeatureGate(
        "ResourceClaimDeviceStatus",
        "#1357",
        _ON,
        "always on, unless --no-claim-status is set",
    ),
    FeatureGate(
        PASSTHROUGH,
        "25.12",
        _S,
        "`true` is `--vfio`, which takes no card from the GPU driver; `false` does nothing",
    ),
    FeatureGate(
        "DRAListTypeAttributes", "0.5", _NO, f"{_NOT_HERE}: numaNode is published as a number"
    ),
    FeatureGate(
        "FabricManagerPartitioning",
        "0.5",
        _NO,
        f"{_NOT_HERE}: this driver does not use Fabric Manager",
    ),
    FeatureGate("HostManagedIMEXDaemon", "0.5", _NO, _COMPUTE_DOMAINS),
    FeatureGate("IMEXDaemonsWithDNSNames", "25.8", _NO, _COMPUTE_DOMAINS),
    FeatureGate("ComputeDomainCliques", "25.12", _NO, _COMPUTE_DOMAINS),
    FeatureGate("CrashOnNVLinkFabricErrors", "25.12", _NO, _COMPUTE_DOMAINS),
    FeatureGate("NodeLocalFabricIPC", "#1449", _NO, _COMPUTE_DOMAINS),
    FeatureGate(
        "PerNodeGPUConfig",
        "#1067",
        _NO,
        f"{_NOT_HERE}: --mig and --share-config say which kinds of device a node publishes",
    ),
    FeatureGate("NodeAllocatableResources", "#1329", _NO, _NOT_HERE),
    FeatureGate("LocalIPCDirectory", "#1391", _NO, _NOT_HERE),
    FeatureGate("VGPUSupport", "#1439", _NO, _NOT_HERE),
    FeatureGate("DRADeviceCompatibilityGroups", "#1439", _NO, _NOT_HERE),
    FeatureGate("ContextualLogging", "25.8", _NO, _KLOG),
    FeatureGate("LoggingAlphaOptions", "25.8", _NO, _KLOG),
    FeatureGate("LoggingBetaOptions", "25.8", _NO, _KLOG),
    FeatureGate("AllAlpha", "25.8", _NO, _STAGES),
    FeatureGate("AllBeta", "25.8", _NO, _STAGES),
)
"""The gates of the peer up to its release 0.5, and those proposed for the next by September 2026.

Read in its pkg/featuregates at the tags v25.3.0 to v0.5.0; the last five are of its libraries.
"""

KNOWN_FEATURE_GATES: Final = {gate.name: gate for gate in FEATURE_GATES}

TRUE: Final = frozenset({"true", "1", "t"})
FALSE: Final = frozenset({"false", "0", "f"})


def split_gates(text: str) -> list[tuple[str, str]]:
    """Return names and values of gates as they are given: `A=true,B=false`."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def checked_gates(text: str) -> str:
    """Return the setting; a gate, known or not, without true or false raises ValueError."""
    for name, value in split_gates(text):
        if value.lower() not in TRUE | FALSE:
            raise ValueError(f"feature gate {name}={value}: give true or false")
    return text


def gate_value(gate: str, text: str) -> bool | None:
    """Return what a gate is set to, the last time it is named; None if it is not."""
    given = [value for name, value in split_gates(text) if name == gate]
    return given[-1].lower() in TRUE if given else None


def gates_in_vain(text: str) -> dict[str, str]:
    """Return the gates that ask for something else than what is done here, each with the reason."""
    said = {}
    for name, value in split_gates(text):
        gate = KNOWN_FEATURE_GATES.get(name)
        is_on = value.lower() in TRUE
        if gate is None:
            said[name] = _unknown(name)
        elif gate.meaning is (Meaning.NOT_HERE if is_on else Meaning.ALWAYS_ON):
            said[name] = gate.here
    return said


def _unknown(name: str) -> str:
    """Say that a gate is unknown, and which are known: one that looks like it comes first."""
    folded = {known.casefold(): known for known in sorted(KNOWN_FEATURE_GATES)}
    near = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=1)]
    known = ", ".join([*near, *(gate for gate in folded.values() if gate not in near)])
    meant = f", did you mean {near[0]}?" if near else ";"
    return f"unknown here{meant} known: {known}"
