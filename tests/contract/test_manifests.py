"""The manifests agree with the code and with each other, where that needs no API server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import AliasChoices

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "manifests"
DEMOS = sorted(path.parent for path in (MANIFESTS / "demos").glob("*/demo.yaml"))

Object = dict[str, Any]


def objects(*paths: Path) -> Iterator[Object]:
    for path in paths:
        yield from yaml.safe_load_all(path.read_text())


def only(kind: str, *paths: Path) -> Object:
    (found,) = (thing for thing in objects(*paths) if thing["kind"] == kind)
    return found


def plugin_container() -> Object:
    pod = only("DaemonSet", MANIFESTS / "daemonset.yaml")["spec"]["template"]["spec"]
    container: Object
    (container,) = pod["containers"]
    return container


def test_the_device_class_is_the_drivers_and_has_the_extended_resource() -> None:
    found = only("DeviceClass", REPOSITORY / "deviceclasses" / "gpu.yaml")
    assert found["metadata"]["name"] == "gpu.nvidia.com"
    assert found["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    (selector,) = found["spec"]["selectors"]
    assert f"device.driver == '{DRIVER_NAME}'" in selector["cel"]["expression"]


def test_the_role_has_exactly_the_permissions_that_the_driver_uses() -> None:
    role = only("ClusterRole", MANIFESTS / "rbac.yaml")
    granted = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    write = {"create", "update", "patch", "delete"}
    assert granted == {
        ("resource.k8s.io", "resourceclaims"): {"get"},
        ("resource.k8s.io", "resourceslices"): {"get", "list", "watch"} | write,
        ("", "nodes"): {"get"},
    }


def test_every_part_names_the_same_service_account() -> None:
    account = only("ServiceAccount", MANIFESTS / "rbac.yaml")["metadata"]
    name, namespace = account["name"], account["namespace"]
    pod = only("DaemonSet", MANIFESTS / "daemonset.yaml")
    assert only("Namespace", MANIFESTS / "namespace.yaml")["metadata"]["name"] == namespace
    assert pod["metadata"]["namespace"] == namespace
    assert pod["spec"]["template"]["spec"]["serviceAccountName"] == name
    (subject,) = only("ClusterRoleBinding", MANIFESTS / "rbac.yaml")["subjects"]
    assert (subject["name"], subject["namespace"]) == (name, namespace)
    policy = only("ValidatingAdmissionPolicy", MANIFESTS / "admission.yaml")["spec"]
    (condition,) = policy["matchConditions"]
    assert f"'system:serviceaccount:{namespace}:{name}'" in condition["expression"]


def test_the_policy_names_the_driver_and_is_bound() -> None:
    policy = only("ValidatingAdmissionPolicy", MANIFESTS / "admission.yaml")
    binding = only("ValidatingAdmissionPolicyBinding", MANIFESTS / "admission.yaml")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert f"spec.driver == '{DRIVER_NAME}'" in str(policy["spec"]["validations"])


def test_every_variable_of_the_daemonset_is_a_setting() -> None:
    known = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        known |= {str(one) for one in alias.choices} if isinstance(alias, AliasChoices) else {name}
    for variable in plugin_container()["env"]:
        assert variable["name"].lower() in known


def test_the_driver_understands_the_values_of_the_daemonset() -> None:
    given = {one["name"].lower(): one.get("value", "10.0.0.1") for one in plugin_container()["env"]}
    settings = Settings.model_validate(given | {"pod_uid": "0b8e6a5e"})
    assert settings.without_effect() == {}
    ports = {port["name"]: port["containerPort"] for port in plugin_container()["ports"]}
    assert settings.healthcheck_port == ports["health"]
    assert settings.http_endpoint == f":{ports['metrics']}"
    for probe in ("startupProbe", "livenessProbe"):
        assert plugin_container()[probe]["grpc"]["port"] == settings.healthcheck_port


def test_paths_that_the_kubelet_and_the_driver_share_are_the_same_for_both() -> None:
    pod = only("DaemonSet", MANIFESTS / "daemonset.yaml")["spec"]["template"]["spec"]
    hosts = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in plugin_container()["volumeMounts"]}
    settings = Settings.model_validate({"node_name": "node"})
    for name, path in (
        ("plugins", settings.kubelet_plugins_directory_path),
        ("plugins-registry", settings.kubelet_registrar_directory_path),
        ("cdi", settings.cdi_root),
    ):
        assert hosts[name] == mounts[name] == str(path)
    assert set(mounts) == set(hosts)


def test_kustomize_applies_every_manifest() -> None:
    listed = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == files | {"../deviceclasses"}
    classes = REPOSITORY / "deviceclasses"
    listed = yaml.safe_load((classes / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in classes.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.parametrize("folder", DEMOS, ids=lambda folder: str(folder.name))
def test_a_demo_is_whole(folder: Path) -> None:
    expect = yaml.safe_load((folder / "expect.yaml").read_text())
    things = list(objects(folder / "demo.yaml"))
    assert set(expect) <= {"namespace", "gpus", "equal", "disjoint"}
    containers = {
        f"{thing['metadata']['name']}/{container['name']}"
        for thing in things
        if thing["kind"] == "Pod"
        for container in thing["spec"]["containers"]
    }
    assert set(expect["gpus"]) == containers
    groups = [*expect.get("equal", []), *expect.get("disjoint", [])]
    assert {container for group in groups for container in group} <= containers
    names = {thing["metadata"].get("namespace", thing["metadata"]["name"]) for thing in things}
    assert names == {expect["namespace"]} == {folder.name}


@pytest.mark.parametrize("folder", DEMOS, ids=lambda folder: str(folder.name))
def test_a_demos_readme_says_how_to_run_it(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert f"kubectl apply -f manifests/demos/{folder.name}/demo.yaml" in text
    assert re.search(rf"make demo DEMO={folder.name}\b", text)
