"""The manifests agree with the code and with each other, where that needs no API server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import told
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.mps.supervisor.command import MpsSupervisor
from dra_driver.node.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "manifests"
INSTALL = MANIFESTS / "install.yaml"
CLASSES = REPOSITORY / "deviceclasses"
DRIVER, SUPERVISOR = "dra-driver", "dra-driver-mps-supervisor"
DEMOS = sorted(path.parent for path in (MANIFESTS / "demos").glob("*/demo.yaml"))

Object = dict[str, Any]


def objects(*paths: Path) -> Iterator[Object]:
    for path in paths:
        yield from yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)


def only(kind: str, name: str, path: Path = INSTALL) -> Object:
    found: Object
    (found,) = (
        thing
        for thing in objects(path)
        if (thing["kind"], thing["metadata"]["name"]) == (kind, name)
    )
    return found


def kustomization(folder: Path) -> Object:
    found: Object = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return found


def pod_spec(name: str) -> Object:
    spec: Object = only("DaemonSet", name)["spec"]["template"]["spec"]
    return spec


def plugin_container() -> Object:
    container: Object
    (container,) = pod_spec(DRIVER)["containers"]
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
    if thing["kind"] in {"Deployment", "StatefulSet"}:
        return [(f"{name}-{n}", spec["template"]["spec"]) for n in range(spec["replicas"])]
    return [(name, spec)] if thing["kind"] == "Pod" else []


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "mig.nvidia.com"])
def test_a_device_class_is_the_drivers_and_serves_no_resource_name(name: str) -> None:
    found = only("DeviceClass", name)
    assert "extendedResourceName" not in found["spec"]
    (selector,) = found["spec"]["selectors"]
    assert f"device.driver == '{DRIVER_NAME}'" in selector["cel"]["expression"]


def test_kustomize_takes_every_file_of_device_classes_and_nothing_else() -> None:
    assert kustomization(CLASSES) == {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted({one.name for one in CLASSES.iterdir()} - {"kustomization.yaml"}),
    }


def test_the_device_classes_alone_are_those_of_an_installation() -> None:
    installed = [one for one in objects(INSTALL) if one["kind"] == "DeviceClass"]
    alone = list(objects(*(CLASSES / name for name in kustomization(CLASSES)["resources"])))
    assert sorted(installed, key=str) == sorted(alone, key=str)


def test_a_fail_closed_policy_covers_all_that_the_driver_writes() -> None:
    refusing = {
        one["spec"]["policyName"]
        for one in objects(INSTALL)
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
        and one["spec"]["validationActions"] == ["Deny"]
    }
    looked_at = {
        (operation, resource)
        for one in objects(INSTALL)
        if one["kind"] == "ValidatingAdmissionPolicy"
        and one["metadata"]["name"] in refusing
        and one["spec"]["failurePolicy"] == "Fail"
        and one["spec"]["matchConstraints"]["matchPolicy"] == "Equivalent"
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    (role,) = (one for one in objects(INSTALL) if one["kind"] == "ClusterRole")
    operations = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
    written = {
        (operations[verb], resource)
        for rule in role["rules"]
        if rule["apiGroups"] == ["resource.k8s.io"]
        for verb in operations.keys() & set(rule["verbs"])
        for resource in rule["resources"]
    }
    assert {resource for _, resource in written} == {"resourceslices", "resourceclaims/status"}
    assert written <= looked_at


def test_the_driver_understands_the_values_of_the_daemonset() -> None:
    given = {one["name"]: one.get("value", "10.0.0.1") for one in plugin_container()["env"]}
    settings = told(Settings, given | {"POD_UID": "0b8e6a5e"})
    assert settings.without_effect() == {}
    (port,) = plugin_container()["ports"]
    assert settings.http_endpoint == f":{port['containerPort']}"


def test_the_kubelets_probes_use_what_no_other_pod_reaches() -> None:
    """At a socket in a volume of the pod's own, by a program of the image."""
    container, path = plugin_container(), Path(values(plugin_container())["HEALTH_SOCKET"])
    asked = {"startupProbe": "liveness", "readinessProbe": "readiness", "livenessProbe": "liveness"}
    for probe, service in asked.items():
        assert container[probe]["exec"] == {"command": ["dra-driver-probe", str(path), service]}
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == str(path.parent))
    (volume,) = (one for one in pod_spec(DRIVER)["volumes"] if one["name"] == mount["name"])
    assert "emptyDir" in volume
    assert not {"startupProbe", "readinessProbe", "livenessProbe"} & set(supervisor_container())


def test_the_supervisor_runs_where_the_driver_does_and_meets_it_there() -> None:
    supervisor, driver = pod_spec(SUPERVISOR), pod_spec(DRIVER)
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
    account = only("ServiceAccount", SUPERVISOR)
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is False
    bound = {
        subject["name"]
        for thing in objects(INSTALL)
        if thing["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        for subject in thing["subjects"]
    }
    assert account["metadata"]["name"] not in bound


@pytest.mark.parametrize("name", [DRIVER, SUPERVISOR])
def test_a_pod_mounts_only_what_it_needs(name: str) -> None:
    pod = pod_spec(name)
    (container,) = pod["containers"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    shared = {field for field in pod if field.startswith(("host", "share"))}
    assert shared == ({"hostPID"} if name == SUPERVISOR else set())
    writable = {
        one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly", False)
    }
    assert not any(path == "/driver-root" for path in writable)


@pytest.mark.parametrize("folder", DEMOS, ids=lambda folder: str(folder.name))
def test_a_demo_is_whole(folder: Path) -> None:
    expect = yaml.safe_load((folder / "expect.yaml").read_text())
    things = list(objects(folder / "demo.yaml"))
    by_container = ("mig", "env", "mounts", "node", "mps", "passthrough")
    groups = [each for part in ("equal", "disjoint", "sameMig") for each in expect.get(part, [])]
    assert set(expect) <= {
        "namespace",
        "needs",
        "driver",
        "gpus",
        "equal",
        "disjoint",
        "sameMig",
        "sick",
        *by_container,
    }
    containers = {
        f"{pod}/{container['name']}"
        for thing in things
        for pod, spec in pods(thing)
        for container in spec["containers"]
    }
    assert set(expect["gpus"]) == containers
    groups += [list(expect.get(part, {})) for part in by_container]
    assert {container for group in groups for container in group} <= containers
    if sick := expect.get("sick"):
        assert sick["container"] in expect["gpus"]
        assert sick["grows"] in {
            thing["metadata"]["name"] for thing in things if thing["kind"] == "Deployment"
        }
    in_namespaces = [thing for thing in things if thing["kind"] != "DeviceClass"]
    names = {one["metadata"].get("namespace", one["metadata"]["name"]) for one in in_namespaces}
    assert names == {expect["namespace"]} == {folder.name}


@pytest.mark.parametrize("folder", DEMOS, ids=lambda folder: str(folder.name))
def test_a_demos_readme_says_how_to_run_it(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert f"kubectl apply -f manifests/demos/{folder.name}/demo.yaml" in text
    assert re.search(rf"make demo DEMO={folder.name}\b", text)
