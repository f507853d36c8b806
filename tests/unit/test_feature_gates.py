"""The feature gates of NVIDIA's driver: which are heeded, and what is said of the others."""

import pytest

from dra_driver.node.feature_gates import (
    FEATURE_GATES,
    NO_EFFECT,
    NVML_HEALTH,
    checked_gates,
    gate_value,
    gates_in_vain,
)


@pytest.mark.parametrize("gate", FEATURE_GATES)
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_supported_gate_is_in_vain_only_for_disabling_health(gate: str, value: str) -> None:
    is_in_vain = (gate, value) == (NVML_HEALTH, "false")
    assert gates_in_vain(f"{gate}={value}") == ({gate: FEATURE_GATES[gate]} if is_in_vain else {})


@pytest.mark.parametrize("gate", ["Tomorrow", "MPSSupport", "HostManagedIMEXDaemon", "dynamicmig"])
def test_any_other_gate_lists_the_supported_ones(gate: str) -> None:
    assert gates_in_vain(f"DynamicMIG=true,{gate}=true") == {gate: NO_EFFECT}
    assert all(heeded in NO_EFFECT for heeded in FEATURE_GATES)


@pytest.mark.parametrize("text", ["", "A=true,", " A=F , MPSSupport=1", "A=True"])
def test_values_are_read_as_kubernetes_reads_them(text: str) -> None:
    assert checked_gates(text) == text


def test_the_last_of_several_values_holds() -> None:
    assert gate_value("A", "A=true,B=true,A=false") is False
    assert gate_value("C", "A=true") is None
