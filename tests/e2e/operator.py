"""What GPU Operator makes for its own DRA driver, with this driver's image in the place of its.

Entry point, variables, volumes, rights and labels are those of its version 26.7; how it finds a GPU
driver is left out, and what it would have found is written down. Paths are this node's, where the
operator has fixed ones.
"""

import shlex
from collections.abc import Mapping

from image.recipe import NAME as IMAGE
from image.recipe import version
from testbed.api import Object
from testbed.driver import Place
from testbed.installed_node import InstalledNode

NAMESPACE = "gpu-operator"
LABEL = "nvidia.com/gpu.deploy.dra-driver"
APP = {"app": "nvidia-dra-driver-kubelet-plugin"}

_ACCOUNT = "nvidia-dra-driver-kubeletplugin"
_VALIDATIONS = "/run/nvidia/validations"
_DRIVER = "/run/nvidia/driver"
_ENTRY_POINT = f"""\
set -a
source {_VALIDATIONS}/driver-ready
set +a
exec gpu-kubelet-plugin -v "${{LOG_VERBOSITY}}"
"""
_RIGHTS = {
    ("resource.k8s.io", "resourceclaims"): "get list watch",
    ("resource.k8s.io", "resourceslices"): "get list watch create update delete",
    ("", "nodes"): "get list watch update patch",
    ("", "pods"): "get list watch",
}


def manifests(node: InstalledNode, more: Mapping[str, str]) -> list[Object]:
    """Everything, with more variables for the driver, as the operator's values give some."""
    cluster_role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _ACCOUNT},
        "rules": [
            {"apiGroups": [group], "resources": [plural], "verbs": verbs.split()}
            for (group, plural), verbs in _RIGHTS.items()
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _ACCOUNT},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": _ACCOUNT,
        },
        "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": NAMESPACE}],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _ACCOUNT, "namespace": NAMESPACE},
        },
        cluster_role,
        binding,
        _device_class(),
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": APP["app"], "namespace": NAMESPACE, "labels": APP},
            "spec": {
                "selector": {"matchLabels": APP},
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": "100%"},
                },
                "template": {"metadata": {"labels": APP}, "spec": _pod(node, more)},
            },
        },
    ]


def _device_class() -> Object:
    expression = (
        "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def _pod(node: InstalledNode, more: Mapping[str, str]) -> Object:
    place, image = node.place, f"{IMAGE}:{version()}"
    found = {
        "IS_HOST_DRIVER": "false",
        "NVIDIA_DRIVER_ROOT": str(place.driver_root),
        "DRIVER_ROOT_CTR_PATH": _DRIVER,
        "NVIDIA_DEV_ROOT": str(place.driver_root),
        "DEV_ROOT_CTR_PATH": _DRIVER,
    }
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in found.items())
    paths = {
        "plugins-registry": str(place.registry),
        "plugins": str(place.plugins),
        "cdi": str(place.cdi_root),
        "host-root": "/",
        "driver-install-dir": str(place.driver_root),
    }
    return {
        "serviceAccountName": _ACCOUNT,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {LABEL: "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "initContainers": [
            {
                "name": "validator",
                "image": image,
                "command": ["bash", "-c", f'printf %s "$0" >{_VALIDATIONS}/driver-ready', lines],
                "volumeMounts": [{"name": "validations", "mountPath": _VALIDATIONS}],
            }
        ],
        "containers": [
            {
                "name": "gpus",
                "image": image,
                "securityContext": {"privileged": True},
                "command": ["bash", "-c"],
                "args": [_ENTRY_POINT],
                "env": _variables(node, image, more),
                "startupProbe": _probe(periodSeconds=1, failureThreshold=600),
                "livenessProbe": _probe(periodSeconds=30, failureThreshold=3),
                "volumeMounts": _mounts(place),
            }
        ],
        "volumes": [
            *({"name": name, "hostPath": {"path": path}} for name, path in paths.items()),
            {"name": "validations", "emptyDir": {}},
        ],
    }


def _mounts(place: Place) -> list[Object]:
    from_host = {"mountPropagation": "HostToContainer"}
    return [
        {"name": "plugins-registry", "mountPath": str(place.registry)},
        {"name": "plugins", "mountPath": str(place.plugins), "mountPropagation": "Bidirectional"},
        {"name": "cdi", "mountPath": str(place.cdi_root)},
        {"name": "validations", "mountPath": _VALIDATIONS, "readOnly": True},
        # Theirs is HostToContainer too, for which this machine's / would have to be shared.
        {"name": "host-root", "mountPath": "/host", "readOnly": True},
        {"name": "driver-install-dir", "mountPath": _DRIVER} | from_host,
    ]


def _variables(node: InstalledNode, image: str, more: Mapping[str, str]) -> list[Object]:
    place = node.place
    given = {
        "HTTP_ENDPOINT": ":8080",
        "METRICS_PATH": "/metrics",
        "LOG_VERBOSITY": "4",
        "MASK_NVIDIA_DRIVER_PARAMS": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
        "CDI_ROOT": str(place.cdi_root),
        "HOST_ROOT": "/host",
        "IMAGE_NAME": image,
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(place.registry),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(place.plugins),
        "HEALTHCHECK_PORT": "51516",
        "FEATURE_GATES": "TimeSlicingSettings=true,",
        **more,
    }
    fields = {"NODE_NAME": "spec.nodeName", "NAMESPACE": "metadata.namespace"}
    return [
        *({"name": name, "value": value} for name, value in given.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in fields.items()
        ),
    ]


def _probe(**times: int) -> Object:
    return {"grpc": {"port": 51516, "service": "liveness"}, "timeoutSeconds": 10, **times}
