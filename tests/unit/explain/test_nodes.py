"""Why a pod cannot be on a node, whatever devices are there."""

from typing import Any

import pytest

import explained
from dra_driver.admin.api.nodes import Node, Taint, Toleration, obstacles, selects

LABELS = {"zone": "a", "gpus": "8"}
CORDONED = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def found(pod: dict[str, Any], **node: Any) -> tuple[str, ...]:
    return obstacles(explained.pod(**pod), Node.of(explained.node(labels=LABELS, **node)))


def affinity(*requirements: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": rule}}


@pytest.mark.parametrize(
    ("pod", "node", "said"),
    [
        ({}, {}, ()),
        ({"nodeName": "node-1"}, {}, ()),
        ({"nodeName": "node-7"}, {}, ("the pod is on node node-7",)),
        ({"nodeSelector": {"zone": "a"}}, {}, ()),
        (
            {"nodeSelector": {"zone": "b", "gpus": "8"}},
            {},
            ("the pod's nodeSelector asks for zone=b",),
        ),
        ({}, {"unschedulable": True, "taints": CORDONED}, ("the node is cordoned",)),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, ()),
        (
            {},
            {"taints": [GPU_TAINT]},
            ("the pod does not tolerate the node's taint nvidia.com/gpu=present:NoSchedule",),
        ),
        (
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            {"taints": [GPU_TAINT]},
            (),
        ),
        ({}, {"taints": [{"key": "slow", "effect": "PreferNoSchedule"}]}, ()),
        (
            affinity({"key": "zone", "operator": "NotIn", "values": ["a"]}),
            {},
            ("the pod's node affinity asks for zone NotIn (a)",),
        ),
        (affinity({"key": "gpus", "operator": "Gt", "values": ["7"]}), {}, ()),
    ],
)
def test_obstacles_between_a_pod_and_a_node(
    pod: dict[str, Any], node: dict[str, Any], said: tuple[str, ...]
) -> None:
    assert found(pod, **node) == said


@pytest.mark.parametrize(
    ("operator", "key", "values", "holds"),
    [
        ("In", "zone", ["a", "b"], True),
        ("In", "rack", ["a"], False),
        ("NotIn", "rack", ["a"], True),
        ("NotIn", "zone", ["a"], False),
        ("Exists", "zone", [], True),
        ("DoesNotExist", "zone", [], False),
        ("Gt", "gpus", ["8"], False),
        ("Lt", "gpus", ["9"], True),
        ("Lt", "zone", ["9"], False),
        ("Gt", "rack", ["1"], False),
        ("Newer", "zone", ["a"], False),
    ],
)
def test_requirements_of_a_node_selector(
    operator: str, key: str, values: list[str], *, holds: bool
) -> None:
    requirement = {"key": key, "operator": operator, "values": values}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    assert selects(selector, Node(name="n", labels=LABELS)) is holds


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "j", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Newer"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any], *, tolerated: bool) -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    assert Toleration.of(toleration).tolerates(taint) is tolerated
