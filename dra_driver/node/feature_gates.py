"""The feature gates of NVIDIA's own DRA driver that mean something here.

Its DaemonSets also name others: what these turn on is always on here, or not supported. An unknown
or misspelled gate is never a reason not to start.
"""

from types import MappingProxyType
from typing import Final

DYNAMIC_MIG: Final = "DynamicMIG"
CONSUMABLE_SHARES: Final = "ConsumableShares"
DEVICE_METADATA: Final = "DeviceMetadata"
PASSTHROUGH: Final = "PassthroughSupport"
NVML_HEALTH: Final = "NVMLDeviceHealthCheck"

FEATURE_GATES: Final = MappingProxyType(
    {
        DYNAMIC_MIG: "`true` is `--mig on-demand`, `false` is `--mig existing`, unless that flag "
        "is set",
        CONSUMABLE_SHARES: "`false` disables `--consumable-shares`, `true` does nothing",
        DEVICE_METADATA: "`false` is `--no-device-metadata`, `true` does nothing",
        NVML_HEALTH: "always on; `true` adds taints without effect for XIDs of programs",
        PASSTHROUGH: "`true` is `--vfio`, which takes no card from the GPU driver; `false` does "
        "nothing",
    }
)
"""What each gate that has an effect here does, in Markdown."""

NO_EFFECT: Final = (
    f"this driver supports only {', '.join(FEATURE_GATES)}; what others turn on is always on here, "
    "or not supported"
)
"""Why any other gate has no effect."""

TRUE: Final = frozenset({"true", "1", "t"})
FALSE: Final = frozenset({"false", "0", "f"})


def split_gates(text: str) -> list[tuple[str, str]]:
    """Return the names and values of gates that are written as `A=true,B=false`."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def checked_gates(text: str) -> str:
    """Return the setting unchanged. Raises ValueError if any gate is neither true nor false."""
    for name, value in split_gates(text):
        if value.lower() not in TRUE | FALSE:
            raise ValueError(f"feature gate {name}={value}: give true or false")
    return text


def gate_value(gate: str, text: str) -> bool | None:
    """Return the value of a gate, the last one if it is named twice; None if it is not named."""
    given = [value for name, value in split_gates(text) if name == gate]
    return given[-1].lower() in TRUE if given else None


def gates_in_vain(text: str) -> dict[str, str]:
    """Return the gates that have no effect here, each with the reason."""
    said = {}
    for name, value in split_gates(text):
        if name not in FEATURE_GATES:
            said[name] = NO_EFFECT
        elif name == NVML_HEALTH and value.lower() in FALSE:
            said[name] = FEATURE_GATES[name]
    return said
