"""What doctor says of the pods of driver and MPS supervisor: Pods as a kubelet reports them."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from testbed import manifests
from testbed.apiserver.server import ApiServer

from doctored import NAMESPACE, Doctor, daemon_pod, put, put_node, running

Object = dict[str, Any]

DRIVER, SUPERVISOR = manifests.installed("DaemonSet")
CRASH = "back-off 5m0s restarting failed container=kubelet-plugin"


def ago(**past: float) -> str:
    return (datetime.now(UTC) - timedelta(**past)).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(reason: str, code: int, message: str = "", at: str = "") -> Object:
    facts = {"reason": reason, "exitCode": code, "message": message, "finishedAt": at}
    return {"terminated": facts}


def status(restarts: int, last: Object | None = None, **state: Object) -> Object:
    return {
        "name": "kubelet-plugin",
        "state": state or {"running": {}},
        "lastState": last or {},
        "restartCount": restarts,
    }


def unready(pod: Object, since: str) -> Object:
    (ready,) = (
        condition for condition in pod["status"]["conditions"] if condition["type"] == "Ready"
    )
    ready |= {"status": "False", "lastTransitionTime": since}
    return pod


def test_healthy_pods_are_reported_with_their_nodes(well: ApiServer, doctor: Doctor) -> None:
    assert doctor.told("driver-pods") == [
        ("ok", f"DaemonSet {NAMESPACE}/{one['metadata']['name']} runs on node-1", "")
        for one in (DRIVER, SUPERVISOR)
    ]


@pytest.mark.parametrize("daemon_set", [DRIVER, SUPERVISOR], ids=["driver", "supervisor"])
def test_a_crash_loop_is_an_error_although_the_daemonset_counts_its_pod_as_ready(
    well: ApiServer, doctor: Doctor, daemon_set: Object
) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": CRASH}
    last = ended("Error", 1, "setup: no procfs at /x", at=ago(minutes=3))
    put(well, daemon_pod(daemon_set, "node-1", status(7, last, waiting=waiting)))
    ((_, seen, advice),) = [one for one in doctor.told("driver-pods", 1) if one[0] == "error"]
    name = f"{daemon_set['metadata']['name']}-1-node-1"
    assert seen == (
        f"pod {NAMESPACE}/{name} on node node-1: CrashLoopBackOff after 7 restarts; last Error, "
        "exit code 1, 3 min ago: setup: no procfs at /x"
    )
    logs = f"kubectl logs --previous --namespace {NAMESPACE} {name}"
    assert advice == f"{logs} --container kubelet-plugin says why"


def test_the_reason_to_wait_for_an_init_container_is_shown(well: ApiServer, doctor: Doctor) -> None:
    pod = daemon_pod(DRIVER, "node-1", status(0, waiting={"reason": "PodInitializing"}))
    last = ended("Error", 1, "error: NVIDIA's DRA driver runs on this node", at=ago(minutes=3))
    init = status(4, last, waiting={"reason": "CrashLoopBackOff"}) | {"name": "take-over"}
    pod["status"]["initContainerStatuses"] = [init]
    put(well, unready(pod, ago(hours=1)))
    ((_, seen, advice),) = [one for one in doctor.told("driver-pods", 1) if one[0] == "error"]
    assert seen.endswith("3 min ago: error: NVIDIA's DRA driver runs on this node")
    assert "--container take-over" in advice


@pytest.mark.parametrize(
    ("reason", "message", "does"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "dra-driver:9"', "image.repository"),
        ("ErrImagePull", "not found", "image.repository"),
        ("CreateContainerConfigError", 'secret "token" not found', "kubectl describe pod"),
    ],
)
def test_a_failed_container_is_reported_in_the_kubelets_words(
    well: ApiServer, doctor: Doctor, reason: str, message: str, does: str
) -> None:
    waiting = {"reason": reason, "message": message}
    put(well, unready(daemon_pod(DRIVER, "node-1", status(0, waiting=waiting)), ago(hours=1)))
    ((_, seen, advice),) = [one for one in doctor.told("driver-pods", 1) if one[0] == "error"]
    assert seen.endswith(f"on node node-1: {reason}: {message}")
    assert does in advice


@pytest.mark.parametrize(
    ("restarts", "how", "severity"),
    [
        (1, ("OOMKilled", 5 * 60), "warning"),
        (5, ("Error", 20), "warning"),
        (5, ("Error", 20 * 60), "ok"),
        (1, ("Error", 20), "ok"),
    ],
    ids=["out of memory", "often of late", "long ago", "once"],
)
def test_many_restarts_or_some_for_memory_are_reported(
    well: ApiServer, doctor: Doctor, restarts: int, how: tuple[str, int], severity: str
) -> None:
    reason, minutes = how
    last = ended(reason, 137, at=ago(minutes=minutes))
    put(well, daemon_pod(DRIVER, "node-1", status(restarts, last)))
    (one, *_) = doctor.told("driver-pods")
    assert one[0] == severity
    if reason == "OOMKilled":
        assert "restarted once; last OOMKilled, exit code 137, 5 h ago" in one[1]
        assert "memory limit" in one[2]


def test_how_long_a_pod_is_unready_is_reported_after_its_start(
    well: ApiServer, doctor: Doctor
) -> None:
    pod = daemon_pod(DRIVER, "node-1", status(0))
    put(well, unready(pod, ago(minutes=12, seconds=30)))
    (one, *_) = doctor.told("driver-pods", 1)
    assert one[1].endswith("on node node-1 has not been ready since 12 min ago")
    assert "kubectl logs" in one[2]
    put(well, unready(pod, ago(seconds=20)))
    assert doctor.told("driver-pods")[0][0] == "info"


def test_an_unschedulable_pod_is_reported_in_the_schedulers_words(
    well: ApiServer, doctor: Doctor
) -> None:
    pod = daemon_pod(DRIVER, "node-1")
    field = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    pod["spec"] = {"affinity": {"nodeAffinity": affinity}}
    why = "0/1 nodes are available: 1 Insufficient memory."
    placed = {"type": "PodScheduled", "status": "False", "message": why}
    pod["status"] = {"phase": "Pending", "conditions": [placed]}
    put(well, pod)
    assert doctor.told("driver-pods", 1)[0][1].endswith(f"node-1 cannot be placed there: {why}")


def test_a_node_that_should_have_a_pod_and_has_none_is_named(
    well: ApiServer, doctor: Doctor
) -> None:
    put_node(well, "node-2")
    wanted = running(DRIVER)
    wanted["status"]["desiredNumberScheduled"] = 2
    put(well, wanted)
    ((_, seen, advice),) = [one for one in doctor.told("driver-pods", 1) if one[0] == "error"]
    assert "has no pod on 1 node that should have one; GPU nodes without one: node-2" in seen
    assert "kubectl describe daemonset" in advice


def test_a_tainted_gpu_node_is_reported_with_its_taint(well: ApiServer, doctor: Doctor) -> None:
    put_node(well, "node-2")
    (node,) = (one for one in well.objects("nodes") if one["metadata"]["name"] == "node-2")
    taint = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    put(well, deepcopy(node) | {"spec": {"taints": [taint]}})
    told_of = [one for one in doctor.told("driver-pods") if one[0] == "info"]
    assert all("node-2 (taints: team=ml:NoSchedule)" in seen for _, seen, _ in told_of)
    assert len(told_of) == 2


@pytest.mark.parametrize(
    ("strategy", "minutes", "words"),
    [
        ("OnDelete", 4000, ("warning", "its updateStrategy is OnDelete")),
        ("RollingUpdate", 4000, ("warning", "the update is stuck")),
        ("RollingUpdate", 2, ("info", "an update is under way")),
    ],
)
def test_pods_of_an_older_revision_that_stay_are_named(
    well: ApiServer, doctor: Doctor, strategy: str, minutes: int, words: tuple[str, str]
) -> None:
    put_node(well, "node-2")
    wanted = running(DRIVER, nodes=2)
    wanted["metadata"]["annotations"]["deprecated.daemonset.template.generation"] = "2"
    wanted["spec"]["updateStrategy"] = {"type": strategy}
    wanted["status"]["updatedNumberScheduled"] = 1
    newer = daemon_pod(DRIVER, "node-2", revision=2)
    for condition in newer["status"]["conditions"]:
        condition["lastTransitionTime"] = ago(minutes=minutes)
    put(well, wanted, newer, running(SUPERVISOR, nodes=2), daemon_pod(SUPERVISOR, "node-2"))
    (one,) = [one for one in doctor.told("driver-pods") if one[0] != "ok"]
    assert one[0] == words[0]
    assert "has pods of an older revision on node-1" in one[1]
    assert words[1] in one[1]


def test_a_pod_on_a_node_that_is_down_is_reported_so(well: ApiServer, doctor: Doctor) -> None:
    (node,) = well.objects("nodes")
    condition = {"type": "Ready", "status": "Unknown"}
    put(well, deepcopy(node) | {"status": node["status"] | {"conditions": [condition]}})
    assert "the node is not ready" in doctor.told("driver-pods", 1)[0][1]


def test_missing_rights_to_list_pods_hide_nothing_else(well: ApiServer, doctor: Doctor) -> None:
    well.fail("list", "pods", status=403, message="forbidden by RBAC", times=9)
    found = doctor.findings()
    assert found["driver-pods"] == ["unknown"]
    assert set(found["daemonset"]) == {"ok"}
