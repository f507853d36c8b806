"""Clusters for `dra-driver explain`: nodes, GPUs, classes, pods and claims, as objects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer
from testbed.manifests import installed

import make
from dra_driver.cli import main
from dra_driver.devices.model import Gpu
from dra_driver.slices.project import projection
from published import slices

Object = dict[str, Any]


def gpus(
    *names: str, count: int = 2, mig: bool = False, node: str = "node-1", **facts: Any
) -> list[Object]:
    """The slices of a node with so many GPUs, or with one for each product name."""
    made: list[Gpu] = []
    for number, name in enumerate(names or ("NVIDIA H100 80GB HBM3",) * count):
        partitions = {"mig": make.mig()} if mig else {}
        made.append(make.gpu(number, product_name=name, **partitions, **facts))
    found = projection(make.inventory(*made))
    return slices(found.devices, found.counter_sets, node=node)


def node(name: str = "node-1", **spec: Any) -> Object:
    """A Node that is ready."""
    labels = spec.pop("labels", {})
    allocatable = spec.pop("allocatable", {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "8", **allocatable},
        },
    }


def classes() -> list[Object]:
    """The DeviceClasses that an install brings."""
    return list(installed("DeviceClass"))


def request(name: str = "gpu", device_class: str = "gpu.nvidia.com", **facts: Any) -> Object:
    """A request; `selector` is the text of one."""
    selector = facts.pop("selector", "")
    made = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1, **facts}
    if made["allocationMode"] == "All":
        del made["count"]
    if selector:
        made["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": made}


def claim(
    *requests: Object, name: str = "wanted", constraints: Sequence[Object] = (), **status: Any
) -> Object:
    """A ResourceClaim that is to be allocated."""
    devices: Object = {"requests": list(requests) or [request()]}
    if constraints:
        devices["constraints"] = list(constraints)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"devices": devices},
        "status": status,
    }


def template(*requests: Object, name: str = "one-gpu") -> Object:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"spec": {"devices": {"requests": list(requests) or [request()]}}},
    }


def pod(
    *claims: str,
    name: str = "train",
    templates: Sequence[str] = (),
    limits: Mapping[str, int] | None = None,
    **spec: Any,
) -> Object:
    """A Pod that is Pending."""
    container: Object = {"name": "main"}
    if limits:
        amounts = {key: str(value) for key, value in limits.items()}
        container["resources"] = {"limits": amounts, "requests": amounts}
    entries = [{"name": one, "resourceClaimName": one} for one in claims]
    entries += [{"name": one, "resourceClaimTemplateName": one} for one in templates]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [container], "resourceClaims": entries, **spec},
        "status": {"phase": "Pending"},
    }


def having(*devices: str, name: str = "theirs", user: str = "train-0", **facts: Any) -> Object:
    """A claim that has devices, and the pod that uses it."""
    made = make.claim_object(*devices, name=name, uid=name, **facts)
    made["status"]["reservedFor"][0]["name"] = user
    return made


def event(reason: str, note: str, *, of: str = "train", uid: str = "", seen: int = 1) -> Object:
    """An event of a pod; `seen` is its second."""
    time = f"2026-11-26T10:00:{seen:02}.000000Z"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": f"{of}.{reason.lower()}.{seen}"},
        "regarding": {"kind": "Pod", "namespace": "default", "name": of, "uid": uid or of},
        "reason": reason,
        "note": note,
        "type": "Warning",
        "eventTime": time,
    }


class Command:
    """The command, asked of an API server."""

    def __init__(self, api: ApiServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._api, self._capsys = api, capsys
        self.kubeconfig = api.write_kubeconfig(folder / "kubeconfig")

    def says(self, *things: Object, of: str = "pod train", status: int = 1, flags: str = "") -> str:
        """What it prints of a cluster that holds these things."""
        out, err = self._run(things, f"{of} {flags}", status)
        assert err == ""
        assert {entry.verb for entry in self._api.log} <= {"get", "list"}
        return out

    def fails(self, *things: Object, of: str = "pod train") -> str:
        """What it says of why it learnt nothing."""
        out, err = self._run(things, of, 2)
        assert out == ""
        return err

    def _run(self, things: Sequence[Object], words: str, status: int) -> tuple[str, str]:
        self._api.put(*things)
        assert main(["explain", *words.split(), f"--kubeconfig={self.kubeconfig}"]) == status
        shown = self._capsys.readouterr()
        return shown.out, shown.err
