"""Each thing that `convert` cannot carry over is one line: field, why, what to do."""

from dataclasses import dataclass

import pytest
import yaml

from dra_driver.admin.convert.manifests import convert
from dra_driver.admin.of_others import ANNOTATIONS
from dra_driver.admin.validate.findings import check_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A manifest, the place and text of each line, and how many objects are printed."""

    name: str
    text: str
    lines: tuple[tuple[int, str], ...]
    printed: int = 1


def claim(spec: str, version: str) -> str:
    return (
        f"apiVersion: resource.k8s.io/{version}\nkind: ResourceClaim\n"
        f"metadata: {{name: c}}\nspec: {spec}\n"
    )


def pod(containers: str, init: str = "[]") -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
        f"  containers: {containers}\n  initContainers: {init}\n"
    )


def limits(name: str, resource: str, amount: int) -> str:
    return f"{{name: {name}, image: i, resources: {{limits: {{{resource}: {amount}}}}}}}"


OLDER = "as it is printed: apiVersion: {} with {} is for clusters older than Kubernetes 1.31, and "

LOST = (
    *(
        Lost(
            name=f"nothing-for-{kind}",
            text=f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n",
            lines=((2, "kind: left out: a driver or the cluster creates it: remove it"),),
            printed=0,
        )
        for version, kind in (
            ("resource.k8s.io/v1alpha3", "PodSchedulingContext"),
            ("resource.k8s.io/v1beta1", "ResourceSlice"),
        )
    ),
    *(
        Lost(
            name=f"older-than-devices-{kind}",
            text=f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n",
            lines=((1, OLDER.format(version, kind)),),
        )
        for version, kind in (
            ("resource.k8s.io/v1alpha1", "PodScheduling"),
            ("resource.k8s.io/v1alpha1", "ResourceClaimTemplate"),
            ("resource.k8s.io/v1alpha2", "ResourceClaim"),
            ("resource.k8s.io/v1alpha2", "ResourceClass"),
            ("resource.k8s.io/v1alpha2", "ResourceClaimParameters"),
            ("resource.k8s.io/v1", "ResourceClass"),
            ("gpu.resource.nvidia.com/v1alpha1", "GpuClaimParameters"),
            ("gpu.nvidia.com/v1alpha1", "MigDeviceClaimParameters"),
            ("nas.gpu.resource.nvidia.com/v1alpha1", "NodeAllocationState"),
        )
    ),
    *(
        Lost(
            name=f"attribute-{name}",
            text=claim(
                "{devices: {requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, "
                "selectors: [{cel: {expression: \"device.attributes['gpu.nvidia.com']."
                f'{name} == 0"}}}}]}}}}]}}}}',
                "v1beta2",
            ),
            lines=((4, f'{where}: no device has the attribute "{name}" now: {instead}'),),
        )
        for where in ("spec.devices.requests[0].exactly.selectors[0].cel.expression",)
        for name, instead in (
            ("minor", "choose GPUs by uuid, productName or resource.kubernetes.io/pciBusID"),
            ("parentIndex", "use parentUUID"),
            ("pcieBusID", "use device.attributes['resource.kubernetes.io'].pciBusID"),
        )
    ),
    Lost(
        name="name-of-a-share-config",
        text=pod(f"[{limits('a', 'nvidia.com/mig-1g.5gb.shared', 1)}]"),
        lines=((5, "spec.containers[0].resources.limits.nvidia.com/mig-1g.5gb.shared: unchang"),),
    ),
    Lost(
        name="doubled-key",
        text=claim("{devices: {}}", "v1beta1") + "spec: {devices: {}}\n",
        lines=((5, "spec: this key is duplicated, and all but the last are dropped"),),
    ),
    Lost(
        name="pods-of-another-kind",
        text=(
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n"
            "  metadata: {annotations: {gpu-fraction: half}}\n"
            "  spec: {schedulerName: kai-scheduler, containers: [{resources: {limits:\n"
            "    {nvidia.com/gpu: 1,\n    nvidia.com/gpumem: 3000}}}]}\n"
        ),
        lines=(
            (4, "spec.metadata.annotations.gpu-fraction: only KAI-Scheduler reads this, and"),
            (5, "spec.spec.schedulerName: unchanged: once KAI-Scheduler is removed, such pods"),
            (6, "spec.spec.containers[0].resources.limits.nvidia.com/gpu: unchanged: pods of a L"),
            (7, "spec.spec.containers[0].resources.limits.nvidia.com/gpumem: unchanged: pods of "),
        ),
    ),
    *(
        Lost(
            name=f"gpus-of-a-{kind}",
            text=f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n",
            lines=((4, f"spec.{begin}"),),
        )
        for kind, spec, begin in (
            (
                *("VirtualMachine", "{gpus: [{deviceName: nvidia.com/GA100_A100}]}"),
                "gpus[0].deviceName: unchanged: virtual machines are not converted: they get ",
            ),
            (
                *(
                    "ResourceQuota",
                    "{hard: {requests.nvidia.com/gpu: 4, limits.nvidia.com/gpumem: 3}}",
                ),
                "hard.limits.nvidia.com/gpumem: unchanged: this counts nothing here: quotas c",
            ),
            (
                *("ClusterQueue", "{coveredResources: [cpu, nvidia.com/gpucores]}"),
                "coveredResources[1]: unchanged: this counts nothing here: quotas count dev",
            ),
        )
    ),
)


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: str(lost.name))
def test_a_loss_is_a_line_with_its_place(lost: Lost) -> None:
    converted = convert({"f": lost.text})
    found = converted.reports["f"].findings
    assert [one.line for one in found] == [line for line, _ in lost.lines]
    for one, (_, text) in zip(found, lost.lines, strict=True):
        assert one.text[: len(text)] == text
    assert len(list(yaml.safe_load_all(converted.text))) == lost.printed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alpha.kubernetes.io/nvidia-gpu", "Kubernetes before 1.11 used this name"),
        ("nvidia.com/gpus", "the name is nvidia.com/gpu"),
        ("nvidia.com/GRID_A100-5C", "a vGPU for virtual machines"),
        ("nvidia.com/gpumem-percentage", "write nvidia.com/gpumem with the MiB"),
        ("nvidia.com/priority", "tasks of a GPU have no priority here"),
    ],
)
def test_an_unserved_resource_name_is_reported(name: str, text: str) -> None:
    lost = lost_of(POD_OF_LIMITS.format(limits=f"{{{name}: 1}}", selector="{}"))
    assert any(text in one for one in lost)


def test_a_percentage_of_a_gpus_memory_leaves_the_gpu_where_it_is() -> None:
    limits = "{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}"
    text = POD_OF_LIMITS.format(limits=limits, selector="{}")
    assert yaml.safe_load(convert({"f": text}).text) == yaml.safe_load(text)


def test_a_gpu_feature_discovery_label_is_reported() -> None:
    selector = "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, zone: a}"
    text = POD_OF_LIMITS.format(limits="{nvidia.com/gpu: 1}", selector=selector)
    (found,) = [one for one in lost_of(text) if "Discovery" in one]
    assert "spec.nodeSelector.nvidia.com/gpu.product: unchanged: " in found.replace("[", ".")


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ("gpu: 1, nvidia.com/gpumem: 16Gi", "gpumem: unchanged: write a whole number of MiB, "),
        ("gpu: 1, nvidia.com/gpumem: 8k", 'without a unit, in place of "8k", and convert again'),
        ("gpumem: 3000, nvidia.com/gpucores: 130", "gpucores: converted as 100 percent, which"),
        ("vgpu-number: 500m", "write a whole number of GPUs, without a unit, in place of "),
    ],
)
def test_a_changed_amount_is_reported(limits: str, text: str) -> None:
    (lost,) = lost_of(POD_OF_LIMITS.format(limits=f"{{nvidia.com/{limits}}}", selector="{}"))
    assert text in lost


@pytest.mark.parametrize("name", [*ANNOTATIONS, "hami.io/gpu-scheduler-policy"])
def test_convert_and_validate_report_unread_annotations(name: str) -> None:
    pod_ = POD_OF_LIMITS.format(limits="{cpu: 1}", selector="{}")
    text = pod_.replace("{name: p}", f"{{name: p, annotations: {{{name}: half}}}}")
    (lost,) = lost_of(text)
    assert lost.startswith(f"metadata.annotations.{name}: ")
    (warning,) = check_manifest(text).findings
    assert (warning.severity, warning.text) == ("warning", lost)


@pytest.mark.parametrize(
    ("name", "limits", "told"),
    [
        ("hami-scheduler", "{cpu: 1}", True),
        ("kai-scheduler", "{nvidia.com/gpumem: 3000}", True),
        ("volcano", "{volcano.sh/vgpu-memory: 3000}", True),
        ("volcano", "{nvidia.com/gpu: 1}", False),
        ("mine", "{nvidia.com/gpumem: 3000}", False),
    ],
)
def test_a_scheduler_of_other_resource_names_is_reported(
    name: str, limits: str, told: bool
) -> None:
    selector = f"{{}}\n  schedulerName: {name}"
    lost = lost_of(POD_OF_LIMITS.format(limits=limits, selector=selector))
    assert ["spec.schedulerName: unchanged: once " in one for one in lost] == [True] * told


def lost_of(text: str) -> list[str]:
    return [finding.text for finding in convert({"f": text}).reports["f"].findings]


POD_OF_LIMITS = """\
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  nodeSelector: {selector}
  containers:
  - name: c
    image: x
    resources: {{limits: {limits}}}
"""
