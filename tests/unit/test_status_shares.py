"""What `dra-driver status` says of shares."""

from msgspec.structs import replace

import make
from dra_driver.admin.status import shares_part
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.devices.device import Device, Whole, name_of
from dra_driver.devices.shares import Division, EqualShare, ShareStrategy
from dra_driver.shares.notes import NotedDevice, ShareNotes

GPU = make.gpu(0, mig=make.mig())
TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
NOTED = NotedDevice(
    name="gpu-0",
    served_as="nvidia.com/gpu",
    count=10,
    strategy="MPS",
    limited_by="MPS",
)
NOTES = ShareNotes(origin="file /etc/shares", remarks=("flags: no meaning",), devices=(NOTED,))


def claim(*devices: Device, admin: bool = False) -> ClaimRecord:
    (entry,) = make.record(GPU).devices
    return make.record(
        devices=tuple(
            replace(entry, name=name_of(GPU, device), device=device, admin_access=admin)
            for device in devices
        )
    )


def share(index: int) -> Device:
    return Device(base=Whole(gpu=GPU.uuid), share=EqualShare(index=index, division=TEN))


def row(*claims: ClaimRecord, notes: ShareNotes = NOTES) -> list[str]:
    """The words of the line of gpu-0."""
    (line,) = (one for one in shares_part.lines(notes, claims) if one.startswith("gpu-0"))
    return line.split()


def test_used_and_free_shares_of_each_device_are_shown() -> None:
    words = ["gpu-0", "nvidia.com/gpu", "10", "3", "7", "MPS", "MPS", "-"]
    assert row(claim(share(0), share(1)), claim(share(9))) == words


def test_admin_access_uses_no_shares() -> None:
    assert row(claim(share(0), admin=True))[3:5] == ["0", "10"]
    assert row(claim(make.device(GPU), admin=True))[3:5] == ["0", "10"]


def test_a_device_in_other_use_has_no_free_shares() -> None:
    words = ["in", "use", "by", "a", "claim", "that", "holds", "all", "of", "it,"]
    assert row(claim(make.device(GPU)))[3:17] == ["0", "0", "MPS", "MPS", *words]
    assert row(claim(make.device(make.mig_device(0))))[3:17] == ["0", "0", "MPS", "MPS", *words]
    assert row(claim(make.device(make.mig_device(1))))[4] == "0"


def test_waiting_changes_and_missing_limits_are_shown() -> None:
    noted = replace(NOTED, strategy="TimeSlicing", limited_by=None)
    words = row(claim(share(0)), notes=replace(NOTES, devices=(noted,), waiting=("gpu-0",)))
    assert words[5:7] == ["TimeSlicing", "nothing"]
    assert " ".join(words[7:]) == "a new config waits"


def named(record: ClaimRecord, name: str) -> ClaimRecord:
    return replace(record, ref=replace(record.ref, name=name))


def test_the_claims_that_a_change_waits_for_are_those_that_have_any_of_the_device_now() -> None:
    there = [
        named(claim(share(0)), "share"),
        named(claim(make.device(GPU)), "whole"),
        named(claim(make.device(make.mig_device(0))), "mig"),
    ]
    elsewhere = make.gpu(1)
    entry = replace(there[0].devices[0], name="gpu-1-share-0-of-10", device=make.device(elsewhere))
    others = [
        named(claim(share(1), admin=True), "admin"),
        named(replace(there[0], devices=(entry,)), "elsewhere"),
        named(replace(there[0], state=RecordState.RELEASED), "deleted"),
    ]
    notes = replace(NOTES, waiting=("gpu-0",))
    assert shares_part.lines(notes, [*there, *others])[-1] == (
        "  gpu-0: a new config takes effect when these 3 claims have ended: default/mig, "
        "default/share, default/whole"
    )
    assert shares_part.lines(notes, there[:1])[-1].endswith("this claim has ended: default/share")
    assert shares_part.lines(notes, others)[-1].endswith("when the driver next checks")


def test_the_configs_place_problem_and_remarks_are_shown() -> None:
    notes = replace(NOTES, problem="config:3:5: replicas: must be a number")
    found = shares_part.lines(notes, ())
    assert "share config: file /etc/shares" in found
    assert "  the newest one cannot be used: config:3:5: replicas: must be a number" in found
    assert "  flags: no meaning" in found


def test_programs_get_the_same() -> None:
    found = shares_part.as_json(NOTES, [claim(share(0))])
    assert found["devices"] == [
        {
            "name": "gpu-0",
            "resource": "nvidia.com/gpu",
            "shares": 10,
            "used": 1,
            "heldOtherwise": False,
            "strategy": "MPS",
            "memoryLimitedBy": "MPS",
            "whyNotBetter": "",
            "changeWaits": False,
        }
    ]


def test_the_reason_for_the_limiter_is_shown_once() -> None:
    why = "the GPU driver 535.1 is older than R615"
    for limited_by, how in (
        ("MPS", "limited by MPS"),
        (None, "not limited"),
        ("--over-limit, afterwards", "not limited in advance; containers that use more are "),
    ):
        one = replace(NOTED, name="gpu-0", why=why, limited_by=limited_by)
        two = replace(one, name="gpu-1")
        text = "\n".join(shares_part.lines(replace(NOTES, devices=(one, two)), []))
        assert text.count(why) == 1
        assert f"memory of gpu-0, gpu-1 is {how}" in text
