"""The feature gates of NVIDIA's driver: which are known, and what is said of each."""

import re

import pytest

from dra_driver.feature_gates import (
    FEATURE_GATES,
    KNOWN_FEATURE_GATES,
    FeatureGate,
    Meaning,
    checked_gates,
    gate_value,
    gates_in_vain,
)

RELEASED = {
    "25.8": {"TimeSlicingSettings", "MPSSupport", "IMEXDaemonsWithDNSNames"},
    "25.12": {
        *("PassthroughSupport", "NVMLDeviceHealthCheck", "DynamicMIG"),
        *("ComputeDomainCliques", "CrashOnNVLinkFabricErrors"),
    },
    "0.4": {"DeviceMetadata"},
    "0.5": {
        *("FabricManagerPartitioning", "HostManagedIMEXDaemon"),
        *("DRAListTypeAttributes", "ConsumableShares"),
    },
}
"""What pkg/featuregates of NVIDIA's driver has at each tag that the one before has not."""

OF_LIBRARIES = {
    *("ContextualLogging", "LoggingAlphaOptions", "LoggingBetaOptions"),
    *("AllAlpha", "AllBeta"),
}


@pytest.mark.parametrize("release", RELEASED)
def test_the_gates_of_each_release_are_known_with_the_release_that_had_them_first(
    release: str,
) -> None:
    found = {gate.name for gate in FEATURE_GATES if gate.source == release} - OF_LIBRARIES
    assert found == RELEASED[release]


def test_every_other_gate_is_of_a_library_or_says_where_it_is_proposed() -> None:
    rest = set(KNOWN_FEATURE_GATES).difference(OF_LIBRARIES, *RELEASED.values())
    assert {"NodeLocalFabricIPC", "PerNodeGPUConfig", "NodeAllocatableResources"} < rest
    assert all(re.fullmatch(r"#\d{4}", KNOWN_FEATURE_GATES[name].source) for name in rest)


def test_each_gate_is_listed_once() -> None:
    assert len(KNOWN_FEATURE_GATES) == len(FEATURE_GATES)


@pytest.mark.parametrize("gate", FEATURE_GATES, ids=lambda gate: gate.name)
def test_a_gate_is_in_vain_where_it_asks_for_something_else_than_is_done(gate: FeatureGate) -> None:
    true, false = (gates_in_vain(f"{gate.name}={value}") for value in ("true", "false"))
    said = {gate.name: gate.here}
    assert true == (said if gate.meaning is Meaning.NOT_HERE else {})
    assert false == (said if gate.meaning is Meaning.ALWAYS_ON else {})


def test_an_unknown_gate_is_named_with_all_that_are_known() -> None:
    (why,) = gates_in_vain("Tomorrow=true").values()
    assert why == f"unknown here; known: {', '.join(sorted(KNOWN_FEATURE_GATES))}"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("TimeSlicingSetting", "TimeSlicingSettings"),
        ("dynamicmig", "DynamicMIG"),
        ("MPSSuport", "MPSSupport"),
    ],
)
def test_of_a_near_miss_what_was_meant_comes_first(given: str, meant: str) -> None:
    (why,) = gates_in_vain(f"{given}=false").values()
    first, _, rest = why.partition("? known: ")
    assert first.startswith(f"unknown here, did you mean {meant}")
    assert rest.startswith(f"{meant}, ")
    assert sorted(rest.split(", ")) == sorted(KNOWN_FEATURE_GATES)


@pytest.mark.parametrize("text", ["A", "A=", "A=yes", "DynamicMIG=true,MPSSupport"])
def test_a_value_that_is_neither_true_nor_false_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give true or false"):
        checked_gates(text)


@pytest.mark.parametrize("text", ["", "A=true,", " A=F , MPSSupport=1", "A=True"])
def test_values_are_read_as_kubernetes_reads_them(text: str) -> None:
    assert checked_gates(text) == text


def test_the_last_of_several_values_holds() -> None:
    assert gate_value("A", "A=true,B=true,A=false") is False
    assert gate_value("C", "A=true") is None
