"""A cluster as an install leaves it, and what doctor says of one."""

import json
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from testbed import manifests
from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer
from testbed.apiserver.store import Refusal

from dra_driver.admin.doctor.checks.finding import Seen, Severity
from dra_driver.cli import main
from published import device, slices

Object = dict[str, Any]
Document = dict[str, Any]

NODE = "node-1"
NAMESPACE = "dra-driver"
LONG_AGO = "2026-01-01T00:00:00Z"
ERROR, WARNING, UNKNOWN, INFO, OK = Severity


def severities(seen: Iterable[Seen]) -> list[Severity]:
    """How severe what was seen is."""
    return [one.severity for one in seen]


def installed(api: ApiServer, node: str = NODE) -> None:
    """What an install brings, on one node with GPUs that are published."""
    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    api.put(*manifests.installed("DeviceClass", *policies))
    for one in manifests.installed("DaemonSet"):
        api.put(running(one))
        api.put(daemon_pod(one, node))
    put_node(api, node)
    gpu = device("gpu-0")
    gpu["attributes"]["driverVersion"] = {"version": "570.86.15"}
    api.put(*slices([gpu]))


def running(daemon_set: Object, nodes: int = 1) -> Object:
    """A DaemonSet that its controller has seen through, on so many nodes."""
    counts = ("desired", "current", "updated")
    status = {f"{name}NumberScheduled": nodes for name in counts} | {"numberReady": nodes}
    found = deepcopy(daemon_set) | {"status": status}
    annotations = found["metadata"].setdefault("annotations", {})
    annotations["deprecated.daemonset.template.generation"] = "1"
    return found


def daemon_pod(daemon_set: Object, node: str, *containers: Object, revision: int = 1) -> Object:
    """A pod of a DaemonSet that has been ready for long, or with these container statuses."""
    meta, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    name = template["spec"]["containers"][0]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{revision}-{node}",
            "namespace": meta["namespace"],
            "labels": template["metadata"]["labels"] | {"pod-template-generation": str(revision)},
            "creationTimestamp": LONG_AGO,
            "ownerReferences": [{"kind": "DaemonSet", "name": meta["name"]}],
        },
        "spec": {"nodeName": node},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO},
                {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO},
            ],
            "containerStatuses": list(containers)
            or [{"name": name, "state": {"running": {}}, "restartCount": 0}],
        },
    }


def put(api: ApiServer, *objects: Object) -> None:
    """Store objects in the place of what is there under their names."""
    for one in objects:
        kind, meta = kind_of(one["apiVersion"], one["kind"]), one["metadata"]
        with suppress(Refusal):
            api.store.delete(kind, meta.get("namespace", ""), meta["name"])
        api.put(one | {"metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}})


def put_node(api: ApiServer, name: str, **labels: str) -> None:
    """A node with GPUs."""
    info = {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.1.4"}
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"} | labels},
            "status": {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )


@dataclass(frozen=True)
class Doctor:
    """The command with words that say what it looks at."""

    words: list[str]
    capsys: pytest.CaptureFixture[str]

    def document(self, status: int = 0) -> Document:
        """What it says for programs, with an exit status."""
        assert main(self.words) == status
        found: Document = json.loads(self.capsys.readouterr().out)
        return found

    def findings(self, status: int = 0) -> dict[str, list[str]]:
        """Severities by the id of the check."""
        found: dict[str, list[str]] = {}
        for finding in self.document(status)["findings"]:
            found.setdefault(finding["id"], []).append(finding["severity"])
        return found

    def told(self, check: str, status: int = 0) -> list[tuple[str, str, str]]:
        """Severity, what was seen and what to do, of one check."""
        return [
            (finding["severity"], finding["seen"], finding["advice"])
            for finding in self.document(status)["findings"]
            if finding["id"] == check
        ]
