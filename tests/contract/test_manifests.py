"""The manifests agree with the code and with each other, where that needs no API server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.mps.cli import MpsSupervisor
from dra_driver.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "manifests"
SUPERVISOR = "mps-supervisor.yaml"
DEMOS = sorted(path.parent for path in (MANIFESTS / "demos").glob("*/demo.yaml"))

Object = dict[str, Any]


def objects(*paths: Path) -> Iterator[Object]:
    for path in paths:
        yield from yaml.safe_load_all(path.read_text())


def only(kind: str, *paths: Path) -> Object:
    (found,) = (thing for thing in objects(*paths) if thing["kind"] == kind)
    return found


def pod_spec(file: str) -> Object:
    spec: Object = only("DaemonSet", MANIFESTS / file)["spec"]["template"]["spec"]
    return spec


def plugin_container() -> Object:
    container: Object
    (container,) = pod_spec("daemonset.yaml")["containers"]
    return container


def supervisor_container() -> Object:
    container: Object
    (container,) = pod_spec(SUPERVISOR)["containers"]
    return container


def values(container: Object) -> dict[str, str]:
    """The variables of a container that are the same in every pod."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def pods(thing: Object) -> list[tuple[str, Object]]:
    """The pods that an object is or makes: name and spec."""
    name, spec = thing["metadata"]["name"], thing.get("spec", {})
    if thing["kind"] == "StatefulSet":
        return [(f"{name}-{n}", spec["template"]["spec"]) for n in range(spec["replicas"])]
    return [(name, spec)] if thing["kind"] == "Pod" else []


def test_the_device_class_of_mig_devices_is_the_drivers() -> None:
    found = only("DeviceClass", REPOSITORY / "deviceclasses" / "mig.yaml")
    assert found["metadata"]["name"] == "mig.nvidia.com"
    (selector,) = found["spec"]["selectors"]
    assert f"device.driver == '{DRIVER_NAME}'" in selector["cel"]["expression"]


def test_the_device_class_is_the_drivers_and_has_the_extended_resource() -> None:
    found = only("DeviceClass", REPOSITORY / "deviceclasses" / "gpu.yaml")
    assert found["metadata"]["name"] == "gpu.nvidia.com"
    assert found["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    (selector,) = found["spec"]["selectors"]
    assert f"device.driver == '{DRIVER_NAME}'" in selector["cel"]["expression"]


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


@pytest.mark.parametrize(
    ("file", "model"), [("daemonset.yaml", Settings), (SUPERVISOR, MpsSupervisor)]
)
def test_every_variable_of_a_daemonset_is_a_setting(file: str, model: type[BaseSettings]) -> None:
    known = set()
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        known |= {str(one) for one in alias.choices} if isinstance(alias, AliasChoices) else {name}
    (container,) = pod_spec(file)["containers"]
    for variable in container["env"]:
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


def test_the_supervisor_runs_where_the_driver_does_and_meets_it_there() -> None:
    supervisor, driver = pod_spec(SUPERVISOR), pod_spec("daemonset.yaml")
    for field in ("affinity", "tolerations", "priorityClassName"):
        assert supervisor[field] == driver[field]
    hosts = {volume["name"]: volume.get("hostPath") for volume in driver["volumes"]}
    for volume in supervisor["volumes"]:
        if volume["name"] in hosts:
            assert volume.get("hostPath") == hosts[volume["name"]]
    mounts = {one["name"]: one for one in supervisor_container()["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in supervisor["volumes"]}
    plugins = MpsSupervisor().kubelet_plugins_directory_path
    assert mounts["plugins"]["mountPath"] == str(plugins)
    assert hosts["plugins"] == {"path": str(plugins), "type": "DirectoryOrCreate"}
    roots = ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH")
    ours, theirs = values(supervisor_container()), values(plugin_container())
    assert [ours[name] for name in roots] == [theirs[name] for name in roots]
    assert ours["DRIVER_ROOT_CTR_PATH"] == mounts["driver-root"]["mountPath"]
    assert ours["CGROUP_ROOT"] == mounts["cgroup"]["mountPath"]


def test_the_supervisor_has_what_daemons_need_and_no_rights_in_the_cluster() -> None:
    pod, container = pod_spec(SUPERVISOR), supervisor_container()
    assert pod["hostPID"] is True
    assert container["securityContext"]["privileged"] is True
    (plugins,) = (one for one in container["volumeMounts"] if one["name"] == "plugins")
    assert plugins["mountPropagation"] == "Bidirectional"
    account = only("ServiceAccount", MANIFESTS / SUPERVISOR)
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is False
    bound = {
        subject["name"]
        for thing in objects(*MANIFESTS.glob("*.yaml"))
        if thing["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        for subject in thing["subjects"]
    }
    assert account["metadata"]["name"] not in bound


def test_the_supervisor_is_probed_where_it_listens() -> None:
    container = supervisor_container()
    (port,) = container["ports"]
    assert values(container)["HTTP_ENDPOINT"] == f":{port['containerPort']}"
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"port": port["name"], "path": "/healthz"}


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
    by_container = ("mig", "env", "mounts", "node", "mps")
    assert set(expect) <= {"namespace", "gpus", "equal", "disjoint", *by_container}
    containers = {
        f"{pod}/{container['name']}"
        for thing in things
        for pod, spec in pods(thing)
        for container in spec["containers"]
    }
    assert set(expect["gpus"]) == containers
    groups = [*expect.get("equal", []), *expect.get("disjoint", [])]
    groups += [list(expect.get(part, {})) for part in by_container]
    assert {container for group in groups for container in group} <= containers
    in_namespaces = [thing for thing in things if thing["kind"] != "DeviceClass"]
    names = {one["metadata"].get("namespace", one["metadata"]["name"]) for one in in_namespaces}
    assert names == {expect["namespace"]} == {folder.name}


@pytest.mark.parametrize("folder", DEMOS, ids=lambda folder: str(folder.name))
def test_a_demos_readme_says_how_to_run_it(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert f"kubectl apply -f manifests/demos/{folder.name}/demo.yaml" in text
    assert re.search(rf"make demo DEMO={folder.name}\b", text)
