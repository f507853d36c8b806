"""The admission policy own-claims lets a driver say how its devices are, and nothing else."""

from typing import Any

import pytest

import make
from policies import ACCOUNT, refusal, unneeded, user

HERE, OTHER = "n1", "n2"
OURS = {"driver": "gpu.nvidia.com", "pool": HERE, "device": "gpu-0"}
NIC = {"driver": "nic.example.com", "pool": HERE, "device": "nic-0"}
PODS = [{"resource": "pods", "name": "p", "uid": "u"}]
RESULT = {"request": "gpu", **OURS}


def node_selector(**field: Any) -> dict[str, Any]:
    """What binds an allocation to a node; `field` changes it."""
    selector = make.node_selector(HERE)
    selector["nodeSelectorTerms"][0]["matchFields"][0] |= field
    return selector


def claim(*devices: Any, selector: Any = None, **status: Any) -> dict[str, Any]:
    """A claim that is allocated here, and what drivers say of its devices."""
    allocation = {
        "devices": {"results": [RESULT]},
        "nodeSelector": node_selector() if selector is None else selector,
    }
    given = {"allocation": allocation, "reservedFor": PODS, "devices": list(devices), **status}
    return {"metadata": {"name": "c"}, "status": {k: v for k, v in given.items() if v is not None}}


def said(new: Any, old: Any = None, *, node: str = HERE) -> dict[str, Any]:
    """The request of a driver that writes a claim's status."""
    return {"new": new, "old": old or claim(NIC), "userInfo": user(node=node)}


EITHER = {"nodeSelectorTerms": [*node_selector()["nodeSelectorTerms"], {"matchFields": []}]}
NOT_HERE = "the driver on node n1 may write the status only of claims that are allocated on its"
NOT_ITS = "the driver may not change which devices a claim has, or who has reserved it"
NOT_OURS = "the driver may not change what other drivers say of their devices"
REFUSED = [
    (said(claim(OURS, NIC), node=""), "the caller's token names no node"),
    (said(claim(OURS, NIC), node=OTHER), NOT_HERE.replace(HERE, OTHER)),
    *(
        (said(claim(OURS, selector=selector), claim(selector=selector)), NOT_HERE)
        for selector in (
            node_selector(values=[HERE, OTHER]),
            node_selector(values=[]),
            node_selector(operator="NotIn"),
            node_selector(key="metadata.uid"),
            {"nodeSelectorTerms": []},
            {"nodeSelectorTerms": [{"matchFields": []}]},
            EITHER,
            {},
        )
    ),
    (said(claim(), claim(allocation=None)), NOT_HERE),
    (said(claim(NIC, allocation=None)), NOT_ITS),
    (said(claim(NIC, selector=node_selector(values=[OTHER]))), NOT_ITS),
    (said(claim(NIC, reservedFor=None)), NOT_ITS),
    (said(claim(NIC, reservedFor=[*PODS, {**PODS[0], "uid": "v"}])), NOT_ITS),
    (said(claim(OURS)), NOT_OURS),
    (said(claim(OURS, {**NIC, "data": {"is": "a lie"}})), NOT_OURS),
    (said(claim(NIC, {**NIC, "device": "nic-1"})), NOT_OURS),
    (said(claim(NIC), claim()), NOT_OURS),
]


@pytest.mark.parametrize(("asked", "text"), REFUSED)
def test_everything_else_is_refused(asked: dict[str, Any], text: str) -> None:
    answer = refusal("own-claims", **asked)
    assert answer is not None
    assert text in answer


def test_every_rule_is_needed() -> None:
    assert unneeded("own-claims", [asked for asked, _ in REFUSED]) == []


@pytest.mark.parametrize(
    "asked",
    [
        said(claim(OURS, NIC)),
        said(claim(NIC), claim(OURS, NIC)),
        said(claim(NIC, OURS), claim({**OURS, "data": {"uuid": "GPU-1"}}, NIC)),
        said(claim(OURS, reservedFor=None), claim(devices=None, reservedFor=None)),
        said(claim(reservedFor=None), node=OTHER) | {"userInfo": user("system:admin")},
        said(claim(reservedFor=None)) | {"userInfo": user(f"{ACCOUNT}-2", node=HERE)},
    ],
)
def test_a_driver_may_report_its_own_devices(asked: dict[str, Any]) -> None:
    assert refusal("own-claims", **asked) is None
