"""Which nodes Cluster Autoscaler considers unready."""

from typing import Any

import pytest

from dra_driver.admin.doctor.checks.autoscalers import BY_DRA, STAYS, judged
from dra_driver.admin.doctor.checks.finding import Seen, Severity
from published import device, slices

AKS = {"kubernetes.azure.com/accelerator": "nvidia"}
OFFERED = [*slices([device("gpu-0")], node="a"), *slices([device("gpu-0")], node="b")]


def node(
    name: str,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    **allocatable: str,
) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"allocatable": allocatable}}


def seen_of(*nodes: dict[str, Any], runs: bool | None = True) -> list[Seen]:
    return list(judged(nodes, OFFERED, runs=runs))


def test_a_label_that_promises_a_device_plugins_gpus_is_a_warning() -> None:
    (seen,) = seen_of(node("a", AKS), node("b", AKS), node("c", AKS))
    assert seen.severity is Severity.WARNING
    assert seen.text.startswith("Cluster Autoscaler considers a, b unready")
    assert "kubernetes.azure.com/accelerator" in seen.text
    assert f"{STAYS}=true" in seen.advice


def test_each_label_is_reported_by_itself() -> None:
    first, second = seen_of(node("a", AKS), node("b", {"cluster-api/accelerator": "h100"}))
    assert "considers b unready" in first.text
    assert "considers a unready" in second.text


@pytest.mark.parametrize(
    "safe",
    [
        node("a", {"nvidia.com/gpu.present": "true"}),
        node("a", AKS, {STAYS: "true"}),
        node("a", AKS, None, **{"nvidia.com/gpu": "8"}),
        node("a", {"cloud.google.com/gke-accelerator": "nvidia-l4", BY_DRA: "true"}),
        node("without-gpus", AKS),
    ],
)
def test_other_nodes_are_as_they_should_be(safe: dict[str, Any]) -> None:
    (seen,) = seen_of(safe)
    assert seen.severity is Severity.OK


@pytest.mark.parametrize(
    "careless", [node("a", AKS, {STAYS: "false"}), node("a", AKS | {BY_DRA: "false"})]
)
def test_a_negative_annotation_protects_no_node(careless: dict[str, Any]) -> None:
    (seen,) = seen_of(careless)
    assert seen.severity is Severity.WARNING


def test_an_installed_autoscaler_raises_the_severity() -> None:
    (absent,) = seen_of(node("a", AKS), runs=False)
    (unseen,) = seen_of(node("a", AKS), runs=None)
    assert absent.severity is Severity.OK
    assert unseen.severity is Severity.INFO
    assert unseen.text.startswith("if it is installed, Cluster Autoscaler considers a unready")
