"""DaemonSets are known by what they run."""

from typing import Any

import pytest

from dra_driver.admin.doctor.facts.installed import DaemonSets, sorted_out

Object = dict[str, Any]


def daemon_set(image: str, *command: str, **status: int) -> Object:
    container = {"image": image, "command": list(command)}
    return {
        "metadata": {"namespace": "gpu", "name": "one"},
        "spec": {"template": {"spec": {"serviceAccountName": "driver", "containers": [container]}}},
        "status": status,
    }


@pytest.mark.parametrize(
    ("image", "command", "kind"),
    [
        ("dra-driver:0.1.0", ("dra-driver", "kubelet-plugin"), "ours"),
        ("registry.example/a/dra-driver@sha256:00", ("dra-driver", "kubelet-plugin"), "ours"),
        ("dra-driver", ("bash", "-c", "exec gpu-kubelet-plugin -v 4"), "ours"),
        ("dra-driver:0.1.0", ("dra-driver", "mps-supervisor"), "supervisors"),
        ("registry.example/gpu-stack:v7", ("dra-driver", "kubelet-plugin"), "ours"),
        ("registry.example/gpu-stack:v7", ("/opt/bin/dra-driver", "mps-supervisor"), "supervisors"),
        ("gpu-stack", ("sh", "-c", "exec dra-driver kubelet-plugin -v 4"), "ours"),
        ("gpu-stack", ("gpu-kubelet-plugin",), "nvidias"),
        ("nvcr.io/nvidia/k8s-dra-driver-gpu:v25.3.0", (), "nvidias"),
        ("localhost:5000/dra-driver-nvidia-gpu:v0.5.0", ("gpu-kubelet-plugin",), "nvidias"),
        ("dra-driver-nvidia-gpu", ("sh", "-c", "compute-domain-kubelet-plugin -v 4"), None),
        ("dra-driver-nvidia-gpu:v0.5.0", ("compute-domain-daemon", "-v", "4", "run"), None),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.1", ("nvidia-device-plugin",), "device_plugins"),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.1", (), "device_plugins"),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.1", ("gpu-feature-discovery",), None),
        ("own/plugin", ("nvidia-device-plugin",), "device_plugins"),
        ("busybox", ("sleep",), None),
    ],
)
def test_other_gpu_components_are_recognised(
    image: str, command: tuple[str, ...], kind: str
) -> None:
    found = sorted_out([daemon_set(image, *command)])
    names = {
        name: [one.name for one in getattr(found, name)]
        for name in ("ours", "supervisors", "nvidias", "device_plugins")
    }
    assert names == {name: ["gpu/one"] if name == kind else [] for name in names}


def test_ours_are_known_by_the_charts_labels_whatever_they_run() -> None:
    wrapped = daemon_set("registry.example/gpu-stack", "/entry.sh")
    labels = {"app.kubernetes.io/name": "dra-driver"}
    for component, name in (("kubelet-plugin", "ours"), ("mps-supervisor", "supervisors")):
        label = {"app.kubernetes.io/component": component}
        wrapped["spec"]["template"]["metadata"] = {"labels": labels | label}
        (one,) = getattr(sorted_out([wrapped]), name)
        assert one.name == "gpu/one"
    other = {"app.kubernetes.io/name": "other", "app.kubernetes.io/component": "kubelet-plugin"}
    wrapped["spec"]["template"]["metadata"] = {"labels": other}
    assert sorted_out([wrapped]) == DaemonSets()


def test_how_many_pods_there_should_be_and_as_whom() -> None:
    counts = {"desiredNumberScheduled": 3, "numberReady": 2}
    (one,) = sorted_out([daemon_set("dra-driver", "kubelet-plugin", **counts)]).ours
    assert (one.wanted, one.ready) == (3, 2)
    assert one.user == "system:serviceaccount:gpu:driver"
    assert one.subject == ("gpu", "driver")


def test_a_daemonset_is_for_the_nodes_that_have_all_that_its_selector_asks_for() -> None:
    wanted = daemon_set("dra-driver-nvidia-gpu:v0.5.0", "gpu-kubelet-plugin")
    anywhere = sorted_out([wanted]).nvidias[0]
    wanted["spec"]["template"]["spec"]["nodeSelector"] = {"a": "1", "b": "2"}
    (one,) = sorted_out([wanted]).nvidias
    labels = {"y": {"a": "1", "b": "2", "c": "3"}, "x": {"a": "1", "b": "2"}, "z": {"a": "1"}}
    assert one.nodes(labels) == ["x", "y"]
    assert anywhere.nodes(labels) == []
