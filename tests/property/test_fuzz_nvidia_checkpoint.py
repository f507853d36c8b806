"""Checkpoints of NVIDIA's driver that are damaged, or sealed around anything at all."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import fuzz
import make
from dra_driver.admin.stored import made_for
from dra_driver.admin.takeover.drafts import Drafts
from dra_driver.admin.takeover.nvidia_checkpoint import parse_checkpoint, without
from dra_driver.claims.model.record import decode, encode
from dra_driver.errors import DriverError, StateError
from worlds.nvidia import checkpoint

UID = "uid-claim"
DEVICE = make.mig_device(1, "2g.20gb", 2)
NAME = "gpu-1-mig-2g20gb-14-2"
VM = "gpu-vfio-2"
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}


def told(name: str) -> dict[str, Any]:
    ids = [f"k8s.gpu.nvidia.com/claim={UID}-{name}"]
    return {"Requests": ["gpu"], "PoolName": "node-1", "DeviceName": name, "CDIDeviceIDs": ids}


CLAIM: dict[str, Any] = {
    "checkpointState": "PrepareCompleted",
    "status": make.claim_object("gpu-0", NAME, VM, configs=[make.config(sharing=LONG)])["status"],
    "preparedDevices": [
        {
            "devices": [
                {"gpu": {"info": {"uuid": make.gpu(0).uuid}, "device": told("gpu-0")}, "mig": None},
                {
                    "gpu": None,
                    "mig": {
                        "concrete": {
                            "parentMinor": 1,
                            "giId": DEVICE.gpu_instance,
                            "ciId": DEVICE.compute_instance,
                            "migUUID": DEVICE.uuid,
                            "parentUUID": make.gpu(1).uuid,
                        },
                        "device": told(NAME),
                    },
                },
                {
                    "gpu": None,
                    "mig": None,
                    "vfio": {
                        "info": {"uuid": "of-no-use", "pciBusID": make.gpu(2).pci_address},
                        "device": told(VM),
                    },
                },
            ],
            "configState": {"mpsControlDaemonID": f"{UID}-12345", "timeSliceApplied": True},
        }
    ],
}
BEGUN = {**CLAIM, "checkpointState": "PrepareStarted", "name": "claim", "namespace": "default"}
CLAIMS = {UID: CLAIM, "uid-begun": BEGUN}
SOUND = checkpoint(CLAIMS, boot_id="boot-1")
INVENTORY = make.inventory(
    make.gpu(0),
    make.gpu(1, mig=make.mig(DEVICE)),
    passthrough=(make.passthrough(2),),
)


def drafted(data: bytes) -> int:
    """Read a checkpoint, make records of it, and read these; how many there are."""
    found = parse_checkpoint(data)
    drafts = Drafts(found, INVENTORY, boot_id="boot-1", mps_folder=Path("/nowhere"), makes_mig=True)
    records = []
    for claim in found.claims:
        with suppress(DriverError):
            records += [record for record in (drafts.of(claim),) if record is not None]
            assert list(drafts.on_vfio(claim)) in ([], [make.gpu(2).pci_address])
    for record in records:
        assert decode(encode(record)) == record
        made_for(record)
    rest = parse_checkpoint(without(data, {claim.uid for claim in found.claims}))
    assert (rest.claims, rest.unread) == ((), found.unread)
    return len(records)


def test_a_sound_one_is_read() -> None:
    assert drafted(SOUND) == 2


@given(at=st.integers(0, len(SOUND) - 1), byte=st.integers(1, 255))
def test_changing_any_byte_is_noticed(at: int, byte: int) -> None:
    data = SOUND[:at] + bytes([SOUND[at] ^ byte]) + SOUND[at + 1 :]
    try:
        found = parse_checkpoint(data)
    except StateError:
        return
    assert found == parse_checkpoint(SOUND)


@given(claims=fuzz.bent(CLAIMS))
def test_whatever_is_sealed_is_read_or_refused(claims: Any) -> None:
    try:
        data = checkpoint(claims, boot_id="boot-1")
    except (AttributeError, KeyError, TypeError, UnicodeEncodeError, ValueError):
        return  # no checkpoint could be made of it
    fuzz.ours(lambda: drafted(data))
