"""The chart on other people's platforms: value files, paths, and who sends pods off a node."""

import re
from pathlib import Path

import pytest

from charts import (
    FOLDER,
    PLATFORMS,
    REPOSITORY,
    Render,
    daemon_set,
    driver_pod,
    environment,
    host_paths,
    of_kind,
)
from dra_driver.node.settings import Settings

KUBELET = "/var/lib/kubelet"
PAGE = REPOSITORY / "docs" / "install.md"


@pytest.mark.parametrize("values", PLATFORMS, ids=lambda path: path.stem)
def test_a_platform_has_its_paths(render: Render, values: Path) -> None:
    roots = {
        "driver-container": "/run/nvidia/driver",
        "gpu-operator": "/run/nvidia/driver",
        "openshift": "/run/nvidia/driver",
        "cos": "/home/kubernetes/bin/nvidia",
        **dict.fromkeys(("talos", "bottlerocket", "flatcar", "k3s", "rke2"), "/"),
    }
    assert set(roots) == {path.stem for path in PLATFORMS}
    things = render("--values", values)
    for component in ("kubelet-plugin", "mps-supervisor"):
        pod = daemon_set(things, component)["spec"]["template"]["spec"]
        paths, given = host_paths(pod), environment(pod)
        root = roots[values.stem]
        assert paths["driver-root"] == given["NVIDIA_DRIVER_ROOT"] == root
        assert given.get("NVIDIA_DEV_ROOT") == ("/" if values.stem == "cos" else None)
        assert paths["plugins"] == given["KUBELET_PLUGINS_DIRECTORY_PATH"] == f"{KUBELET}/plugins"
    pod = driver_pod(things)
    assert host_paths(pod)["plugins-registry"] == f"{KUBELET}/plugins_registry"
    assert host_paths(pod)["cdi"] == environment(pod)["CDI_ROOT"] == "/var/run/cdi"


def test_gpu_operators_label_removes_both_daemon_sets(render: Render) -> None:
    file = FOLDER / "platforms" / "gpu-operator.yaml"
    name, label = re.findall(r"driver\.manager\.env\[0\]\.(?:name|value)=(\S+)", file.read_text())
    assert name == "NODE_LABEL_FOR_GPU_POD_EVICTION"
    told = f"'driver.manager.env[0].value={label}'"
    assert told in PAGE.read_text()
    openshift = file.with_name("openshift.yaml")
    for words in (("--values", file), ("--values", file, "--values", openshift)):
        sets = of_kind(render(*words), "DaemonSet")
        assert len(sets) == 2
        for one in sets:
            assert one["spec"]["template"]["spec"]["nodeSelector"] == {label: "true"}


def test_pods_get_the_time_that_an_evicted_driver_may_wait_for_claims(render: Render) -> None:
    settings = Settings(node_name="n")
    wait = settings.eviction_wait + settings.shutdown_grace + settings.shutdown_delay
    for one in of_kind(render(), "DaemonSet"):
        assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= wait + 30


def test_every_platform_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [path.name for path in PLATFORMS if f"`{path.name}`" not in text] == []


def test_other_folders_of_the_kubelet_are_mounted_where_the_driver_looks(render: Render) -> None:
    pod = driver_pod(
        render(
            "--set",
            "kubeletPlugin.kubeletPluginsDirectoryPath=/k/plugins,"
            "kubeletPlugin.kubeletRegistrarDirectoryPath=/k/registry,cdiRoot=/etc/cdi",
        )
    )
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    given, paths = environment(pod), host_paths(pod)
    for volume, variable, path in (
        ("plugins", "KUBELET_PLUGINS_DIRECTORY_PATH", "/k/plugins"),
        ("plugins-registry", "KUBELET_REGISTRAR_DIRECTORY_PATH", "/k/registry"),
        ("cdi", "CDI_ROOT", "/etc/cdi"),
    ):
        assert mounts[volume] == paths[volume] == given[variable] == path
    assert mounts["pod-resources"] == paths["pod-resources"] == "/k/pod-resources"


def test_where_the_driver_root_is_not_the_hosts_the_names_of_pods_are_mounted(
    render: Render,
) -> None:
    assert "pod-logs" not in host_paths(driver_pod(render()))
    pod = driver_pod(render("--set", "nvidiaDriverRoot=/run/nvidia/driver"))
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "pod-logs"]
    assert mount == {"name": "pod-logs", "mountPath": "/var/log/pods", "readOnly": True}
    assert host_paths(pod)["pod-logs"] == "/var/log/pods"


def test_a_driver_that_comes_later_does_not_keep_the_pod_from_starting(render: Render) -> None:
    def kind(*words: str) -> str:
        (found,) = (
            volume["hostPath"]["type"]
            for volume in driver_pod(render(*words))["volumes"]
            if volume["name"] == "driver-root"
        )
        return str(found)

    assert kind() == "Directory"
    assert kind("--set", "nvidiaDriverRoot=/run/nvidia/driver") == "DirectoryOrCreate"


def test_gpus_are_offered_to_virtual_machines_by_one_value(render: Render) -> None:
    """The pod has what it takes: all of the host's /dev."""
    for words, offers in (
        ("vfio=false", None),
        ("vfio=true", "true"),
        ("featureGates.PassthroughSupport=true", "true"),
    ):
        pod = driver_pod(render("--set", words))
        assert environment(pod).get("VFIO") == offers
        assert host_paths(pod)["dev"] == "/dev"
