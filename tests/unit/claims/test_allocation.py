"""What the devices of a claim are on this node, and what is said of one that is not there."""

from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import Result, parse_claim
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.prepare.allocation import (
    allocated_devices,
    allocation_of,
    recorded_gpus,
)
from dra_driver.devices.device import Base, Device, DeviceKind, equal_shares, kind_named, name_of
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.model import ExcludedGpu, Inventory, MigMode, SickGpu
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.shares import MIB, ConsumedShare, Division, ShareStrategy
from dra_driver.errors import DeviceError, TransientError

MIG = make.mig_device(1, start=2)
WHOLE = make.gpu(0)
CARD = make.gpu(1, mig=make.mig(MIG), mig_mode=MigMode.ENABLED)
ALL = make.device(WHOLE)
PLACE = Device(base=make.place(MIG))
NODE = make.inventory(WHOLE, CARD)
TWO = Division(
    count=2, strategy=ShareStrategy.TIME_SLICING, served_as="nvidia.com/gpu", combines=True
)
SHARE = equal_shares(ALL.base, TWO)[1]


class Divisions:
    """How each device is divided."""

    def __init__(self, division: Division | None = TWO) -> None:
        self.division = division

    def of(self, _: Base) -> Division | None:
        return self.division


def result(name: str, **facts: Any) -> Result:
    return Result(**({"request": "gpu", "pool": "node-1", "device": name} | facts))


def found(
    *results: Result, inventory: Inventory = NODE, division: Division | None = TWO, **more: Any
) -> dict[str, Device]:
    divisions: Any = Divisions(division)
    return allocated_devices(results, "node-1", inventory, divisions, **{"strategies": {}} | more)


@pytest.mark.parametrize(
    ("gpu", "device", "kind"),
    [
        (WHOLE, ALL, DeviceKind.GPU),
        (CARD, PLACE, DeviceKind.MIG),
        (WHOLE, SHARE, DeviceKind.GPU),
        (CARD, replace(SHARE, base=PLACE.base), DeviceKind.MIG),
    ],
)
def test_a_name_means_a_device_of_this_node(gpu: Any, device: Device, kind: DeviceKind) -> None:
    name = name_of(gpu, device)
    assert found(result(name)) == {name: device}
    assert kind_named(name) is kind


def test_the_number_in_a_name_is_the_minor_number_and_no_other() -> None:
    gpus = make.node_gpus()
    for gpu in gpus:
        (device,) = found(result(f"gpu-{gpu.minor}"), inventory=make.inventory(*gpus)).values()
        assert device.gpu == gpu.uuid
    left_out = without_excluded(make.inventory(*gpus), ("0",))
    (named,) = (gpu.minor for gpu in gpus if gpu.index == 0)
    for gpu in left_out.gpus:
        assert found(result(f"gpu-{gpu.minor}"), inventory=left_out)
    with pytest.raises(DeviceError, match="is no longer offered"):
        found(result(f"gpu-{named}"), inventory=left_out)


def test_a_share_of_a_capacity_is_what_its_claim_consumes() -> None:
    asked = {"memory": 5 * MIB + 1, "cores": 30, "shares": 2}
    one = result("gpu-0", share_id="s1", consumed=asked)
    other = result("gpu-0", share_id="s2")
    seen = found(one, other, strategies={one.allocation_id: ShareStrategy.MPS})
    shares = [
        ConsumedShare(share_id="s1", strategy=ShareStrategy.MPS, memory_mib=5, cores=30, shares=2),
        ConsumedShare(share_id="s2", strategy=ShareStrategy.TIME_SLICING),
    ]
    assert list(seen.values()) == [replace(ALL, share=share) for share in shares]
    (admins,) = found(result("gpu-0", share_id="s3", admin_access=True)).values()
    assert admins == ALL


def test_a_share_of_a_share_is_refused() -> None:
    name = name_of(WHOLE, SHARE)
    with pytest.raises(
        DeviceError, match=f'"{name}" is a share already and was allocated with share id s1: this'
    ):
        found(result(name, share_id="s1"))


def test_an_excluded_gpu_is_not_given_out() -> None:
    out = ExcludedGpu(index=0, minor=0, uuid=WHOLE.uuid, why="an admin says so")
    inventory = make.inventory(CARD, excluded=(out,))
    for name in ("gpu-0", name_of(WHOLE, SHARE)):
        with pytest.raises(DeviceError, match=f'"{name}" is no longer offered: an admin says'):
            found(result(name), inventory=inventory)
    assert found(result(name_of(CARD, PLACE)), inventory=inventory)


@pytest.mark.parametrize(
    ("division", "words"),
    [
        (None, "the device is not divided: the share"),
        (
            replace(TWO, count=3),
            "the device is divided into 3 shares by TimeSlicing, of",
        ),
    ],
)
def test_a_share_of_another_division_is_gone(division: Division | None, words: str) -> None:
    with pytest.raises(DeviceError, match=f"is not on this node any more, where {words}"):
        found(result(name_of(WHOLE, SHARE)), division=division)


@pytest.mark.parametrize(
    ("facts", "name", "error", "words"),
    [
        ({"driver_version": None}, "gpu-5", TransientError, 'so device "gpu-5" cannot be prepared'),
        ({}, "gpu-5", DeviceError, "not on this node, which has gpu-0, gpu-1; the GPUs changed"),
        ({}, "no-name", DeviceError, '"no-name" is not on this node'),
        (
            {"sick": (SickGpu(index=5, reason="it is off", is_lost=True),)},
            "gpu-5",
            DeviceError,
            r'"gpu-5" is lost \(GPU 5: it is off\); once',
        ),
        (
            {
                "sick": (
                    SickGpu(index=5, reason="it is off", is_lost=True),
                    SickGpu(index=6, reason="NVML refused"),
                )
            },
            "gpu-5",
            TransientError,
            r"is not usable now \(GPU 5: it is off; GPU 6: NVML refused\)",
        ),
    ],
)
def test_a_device_that_is_not_there_is_waited_for_only_if_it_may_come(
    facts: dict[str, Any], name: str, error: type[Exception], words: str
) -> None:
    inventory = make.inventory(WHOLE, CARD, **facts)
    with pytest.raises(error, match=words):
        found(result(name), inventory=inventory)


def test_a_mig_device_is_waited_for_while_a_gpu_does_not_say_what_it_has() -> None:
    unclear = make.gpu(1, mig=make.mig(profiles=(), problem="NVML refused"))
    inventory = make.inventory(WHOLE, unclear)
    with pytest.raises(TransientError, match=rf"not usable now \({unclear.uuid}: NVML refused\)"):
        found(result(name_of(CARD, PLACE)), inventory=inventory)
    with pytest.raises(DeviceError, match="is not on this node, which has gpu-0, gpu-1"):
        found(result("gpu-5"), inventory=inventory)


def test_a_record_finds_its_gpus_wherever_their_numbers_are_now() -> None:
    moved = replace(WHOLE, minor=7)
    record = make.record(WHOLE)
    assert recorded_gpus(record.devices, make.inventory(CARD, moved)) == {WHOLE.uuid: moved}
    with pytest.raises(DeviceError, match=rf"{WHOLE.uuid} \(prepared as gpu-0\) is not on this"):
        recorded_gpus(record.devices, make.inventory(CARD))


def test_a_claim_becomes_the_draft_of_its_record() -> None:
    claim = make.claim_object("gpu-0", name_of(CARD, PLACE))
    first, second = claim["status"]["allocation"]["devices"]["results"]
    first |= {"request": "a/best", "adminAccess": True}
    second |= {"request": "b"}
    claim["status"]["reservedFor"].append(make.pod_group("group"))
    divisions: Any = Divisions()
    parsed = parse_claim(claim, DRIVER_NAME)
    seen = allocation_of(parsed, [], "node-1", NODE, divisions, "boot-1")
    draft = seen.draft
    assert (draft.state, draft.boot_id) == (RecordState.PREPARED, "boot-1")
    assert (draft.ref.name, [pod.name for pod in draft.pods]) == ("claim", ["pod"])
    assert [group.name for group in draft.groups] == ["group"]
    one, other = draft.devices
    assert (one.request_names, one.subrequest, one.admin_access) == (("a",), "best", True)
    assert (other.request_names, other.subrequest, other.admin_access) == (("b",), None, False)
    assert one.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={draft.ref.uid}-gpu-0",)
    assert [device.device for device in draft.devices] == [ALL, PLACE]
    assert seen.gpus == {WHOLE.uuid: WHOLE, CARD.uuid: CARD}
