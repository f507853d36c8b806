"""Clusters as Cluster Autoscaler and Karpenter see them, for the programs that ask their functions.

Slices and templates are what `dra-driver inspect --slices` prints, as its JSON; claims and pods are
as the scheduler leaves them. The programs are hack/cluster/go/autoscaler and
hack/cluster/go/karpenter.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import make
from dra_driver.admin.doctor.facts import shipped
from dra_driver.cli import main

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
_READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What `dra-driver inspect --slices` prints."""
    assert main(["inspect", "--slices", "--output=json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["items"] if found.get("kind") == "List" else found


def classes() -> list[Object]:
    """The DeviceClasses of an install."""
    found = shipped.device_classes().items()
    return [{"metadata": {"name": name}, "spec": spec} for name, spec in found]


def node(name: str, *, annotations: Object | None = None, **labels: str) -> Object:
    """A Node that is ready, and has no GPUs in its allocatable, since the driver adds none."""
    resources = {"cpu": "96", "memory": "1Ti", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name} | labels,
            "annotations": annotations or {},
        },
        "status": {"capacity": resources, "allocatable": resources, "conditions": [_READY]},
    }


def pod(name: str, on: str = "", *, gpus: int = 0, annotations: Object | None = None) -> Object:
    """A pod of a ReplicaSet that asks for GPUs by container limits, or by the claim of its name."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "web",
        "controller": True,
    }
    resources: Object = {"requests": {"cpu": "1"}}
    spec: Object = {"containers": [{"name": "main", "resources": resources}]}
    if gpus:
        resources["limits"] = {GPU: str(gpus)}
        resources["requests"][GPU] = str(gpus)
    else:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        resources["claims"] = [{"name": "gpu"}]
    if on:
        spec["nodeName"] = on
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "ownerReferences": [owner],
            "annotations": annotations or {},
        },
        "spec": spec,
        "status": {"phase": "Running" if on else "Pending"},
    }


def claim(name: str, *devices: str, on: str = "", spec: Object | None = None) -> Object:
    """A claim of the pod of its name; with a node, devices of it are allocated."""
    wanted: Object = spec or {"requests": [{"name": "gpu", "exactly": exactly()}]}
    found: Object = {
        "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}"},
        "spec": {"devices": wanted},
    }
    if on:
        found["status"] = make.claim_object(*devices, pool=on)["status"]
        found["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
    return found


def exactly(
    *selectors: str, of: str = "gpu.nvidia.com", count: int = 1, **fields: object
) -> Object:
    """A request for so many devices, as the API server has it with its defaults."""
    return {
        "deviceClassName": of,
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": one}} for one in selectors],
        **fields,
    }


def by_limits(name: str, *devices: str, on: str) -> tuple[Object, Object]:
    """A pod that got GPUs by its limits, and the claim that the scheduler made for it."""
    made, found = pod(name, on, gpus=len(devices)), claim(f"{name}-extended", *devices, on=on)
    requests = {"containerName": "main", "resourceName": GPU, "requestName": "gpu"}
    made["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": found["metadata"]["name"],
        "requestMappings": [requests],
    }
    found["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    found["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
    return made, found


def cluster(
    nodes: Sequence[Object],
    slices: Sequence[Object],
    pods: Iterable[Object] = (),
    claims: Iterable[Object] = (),
    **more: object,
) -> Object:
    """A question to autoscaler-judge; `more` are its other fields."""
    return {
        "gpuLabel": "kubernetes.azure.com/accelerator",
        "nodes": nodes,
        "slices": slices,
        "classes": classes(),
        "pods": list(pods),
        "claims": list(claims),
        **more,
    }
