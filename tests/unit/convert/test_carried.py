"""What `convert` carries over, rule by rule."""

from typing import Any

import pytest
import yaml

from dra_driver.admin.convert.manifests import convert

CONFIG = "{apiVersion: gpu.nvidia.com/v1alpha1, kind: MigDeviceConfig, sharing: {strategy: MPS}}"


def converted(text: str) -> list[Any]:
    """What is printed of a manifest of which nothing is lost."""
    found = convert({"f": text})
    assert found.reports["f"].findings == ()
    return list(yaml.safe_load_all(found.text))


def pods(*specs: str, namespace: str = "n") -> list[Any]:
    return converted(
        "---\n".join(
            f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: {namespace}}}\n"
            f"spec: {spec}\n"
            for spec in specs
        )
    )


def container(limits: str, name: str = "a") -> str:
    return f"{{name: {name}, image: i, resources: {{limits: {limits}}}}}"


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1"])
def test_a_config_changes_its_group_in_objects_of_any_version(version: str) -> None:
    (found,) = converted(
        f"apiVersion: resource.k8s.io/{version}\nkind: DeviceClass\nmetadata: {{name: c}}\n"
        f"spec: {{config: [{{opaque: {{driver: gpu.nvidia.com, parameters: {CONFIG}}}}}]}}\n"
    )
    assert found["spec"]["config"][0]["opaque"]["parameters"] == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "MigDeviceConfig",
        "sharing": {"strategy": "MPS"},
    }


def test_a_flat_request_is_put_under_exactly_in_v1_too() -> None:
    (found,) = converted(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"
        "spec: {devices: {requests: [{name: a, deviceClassName: gpu.nvidia.com, count: 2}]}}\n"
    )
    assert found["spec"]["devices"]["requests"] == [
        {"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    ]


def test_a_template_takes_no_name_that_is_taken() -> None:
    taken = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n"
        "metadata: {name: nvidia-gpu-1}\nspec: {spec: {}}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
        f"spec: {{containers: [{container('{nvidia.com/gpu: 1}')}]}}\n"
    )
    _, template, pod = converted(taken)
    assert template["metadata"] == {"name": "nvidia-gpu-1-converted"}
    (claim,) = pod["spec"]["resourceClaims"]
    assert claim == {"name": "gpu", "resourceClaimTemplateName": "nvidia-gpu-1-converted"}


def test_each_container_has_devices_of_its_own_beside_its_other_claims() -> None:
    spec = (
        "{resourceClaims: [{name: gpu, resourceClaimName: mine}], containers: ["
        "{name: a, image: i, resources: {limits: {nvidia.com/gpu: 1}, claims: [{name: gpu}]}}, "
        f"{container('{nvidia.com/gpu: 1}', 'b')}]}}"
    )
    *_, pod = pods(spec)
    assert [one["resources"] for one in pod["spec"]["containers"]] == [
        {"claims": [{"name": "gpu"}, {"name": "gpu-2"}]},
        {"claims": [{"name": "gpu-3"}]},
    ]
    assert [one["name"] for one in pod["spec"]["resourceClaims"]] == ["gpu", "gpu-2", "gpu-3"]


def test_init_containers_have_the_devices_of_others_that_ask_for_as_many() -> None:
    one = container("{nvidia.com/gpu: 1}", "b")
    last = one.replace("b", "c", 1)
    *_, pod = pods(f"{{initContainers: [{one}, {last}], containers: [{{name: a, image: i}}]}}")
    first, second = pod["spec"]["initContainers"]
    assert first["resources"] == second["resources"] == {"claims": [{"name": "gpu"}]}


def test_memory_that_an_annotation_asks_kai_for_is_a_part_by_capacity_of_its_container() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {gpu-memory: '4096', "
        "gpu-fraction-container-name: b, gpu-fraction-num-devices: '2'}}\n"
        "spec: {containers: [{name: a, image: i}, {name: b, image: i}]}\n"
    )
    template, pod = converted(text)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    assert request["exactly"]["capacity"] == {"requests": {"memory": "4096Mi"}}
    assert pod["metadata"] == {"name": "p"}
    assert pod["spec"]["containers"][1]["resources"] == {"claims": [{"name": "gpu"}]}


@pytest.mark.parametrize(
    "text", ["1e3", "0x10", "1_000", "yes", "NULL", "~", "y", "1:30", "a: b", "a #b", "", " ", "-"]
)
def test_text_stays_text(text: str) -> None:
    found = convert(
        {
            "f": "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\n"
            f"metadata: {{name: c, annotations: {{a: '{text}'}}}}\nspec: {{devices: {{}}}}\n"
        }
    )
    assert f'    a: "{text}"\n' in found.text


@pytest.mark.parametrize(
    ("limits", "name", "asked_for"),
    [
        (
            "{nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}",
            "nvidia-gpu-2-3000mi-30-percent",
            {"count": 2, "capacity": {"requests": {"memory": "3000Mi", "cores": "30"}}},
        ),
        (
            "{nvidia.com/gpumem: 3000}",
            "nvidia-gpu-1-3000mi",
            {"capacity": {"requests": {"memory": "3000Mi"}}},
        ),
        (
            "{nvidia.com/vgpu-number: 1, nvidia.com/vgpu-cores: 100, nvidia.com/vgpu-memory: 1000}",
            "nvidia-gpu-1-1000mi",
            {"capacity": {"requests": {"memory": "1000Mi"}}},
        ),
        (
            "{volcano.sh/vgpu-number: 1, volcano.sh/vgpu-cores: 50}",
            "nvidia-gpu-1-50-percent",
            {"capacity": {"requests": {"cores": "50"}}},
        ),
        ("{nvidia.com/vgpu-number: 1}", "nvidia-gpu-1", {}),
    ],
)
def test_a_part_of_a_gpu_by_the_names_of_others_is_a_part_by_capacity_under_mps(
    limits: str, name: str, asked_for: dict[str, Any]
) -> None:
    template, pod = pods(f"{{containers: [{container(limits)}]}}")
    assert template["metadata"] == {"name": name, "namespace": "n"}
    devices = template["spec"]["spec"]["devices"]
    class_name = "gpu.nvidia.com" if asked_for else "gpu.resource.nvidia.com"
    assert devices["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": class_name, **asked_for}}
    ]
    if asked_for:
        (config,) = devices["config"]
        assert config["requests"] == ["gpu"]
        assert config["opaque"]["parameters"]["sharing"] == {"strategy": "MPS"}
    else:
        assert "config" not in devices
    assert pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": name}]
