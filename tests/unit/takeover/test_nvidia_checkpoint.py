import json
from typing import Any

import pytest

from dra_driver.admin.takeover.nvidia_checkpoint import (
    PeerMig,
    checksum,
    parse_checkpoint,
    without,
)
from dra_driver.errors import StateError, VersionError
from worlds.nvidia import checkpoint

UID = "11111111-0000-4000-8000-000000000000"
GPU = "GPU-00000000-0000-4000-8000-000000000000"


def told(name: str) -> dict[str, Any]:
    return {
        "Requests": ["gpu/large"],
        "PoolName": "node-1",
        "DeviceName": name,
        "CDIDeviceIDs": [f"k8s.gpu.nvidia.com/claim={UID}-{name}"],
    }


def claim(*devices: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {
        "checkpointState": "PrepareCompleted",
        "status": {"allocation": {"devices": {}}},
        "preparedDevices": [{"devices": list(devices), "configState": config}],
    }


def gpu() -> dict[str, Any]:
    return {"gpu": {"info": {"uuid": GPU}, "device": told("gpu-0")}, "mig": None}


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 4046067964), ('{"checksum":0,"v1":{}}', 1083090442), ('{"checksum":0}', 4166374854)],
)
def test_checksums_are_those_of_the_kubelets_checkpointmanager(text: str, number: int) -> None:
    # Computed by its own code in Go: FNV-1a over what go-spew prints of the bytes.
    assert checksum(text) == number


def test_a_claim_is_read_with_all_that_is_noted_of_it() -> None:
    data = checkpoint({UID: claim(gpu(), mpsControlDaemonID="")}, boot_id="boot-1")
    found = parse_checkpoint(data)
    assert found.boot_id == "boot-1"
    (one,) = found.claims
    assert (one.uid, one.name, one.namespace, one.is_prepared) == (UID, "", "", True)
    (group,) = one.groups
    assert (group.mps_daemon, group.time_sliced) == (None, True)
    (device,) = group.devices
    assert (device.device, device.name, device.pool) == (GPU, "gpu-0", "node-1")
    assert device.requests == ("gpu/large",)
    assert device.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={UID}-gpu-0",)


@pytest.mark.parametrize(
    ("config", "daemon", "sliced"),
    [
        ({"mpsControlDaemonID": f"{UID}-1a2b3"}, f"{UID}-1a2b3", True),
        ({"mpsControlDaemonID": f"{UID}-1a2b3", "mpsApplied": False}, None, True),
        ({"timeSliceApplied": False}, None, False),
        ({}, None, True),
    ],
)
def test_settings_are_undone_unless_noted_as_not_set(
    config: dict[str, Any], daemon: str | None, sliced: bool
) -> None:
    (one,) = parse_checkpoint(checkpoint({UID: claim(gpu(), **config)})).claims
    assert (one.groups[0].mps_daemon, one.groups[0].time_sliced) == (daemon, sliced)


def test_the_newer_part_counts() -> None:
    data = checkpoint({UID: claim(gpu()) | {"checkpointState": "PrepareStarted", "name": "one"}})
    (one,) = parse_checkpoint(data).claims
    assert (one.is_prepared, one.name, one.groups) == (False, "one", ())
    assert json.loads(data)["v1"] == {}


def test_the_first_version_is_read_where_there_is_no_other() -> None:
    migs = {"mig": {"info": {"uuid": "MIG-1"}, "device": told("gpu-0-mig-1g10gb-19-0")}}
    data = checkpoint({UID: claim(migs)}, newest="v1")
    (one,) = parse_checkpoint(data).claims
    assert one.is_prepared
    assert one.groups[0].devices[0].device == PeerMig(uuid="MIG-1")  # type: ignore[arg-type]


def test_a_mig_device_has_its_ids() -> None:
    concrete = {"parentMinor": 0, "giId": 7, "ciId": 0, "migUUID": "MIG-1", "parentUUID": GPU}
    migs = {"mig": {"concrete": concrete, "device": told("gpu-0-mig-1g10gb-19-0")}}
    (one,) = parse_checkpoint(checkpoint({UID: claim(migs)})).claims
    assert one.groups[0].devices[0].device == PeerMig(
        uuid="MIG-1",  # type: ignore[arg-type]
        parent=GPU,  # type: ignore[arg-type]
        gpu_instance=7,
        compute_instance=0,
    )


def test_an_empty_checkpoint_has_no_claims() -> None:
    assert parse_checkpoint(checkpoint({})).claims == ()
    assert parse_checkpoint(b'{"checksum":4166374854}').claims == ()


def test_additions_of_newer_versions_are_ignored_with_v2() -> None:
    data = checkpoint({UID: claim(gpu())})
    data = b'{"version":"v2","v3":{"a":1},' + data[1:]
    assert len(parse_checkpoint(data).claims) == 1


@pytest.mark.parametrize("start", [b'{"version":"v3",', b'{"v3":{},', b'{"version":7,'])
def test_a_checkpoint_of_another_version_is_not_read(start: bytes) -> None:
    with pytest.raises(VersionError, match="this driver reads v1 and v2"):
        parse_checkpoint(start + checkpoint({UID: claim(gpu())})[1:])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({UID: claim({"gpu": None, "mig": None})}, "a device of an unknown kind"),
        ({UID: claim(gpu() | {"mig": {}})}, "a device of an unknown kind"),
        ({UID: claim(gpu()) | {"checkpointState": "Paused"}}, "is in state 'Paused'"),
        ({UID: claim(gpu(), mpsControlDaemonID="../..")}, "which is not a valid id"),
        ({UID: claim(gpu(), mpsControlDaemonID=f"{UID}-1a2b3/..")}, "which is not a valid id"),
        ({"a/b": claim(gpu())}, "is not a valid UID"),
        ({UID: claim({"gpu": {"info": {"uuid": "../x"}, "device": told("a")}})}, "not a valid"),
        ({UID: claim({"gpu": {"info": {"uuid": GPU}, "device": told("gpu-")}})}, "not a valid"),
    ],
)
def test_impossible_claims_are_not_read_and_hide_no_other(
    value: dict[str, Any], reason: str
) -> None:
    found = parse_checkpoint(checkpoint(value | {"another": claim(gpu())}))
    assert [one.uid for one in found.claims] == ["another"]
    (left,) = found.unread
    assert left.uid in value
    assert reason in left.reason


def test_an_unreadable_claim_is_reported_with_its_pods() -> None:
    odd = claim({"gpu": None}) | {"status": {"reservedFor": [{"name": "train-0"}, {"name": "b"}]}}
    (left,) = parse_checkpoint(checkpoint({UID: odd})).unread
    assert left.pods == ("train-0", "b")
    bent = {**odd, "status": {"reservedFor": [7]}}
    assert parse_checkpoint(checkpoint({UID: bent})).unread[0].pods == ()


def test_a_parents_uuid_in_place_of_its_own_says_that_the_device_was_made_for_the_claim() -> None:
    concrete = {"parentMinor": 0, "giId": 7, "ciId": 0, "migUUID": GPU, "parentUUID": GPU}
    migs = {"mig": {"concrete": concrete, "device": told("gpu-0-mig-1g10gb-19-0")}}
    (one,) = parse_checkpoint(checkpoint({UID: claim(migs)})).claims
    found = one.groups[0].devices[0].device
    assert found == PeerMig(parent=GPU, gpu_instance=7, compute_instance=0)  # type: ignore[arg-type]
    assert isinstance(found, PeerMig)
    assert found.is_made_for_claims


def test_claims_are_removed_from_a_file_and_others_stay_exact() -> None:
    one, two = claim(gpu()), claim(gpu(), timeSliceApplied=True)
    data = checkpoint({"one": one, "two": two}, boot_id="boot-1")
    assert without(data, {"one"}) == checkpoint({"two": two}, boot_id="boot-1")
    assert without(data, {"one", "two"}) == checkpoint({}, boot_id="boot-1")
    old = checkpoint({"one": one, "two": two}, newest="v1")
    assert without(old, {"two"}) == checkpoint({"one": one}, newest="v1")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b"{" * 100000, b'{"checksum":0}',
        b'{"checksum":4166374854}x', b'{"checksum":4166374854,"checksum":4166374854}',
        b" " * (8 * 1024**2 + 1),
    ],
)  # fmt: skip
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        parse_checkpoint(data)


def test_a_part_whose_checksum_is_wrong_is_refused() -> None:
    first, second = checkpoint({UID: claim(gpu())}).decode().split('"v2"')
    for damaged in (first.replace("gpu-0", "gpu-1") + '"v2"' + second, first + '"v2"'
                    + second.replace("gpu-0", "gpu-1")):  # fmt: skip
        with pytest.raises(StateError, match=r"the checksum of its part v[12] does not match"):
            parse_checkpoint(damaged.encode())
