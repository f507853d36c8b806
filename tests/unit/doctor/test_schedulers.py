"""What other schedulers can do with what is on offer."""

from typing import Any

import pytest

from dra_driver.admin.doctor.checks.finding import Seen, Severity
from dra_driver.admin.doctor.checks.schedulers import Kai, judged, kai_version
from published import counter_set, device, slices

WHOLE = slices([device("gpu-0"), device("gpu-1")], node="a")
DIVISIBLE = slices(
    [device("gpu-0", {"memory": "80Gi"}), device("gpu-0-mig-1g10gb-19-0", {"memory": "10Gi"})],
    (counter_set(memory="80Gi"),),
    node="b",
)


def seen_with(kai: Kai | None, offered: list[Any], *, kueue: bool = False) -> list[Seen]:
    return list(judged(kai=kai, kueue=kueue, slices=offered))


def operator(image: str) -> dict[str, Any]:
    pod = {"containers": [{"name": "operator", "image": image}]}
    return {"metadata": {"name": "kai-operator"}, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize("version", ["", "v0.16.8", "v0.17.0", "0.9.1", "main-1a2b3c"])
def test_a_kai_that_knows_no_counters_is_a_warning_where_devices_have_some(version: str) -> None:
    (seen,) = seen_with(Kai(version=version), [*WHOLE, *DIVISIBLE])
    assert seen.severity is Severity.WARNING
    assert seen.text.startswith(f"KAI-Scheduler {version}".strip() + " is installed")
    assert seen.text.endswith("consumes counters: 2 devices of b")
    assert "--mig=existing" in seen.advice


@pytest.mark.parametrize("version", ["", "v0.17.0", "v0.18.0"])
def test_any_kai_places_whole_gpus_without_counters(version: str) -> None:
    (seen,) = seen_with(Kai(version=version), WHOLE)
    assert seen.severity is Severity.OK
    assert "no published device consumes counters" in seen.text


@pytest.mark.parametrize("version", ["v0.17.1", "v0.18.0-fips", "v1.0.0"])
def test_a_newer_kai_needs_a_gate_and_counts_partitions_as_gpus(version: str) -> None:
    (seen,) = seen_with(Kai(version=version), DIVISIBLE)
    assert seen.severity is Severity.INFO
    assert "the devices of b that consume counters only with the feature gate" in seen.text
    assert "counts each as a GPU" in seen.text


def test_kueue_is_reported_beside_it() -> None:
    first, second = seen_with(Kai(), WHOLE, kueue=True)
    assert (first.severity, second.severity) == (Severity.OK, Severity.INFO)
    assert "deviceClassMappings" in second.advice


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("ghcr.io/kai-scheduler/kai-scheduler/operator:v0.17.0", "v0.17.0"),
        ("registry:5000/kai/operator:v0.16.4@sha256:00ff", "v0.16.4"),
        ("registry:5000/kai/operator", ""),
        ("registry:5000/kai/operator@sha256:00ff", ""),
    ],
)
def test_its_version_is_the_tag_of_its_operators_image(image: str, version: str) -> None:
    other = {"metadata": {"name": "web"}, "spec": {}}
    assert kai_version([other, operator(image)]) == version
