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


def claim(spec: str, version: str = "v1alpha2", kind: str = "ResourceClaim") -> str:
    return (
        f"apiVersion: resource.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: c}}\n"
        f"spec: {spec}\n"
    )


def asking(spec: str, kind: str = "GpuClaimParameters") -> str:
    """Parameters, and from the sixth line on the claim that refers to them."""
    reference = f"{{apiGroup: gpu.resource.nvidia.com, kind: {kind}, name: p}}"
    return (
        f"apiVersion: gpu.resource.nvidia.com/v1alpha1\nkind: {kind}\nmetadata: {{name: p}}\n"
        f"spec: {spec}\n---\n"
        + claim(f"{{resourceClassName: gpu.nvidia.com, parametersRef: {reference}}}")
    )


def pod(containers: str, init: str = "[]") -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
        f"  containers: {containers}\n  initContainers: {init}\n"
    )


def limits(name: str, resource: str, amount: int) -> str:
    return f"{{name: {name}, image: i, resources: {{limits: {{{resource}: {amount}}}}}}}"


UNREADABLE = "cannot be read: write one property of a GPU, andExpression or orExpression"
REFERENCE = "{apiGroup: gpu.resource.nvidia.com, kind: GpuClaimParameters, name: gone}"

LOST = (
    Lost(
        name="unknown-field-of-a-claim",
        text=claim("{resourceClassName: gpu.nvidia.com, parameterRef: {}}"),
        lines=((4, "spec.parameterRef: no version of this API has this field: check its"),),
    ),
    Lost(
        name="parameters-in-another-file",
        text=claim(f"{{resourceClassName: gpu.nvidia.com, parametersRef: {REFERENCE}}}"),
        lines=((4, "spec.parametersRef: left out: no GpuClaimParameters gone of its namespace"),),
        printed=0,
    ),
    Lost(
        name="parameters-that-drivers-made",
        text=claim(
            "{resourceClassName: gpu.nvidia.com, parametersRef: {apiGroup: "
            "gpu.resource.nvidia.com, kind: ResourceClaimParameters, name: p}}"
        ),
        lines=((4, 'spec.parametersRef: left out: "ResourceClaimParameters" is not a kind of'),),
        printed=0,
    ),
    Lost(
        name="class-in-another-file",
        text=claim("{resourceClassName: fast}"),
        lines=((4, "spec.resourceClassName: unchanged: no ResourceClass in these files"),),
    ),
    Lost(
        name="class-of-another-driver",
        text="apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: nic}\n"
        "driverName: net.example.com\n---\n" + claim("{resourceClassName: nic}"),
        lines=(
            (4, "driverName: unchanged: it belongs to the driver net.example.com: ask its vendor"),
            (9, "spec.resourceClassName: unchanged: it belongs to the driver net.example.com:"),
        ),
        printed=2,
    ),
    Lost(
        name="parameters-of-a-class-in-another-file",
        text="apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: mine}\n"
        "driverName: gpu.resource.nvidia.com\n"
        "parametersRef: {kind: DeviceClassParameters, name: p}\n",
        lines=((5, "parametersRef: left out: no DeviceClassParameters p of its namespace is in"),),
    ),
    Lost(
        name="parameters-that-nothing-refers-to",
        text="apiVersion: gpu.resource.nvidia.com/v1alpha1\nkind: GpuClaimParameters\n"
        "metadata: {name: p}\nspec: {count: 1}\n",
        lines=((3, "metadata.name: left out: nothing in these files refers to it: pass the file"),),
        printed=0,
    ),
    Lost(
        name="gpu-in-mig-mode",
        text=asking("{selector: {migEnabled: true}}"),
        lines=(
            (4, "spec.selector: GPUs in MIG mode are offered as MIG devices only: ask for"),
            (9, "spec.parametersRef: left out: GpuClaimParameters p asks for something that no"),
        ),
        printed=0,
    ),
    Lost(
        name="index",
        text=asking("{selector: {orExpression: [{index: 0}, {uuid: GPU-1}]}}"),
        lines=((4, "spec.selector.orExpression[0].index: GPUs can no longer be chosen by index"),),
    ),
    *(
        Lost(
            name=f"unreadable-selector-{number}",
            text=asking(f"{{selector: {selector}}}"),
            lines=((4, text),),
        )
        for number, (selector, text) in enumerate(
            (
                ("[]", f"spec.selector: {UNREADABLE}"),
                ("{}", f"spec.selector: {UNREADABLE}"),
                ("{uuid: a, index: 1}", f"spec.selector: {UNREADABLE}"),
                ("{andExpression: []}", f"spec.selector.andExpression: a list {UNREADABLE}"),
                ("{uuid: 7}", f"spec.selector.uuid: 7 {UNREADABLE}"),
                ("{colour: red}", f'spec.selector.colour: "red" {UNREADABLE}'),
                ("{migEnabled: 1}", f"spec.selector.migEnabled: 1 {UNREADABLE}"),
                ("{memory: {value: 1Gi, operator: Is}}", "spec.selector.memory: "),
                ("{memory: {value: big, operator: Equals}}", "spec.selector.memory: "),
                ("{driverVersion: {value: new, operator: Equals}}", "spec.selector.driverVersion"),
            )
        )
    ),
    Lost(
        name="unknown-field-of-parameters",
        text=asking("{cuont: 2}"),
        lines=((4, "spec.cuont: no version of this API has this field: check its spelling"),),
    ),
    Lost(
        name="connections",
        text=asking("{sharing: {strategy: MPS, mpsConfig: {maxConnections: 4}}}"),
        lines=((4, "spec.sharing.mpsConfig.maxConnections: an MPS daemon has no setting for"),),
    ),
    Lost(
        name="settings-of-another-strategy",
        text=asking("{sharing: {strategy: TimeSlicing, mpsConfig: {}}}"),
        lines=(
            (6, "as it is printed: spec.devices.config[0].opaque.parameters.sharing: cannot use "),
        ),
    ),
    Lost(
        name="uninitialized",
        text=asking("{profile: 1g.5gb, uninitialized: true}", "MigDeviceClaimParameters"),
        lines=((4, "spec.uninitialized: a MIG device has its compute instance from the start:"),),
    ),
    Lost(
        name="compute-instance",
        text=asking("{profile: 1c.2g.10gb}", "ComputeInstanceClaimParameters"),
        lines=(
            (2, "kind: left out: compute instances of a MIG device are not offered: ask for a"),
            (9, "spec.parametersRef: left out: ComputeInstanceClaimParameters p asks for some"),
        ),
        printed=0,
    ),
    *(
        Lost(
            name=f"nothing-for-{kind}",
            text=f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n",
            lines=((2, f"kind: {begin}"),),
            printed=printed,
        )
        for version, kind, begin, printed in (
            ("resource.k8s.io/v1alpha1", "PodScheduling", "left out: a driver or", 0),
            ("resource.k8s.io/v1beta1", "ResourceSlice", "left out: a driver or", 0),
            ("resource.k8s.io/v1alpha2", "ResourceClaimParameters", "left out: a driver gen", 0),
            ("resource.k8s.io/v1alpha2", "ResourceClassParameters", "left out: a driver gen", 0),
            ("nas.gpu.resource.nvidia.com/v1alpha1", "NodeAllocationState", "left out: a dr", 0),
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
        text=claim("{resourceClassName: gpu.nvidia.com}") + "spec: {resourceClassName: mine}\n",
        lines=((5, "spec.resourceClassName: unchanged: no ResourceClass in these files"),),
    ),
    Lost(
        name="doubled-key-of-what-is-printed",
        text=claim("{}") + "spec: {resourceClassName: gpu.nvidia.com}\n",
        lines=((5, "spec: this key stands twice, and all but the last are dropped"),),
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
            (4, "spec.metadata.annotations.gpu-fraction: KAI-Scheduler alone reads this, and"),
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
def test_a_resource_name_that_nothing_serves_is_told(name: str, text: str) -> None:
    lost = lost_of(POD_OF_LIMITS.format(limits=f"{{{name}: 1}}", selector="{}"))
    assert any(text in one for one in lost)


def test_a_percentage_of_a_gpus_memory_leaves_the_gpu_where_it_is() -> None:
    limits = "{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}"
    text = POD_OF_LIMITS.format(limits=limits, selector="{}")
    assert yaml.safe_load(convert({"f": text}).text) == yaml.safe_load(text)


def test_a_label_of_gpu_feature_discovery_in_a_node_selector_is_told() -> None:
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
def test_an_amount_that_is_not_carried_over_as_written_is_told(limits: str, text: str) -> None:
    (lost,) = lost_of(POD_OF_LIMITS.format(limits=f"{{nvidia.com/{limits}}}", selector="{}"))
    assert text in lost


@pytest.mark.parametrize("name", [*ANNOTATIONS, "hami.io/gpu-scheduler-policy"])
def test_an_annotation_that_nothing_reads_is_told_by_convert_and_by_validate(name: str) -> None:
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
def test_a_scheduler_that_goes_with_the_names_is_told(name: str, limits: str, told: bool) -> None:
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
