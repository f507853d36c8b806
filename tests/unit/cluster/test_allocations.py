"""What is read of a ResourceClaim: the devices it has for use, and who uses them."""

import pytest

import make
from dra_driver.admin.api.allocations import allocations_in
from dra_driver.devices.names import DRIVER_NAME
from published import Object


def test_admin_access_and_other_drivers_devices_are_not_counted() -> None:
    claim = make.claim_object("gpu-0", "gpu-1", "gpu-2")
    results = claim["status"]["allocation"]["devices"]["results"]
    results[0]["adminAccess"] = True
    results[1]["driver"] = "net.example.com"
    results[2]["adminAccess"] = False

    assert [one.device for one in allocations_in(claim, DRIVER_NAME)] == ["gpu-2"]


def test_users_that_are_not_pods_have_their_kind() -> None:
    claim = make.claim_object("gpu-0")
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": "a", "uid": "1"},
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "2"},
    ]

    (one,) = allocations_in(claim, DRIVER_NAME)
    assert one.users == ("a", "podgroups/g")


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"allocation": None},
        {"allocation": {"devices": None}},
        {"allocation": {"devices": {"results": "none"}}},
        {"allocation": {"devices": {"results": [None]}}},
    ],
)
def test_a_claim_without_an_allocation_has_no_devices(status: object) -> None:
    claim = make.claim_object("gpu-0") | {"status": status}

    assert list(allocations_in(claim, DRIVER_NAME)) == []


@pytest.mark.parametrize(
    ("said", "consumed"),
    [
        ({"shareID": "a"}, {}),
        ({"shareID": "a", "consumedCapacity": ["memory"]}, {}),
        ({"shareID": "a", "consumedCapacity": {"memory": "much", "cores": "1"}}, {"cores": 10**9}),
        ({"shareID": "", "consumedCapacity": {"memory": "1"}}, {}),
        ({"shareID": 3, "consumedCapacity": {"memory": "1"}}, {}),
        ({"consumedCapacity": {"memory": "1"}}, {}),
    ],
)
def test_consumed_amounts_are_read_only_of_parts(said: Object, consumed: dict[str, int]) -> None:
    claim = make.claim_object("gpu-0")
    claim["status"]["allocation"]["devices"]["results"][0] |= said

    (one,) = allocations_in(claim, DRIVER_NAME)
    assert one.consumed == consumed
    assert (one.share_id is None) == (said.get("shareID") != "a")
