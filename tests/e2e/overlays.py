"""Kustomizations of this repository's manifests for a node of hack/cluster, whose paths differ."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml
from image.recipe import NAME as IMAGE
from testbed.commands import REPOSITORY
from testbed.installed_node import NAMESPACE, InstalledNode

MANIFESTS = REPOSITORY / "manifests"
DRIVER = "kubelet-plugin"


def write_overlay(node: InstalledNode, folder: Path, tag: str) -> None:
    """Write one of the whole installation, with an image of another tag."""
    env = _folders(node) | node.pod_environment()
    patches = (
        _patch(node, "dra-driver", DRIVER, env),
        _patch(node, "dra-driver-mps-supervisor", "mps-supervisor", {}),
    )
    _write(folder, os.path.relpath(MANIFESTS, folder), tag, *patches)


def write_cleanup(node: InstalledNode, folder: Path, tag: str) -> None:
    """Write one of manifests/cleanup.yaml."""
    # The boot by which the cleanup knows the supervisor's daemons is the machine's for both.
    env = _folders(node) | {"PROC_ROOT": node.pod_environment()["PROC_ROOT"]}
    patch = _patch(node, "dra-driver-cleanup", "cleanup", env, among="initContainers")
    _write(folder, "cleanup.yaml", tag, patch)
    shutil.copy(MANIFESTS / "cleanup.yaml", folder)


def _folders(node: InstalledNode) -> dict[str, str]:
    return {
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(node.place.registry),
        "CDI_ROOT": str(node.place.cdi_root),
    }


def _write(folder: Path, resource: str, tag: str, *patches: str) -> None:
    folder.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [resource],
        "images": [{"name": IMAGE, "newTag": tag}],
        "patches": [{"patch": patch} for patch in patches],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))


def _patch(
    node: InstalledNode,
    name: str,
    container: str,
    env: Mapping[str, str],
    *,
    among: str = "containers",
) -> str:
    """A strategic merge patch that gives a DaemonSet the paths of this node."""
    place, default = node.place, "/var/lib/kubelet"
    paths = {"plugins": place.plugins, "driver-root": place.driver_root}
    mounts = {f"{default}/plugins": ("plugins", place.plugins)}
    if env:
        paths |= {"plugins-registry": place.registry, "cdi": place.cdi_root}
        mounts |= {
            f"{default}/plugins_registry": ("plugins-registry", place.registry),
            "/var/run/cdi": ("cdi", place.cdi_root),
        }
    propagation = "HostToContainer" if container == DRIVER else "Bidirectional"
    env = {
        **env,
        "NVIDIA_DRIVER_ROOT": str(place.driver_root),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(place.plugins),
    }
    spec = {
        among: [
            {
                "name": container,
                "env": [{"name": key, "value": value} for key, value in env.items()],
                "volumeMounts": [
                    *({"mountPath": old, "$patch": "delete"} for old in mounts),
                    *(
                        {"name": volume, "mountPath": str(path)}
                        | ({"mountPropagation": propagation} if volume == "plugins" else {})
                        for volume, path in mounts.values()
                    ),
                ],
            }
        ],
        "volumes": [
            {"name": volume, "hostPath": {"path": str(path)}} for volume, path in paths.items()
        ],
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata}
    return yaml.safe_dump(head | {"spec": {"template": {"spec": spec}}})
