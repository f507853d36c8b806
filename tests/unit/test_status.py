import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver import cli
from dra_driver.admin.status.command import NodeStatus, look, report, table
from dra_driver.admin.status.gone_part import gone
from dra_driver.admin.stored import StoredRecords
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerGroup, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, MakeMigDevices, PendingCleanup, RecordState
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Device, Vfio, Whole
from dra_driver.devices.model import MigDevice
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.host.envelope import seal, unseal
from dra_driver.mps.domain import (
    Daemon,
    DomainId,
    State,
    Status,
    shared_domain,
)
from dra_driver.shares.notes import NotedConsumable, ShareNotes
from dra_driver.sharing.steps import PassThrough, TimeSlice
from resource_nvidia_com.v1beta1.names import Interval

SLICED, SERVED, PLAIN = make.gpu(0), make.gpu(1), make.gpu(2)
POD = ConsumerPod(name="pod-a", uid="pod-uid")
LONG = TimeSlice(devices=(make.device(SLICED),), interval=Interval.LONG)
HALF = make.join(make.device(SERVED), domain="uid-one", mib=10240, percentage=50)
READY = Status(
    id=DomainId("uid-one"),
    state=State.READY,
    supervisor="s",
    daemon=Daemon(pid=412, start_ticks=1),
    active_thread_percentage=50.0,
    pinned_memory_mib={str(SERVED.uuid): 10240},
)


def record(name: str, *gpus: object, **facts: object) -> ClaimRecord:
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="default", name=name)
    return replace(make.record(*gpus), ref=ref, **facts)  # type: ignore[arg-type]


def on_mig(mig: MigDevice) -> ClaimRecord:
    made = record("mig", make.gpu(0))
    return replace(made, devices=(replace(made.devices[0], device=make.device(mig)),))


ONE = record("one", SLICED, SERVED, PLAIN, steps=(LONG, HALF), pods=(POD,))


def node(
    *records: ClaimRecord,
    domains: dict[str, Status | None] | None = None,
    members: dict[str, frozenset[str]] | None = None,
    runs: bool = True,
) -> NodeStatus:
    own = {domain: frozenset({domain.partition("_")[0]}) for domain in domains or {}}
    return NodeStatus(
        boot_id="boot-1",
        stored=StoredRecords(records=records, damaged={}),
        domains=domains or {},
        domain_claims=own | (members or {}),
        supervisor_runs=runs,
    )


def test_missing_devices_are_found_by_the_gpu_drivers_files(tmp_path: Path) -> None:
    mig, whole = make.mig_device(0, "2g.20gb", 2), make.gpu(1)
    records = (on_mig(mig), record("whole", whole))
    nvidia = tmp_path / "driver/nvidia"
    for gpu in (make.gpu(0), whole):
        file = nvidia / f"gpus/{gpu.pci_address}/information"
        file.parent.mkdir(parents=True)
        file.write_text(f"Model: \t x\nGPU UUID: \t {gpu.uuid}\nDevice Minor: \t {gpu.minor}\n")
    capability = nvidia / f"capabilities/gpu0/mig/gi{mig.gpu_instance}"
    access = capability / f"ci{mig.compute_instance}/access"
    access.parent.mkdir(parents=True)
    access.touch()
    assert gone(records, tmp_path) == {}
    access.unlink()
    file.unlink()
    assert gone(records, tmp_path) == {
        ("uid-mig", "gpu-0"): f"{mig.uuid} was destroyed by others, or its GPU was reset",
        ("uid-whole", "gpu-1"): (
            f"{whole.uuid} was removed from the machine, or from the GPU driver"
        ),
    }
    shown = table(replace(node(*records), gone=gone(records, tmp_path)))
    assert shown.count("device is gone") == 2
    assert f"  default/mig: gpu-0: {mig.uuid} was destroyed by others" in shown
    file.write_text("GPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 1\n")
    assert gone(records, tmp_path) == {}


def test_each_device_says_how_it_is_shared() -> None:
    assert table(node(ONE, domains={"uid-one": READY})).splitlines() == [
        "CLAIM        PODS   DEVICE  STRATEGY     SETTINGS                    STATE",
        "default/one  pod-a  gpu-0   TimeSlicing  interval Long               prepared",
        "default/one  pod-a  gpu-1   MPS          50 % of threads, 10240 MiB  ready, PID 412",
        "default/one  pod-a  gpu-2   Exclusive    -                           prepared",
    ]


def test_the_same_for_programs() -> None:
    found = json.loads(report(node(ONE, domains={"uid-one": READY})))
    (claim,) = found["claims"]
    assert claim["pods"] == [{"name": "pod-a", "uid": "pod-uid"}]
    assert claim["ofThisBoot"]
    assert [device["settings"] for device in claim["devices"]] == [
        {"interval": "Long"},
        {"activeThreadPercentage": 50, "pinnedMemoryMiB": 10240},
        {},
    ]
    assert claim["mpsDomain"]["daemonPID"] == 412
    assert found["mps"] == {"supervisorRuns": True, "domainsWithoutClaim": []}


def test_a_gpu_of_a_virtual_machine_says_what_it_is_bound_to() -> None:
    gpu = make.gpu(0)
    vfio = Device(base=Vfio(gpu=gpu.uuid, address=gpu.pci_address, number=0))
    step = PassThrough(
        devices=(vfio,),
        address=gpu.pci_address,
        driver="vfio-pci",
        group=18,
    )
    (entry,) = make.record(gpu).devices
    entries = (replace(entry, name="gpu-vfio-0", device=vfio),)
    vm = record("vm", gpu, devices=entries, steps=(step,), pods=(POD,))
    _, row = table(node(vm)).splitlines()
    assert [part.strip() for part in row.split("  ") if part][2:] == [
        "gpu-vfio-0",
        "VFIO",
        "bound to vfio-pci, IOMMU group 18",
        "prepared",
    ]
    (claim,) = json.loads(report(node(vm)))["claims"]
    (device,) = claim["devices"]
    assert device["type"] == "vfio"
    assert device["settings"] == {"driver": "vfio-pci", "iommuGroup": 18, "iommuFD": False}


def test_a_domain_that_is_not_in_order_says_why() -> None:
    sick = replace(READY, state=State.RESTARTING, restarts=2, reason="it died")
    text = table(node(ONE, domains={"uid-one": sick}, runs=False))
    assert "restarting, PID 412, daemon died 2 times, it died" in text
    assert "the MPS supervisor is not running" in text
    assert "supervisor has not handled it yet" in table(node(ONE, domains={"uid-one": None}))


def test_pending_cleanup_strays_and_damage_are_shown() -> None:
    cleanup = PendingCleanup(of=LONG, reason="GPU is lost")
    owing = record("old", SLICED, state=RecordState.RELEASED, pending=(cleanup,))
    found = replace(
        node(owing, domains={"uid-stray": READY}),
        stored=StoredRecords(records=(owing,), damaged={"x.json": "it is cut off"}),
    )
    text = table(found)
    assert "no claim is prepared on this node" in text
    assert f"  default/old: TimeSlicing on {SLICED.uuid}: GPU is lost" in text
    assert "  uid-stray (ready, PID 412)" in text
    assert "  x.json: it is cut off" in text
    assert json.loads(report(found))["pendingCleanups"][0]["reason"] == "GPU is lost"


def test_a_shared_domain_is_a_stray_once_no_claim_has_joined_it() -> None:
    shared = shared_domain("node")
    used = node(ONE, domains={shared: READY}, members={shared: frozenset({"uid-one"})})
    assert used.strays == []
    assert node(ONE, domains={shared: READY}).strays == [shared]


def test_a_member_of_a_shared_domain_shows_its_state() -> None:
    domain = shared_domain(SERVED.uuid)
    step = make.join(make.device(SERVED), domain=domain, claim="uid-two")
    member = record("two", SERVED, steps=(step,))
    sick = replace(READY, id=domain, state=State.FAILED, reason="no libcuda")
    found = node(member, domains={domain: sick}, members={domain: frozenset({"uid-two"})})
    assert "failed, PID 412, no libcuda" in table(found)
    (claim,) = json.loads(report(found))["claims"]
    assert claim["mpsDomain"]["state"] == "failed"


def test_earlier_and_unfinished_claims_are_shown() -> None:
    text = table(
        node(
            record("before", PLAIN, boot_id="boot-0"),
            record("half", SERVED, state=RecordState.PREPARING),
        )
    )
    assert "prepared before the last reboot" in text
    assert "being prepared" in text


def test_admin_access_is_shown() -> None:
    (device,) = make.record(PLAIN).devices
    seen = record("seen", devices=(replace(device, admin_access=True),))
    assert "AdminAccess" in table(node(seen))


def test_it_only_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "gpu.nvidia.com"
    Ledger(directory, boot_id="boot-1").write(ONE)
    (directory / "claims" / "bad.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    words = ["status", "--output=json", f"--kubelet-plugins-directory-path={tmp_path}"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [claim["name"] for claim in found["claims"]] == ["one"]
    assert found["damagedRecords"] == {"bad.json": "it is cut off, or not a file of this driver"}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_node_without_the_driver_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", f"--kubelet-plugins-directory-path={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert "the driver has not run on this node" in said
    assert "on any machine, --cluster shows" in said


def test_a_mig_device_is_shown_with_its_mps_domain() -> None:
    made = make.mig_device(2, made_here=True)
    mig = make.device(made)
    (device,) = make.record(PLAIN).devices
    part = replace(device, name="gpu-2-mig-1g10gb-19-0", device=mig)
    serving = make.join(mig, domain="uid-one_mig_0", mib=4096, percentage=50)
    making = MakeMigDevices(devices=(Device(base=mig.place),), claim=ClaimUid("uid-one"))
    one = record("one", devices=(part,), steps=(making, serving))
    found = node(one, domains={"uid-one_mig_0": READY})
    assert found.strays == []
    line = table(found).splitlines()[1]
    assert "gpu-2-mig-1g10gb-19-0  MPS       50 % of threads, 4096 MiB  ready, PID 412" in line
    (claim,) = json.loads(report(found))["claims"]
    assert claim["devices"][0]["uuid"] == made.uuid
    assert claim["mpsDomain"]["daemonPID"] == 412


PART = ConsumedShare(share_id="s1", strategy=ShareStrategy.TIME_SLICING, memory_mib=10240, cores=20)


def parted(*records: ClaimRecord, shares: int = 0) -> NodeStatus:
    noted = NotedConsumable(name="gpu-0", memory_mib=81009, shares=shares)
    return replace(node(*records), shares=ShareNotes(consumables=(noted,)))


def tenant(name: str, **changes: object) -> ClaimRecord:
    """A claim with a part of the first GPU."""
    (device,) = make.record(make.gpu(0)).devices
    share = replace(PART, **changes)  # type: ignore[arg-type]
    part = Device(base=Whole(gpu=make.gpu(0).uuid), share=share)
    return record(name, devices=(replace(device, device=part, share_id=name),))


def test_shares_are_counted_and_not_claims() -> None:
    """A claim for two of four shares has two of them; the scheduler has no more to give."""
    claims = [tenant("a"), tenant("b", share_id="s2"), tenant("c", share_id="s3", shares=2)]
    found = parted(*claims, shares=4)
    assert [one for one in table(found).splitlines() if "4 of 4" in one]
    (one,) = json.loads(report(found))["shares"]["consumable"]
    assert one["parts"] == 4


def test_parts_of_a_gpu_have_their_claims_and_the_rest() -> None:
    found = parted(tenant("a"), tenant("b", share_id="s2", memory_mib=0, cores=0), shares=4)
    (line,) = [one for one in table(found).splitlines() if "2 of 4" in one]
    assert " ".join(line.split()) == "gpu-0 2 of 4 10240 MiB 70769 MiB 20 % TimeSlicing -"
    (one,) = json.loads(report(found))["shares"]["consumable"]
    assert one == {
        "name": "gpu-0",
        "parts": 2,
        "memoryMiB": 81009,
        "memoryUsedMiB": 10240,
        "memoryFreeMiB": 70769,
        "heldOtherwise": False,
        "coresUsed": 20,
        "sharesAtMost": 4,
        "strategy": "TimeSlicing",
    }


def test_a_gpu_that_a_claim_has_for_itself_has_nothing_free() -> None:
    found = parted(record("whole", make.gpu(0)))
    (one,) = json.loads(report(found))["shares"]["consumable"]
    assert (one["memoryFreeMiB"], one["heldOtherwise"]) == (0, True)
    assert "in use by a claim that holds all of it" in table(found)


def test_parts_of_an_unpublished_gpu_have_no_free_rest() -> None:
    (one,) = json.loads(report(node(tenant("a"))))["shares"]["consumable"]
    assert (one["memoryUsedMiB"], one["memoryFreeMiB"]) == (10240, None)


def test_a_claim_of_a_pod_group_is_shown_with_the_group() -> None:
    group = ConsumerGroup(name="gang", uid="uid-g")
    found = node(record("one", PLAIN, groups=(group,)))
    assert "podgroups/gang" in table(found)
    (claim,) = json.loads(report(found))["claims"]
    assert (claim["pods"], claim["podGroups"]) == ([], [{"name": "gang", "uid": "uid-g"}])


def test_a_step_or_domain_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    records = Ledger(tmp_path, boot_id="boot-1")
    records.write(record("bad", PLAIN, steps=(LONG,)))
    records.write(record("one", SLICED, steps=(LONG,)))
    file = tmp_path / "claims/uid-bad.json"
    strange = unseal(file.read_bytes())
    strange["steps"][0]["devices"] = 7
    file.write_bytes(seal(strange))
    (tmp_path / "mps/status").mkdir(parents=True)
    (tmp_path / "mps/status/uid-one.json").mkdir()
    found = look(tmp_path, make.record().boot_id)
    assert "uid-bad.json: its content is not that of a record" in table(found)
    (claim,) = json.loads(report(found))["claims"]
    assert (claim["name"], claim["devices"][0]["settings"]) == ("one", {"interval": "Long"})
