import json
from dataclasses import replace
from pathlib import Path

import pytest

import make
from dra_driver import cli
from dra_driver.claims.checkpoint import RecordStore, StoredRecords
from dra_driver.claims.devices import RecordedMig, recorded
from dra_driver.claims.model import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.record import ClaimRecord, MakeMigDevices, PendingCleanup, RecordState
from dra_driver.devices.kinds import DeviceKind
from dra_driver.devices.model import GpuUuid
from dra_driver.mps.domain import (
    Daemon,
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    domain_json,
)
from dra_driver.sharing.base import SharingPlan
from dra_driver.status import NodeStatus, report, table

SLICED, SERVED, PLAIN = make.gpu(0), make.gpu(1), make.gpu(2)
POD = ConsumerPod(name="pod-a", uid="pod-uid")
LONG = SharingPlan(strategy="TimeSlicing", gpus=(SLICED.uuid,), changes={"interval": "Long"})
HALF = SharingPlan(
    strategy="MPS",
    gpus=(SERVED.uuid,),
    changes={
        "domain": domain_json(
            Domain(
                id=DomainId("uid-one"),
                devices=(DomainDevice(uuid=SERVED.uuid, pinned_memory_mib=10240),),
                active_thread_percentage=50,
            )
        ),
        "clients": {SERVED.uuid: 50},
    },
)
READY = Status(
    id=DomainId("uid-one"),
    state=State.READY,
    supervisor="s",
    daemon=Daemon(pid=412, start_ticks=1),
    active_thread_percentage=50.0,
    pinned_memory_mib=((str(SERVED.uuid), 10240),),
)


def record(name: str, *gpus: object, **facts: object) -> ClaimRecord:
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="default", name=name)
    return replace(make.record(*gpus), ref=ref, **facts)  # type: ignore[arg-type]


ONE = record("one", SLICED, SERVED, PLAIN, plans=(LONG, HALF), pods=(POD,))


def node(
    *records: ClaimRecord, domains: dict[str, Status | None] | None = None, runs: bool = True
) -> NodeStatus:
    return NodeStatus(
        boot_id="boot-1",
        stored=StoredRecords(records=records, damaged={}),
        domains=domains or {},
        supervisor_runs=runs,
    )


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


def test_a_domain_that_is_not_in_order_says_why() -> None:
    sick = replace(READY, state=State.RESTARTING, restarts=2, reason="it died")
    text = table(node(ONE, domains={"uid-one": sick}, runs=False))
    assert "restarting, PID 412, daemon died 2 times, it died" in text
    assert "the MPS supervisor is not running" in text
    assert "not taken up by the MPS supervisor" in table(node(ONE, domains={"uid-one": None}))


def test_debts_strays_and_damage_are_told() -> None:
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


def test_claims_of_an_earlier_boot_and_unfinished_ones_are_told() -> None:
    text = table(
        node(
            record("before", PLAIN, boot_id="boot-0"),
            record("half", SERVED, state=RecordState.PREPARING),
        )
    )
    assert "prepared before the last reboot" in text
    assert "being prepared" in text


def test_admin_access_is_told() -> None:
    (device,) = make.record(PLAIN).devices
    seen = record("seen", devices=(replace(device, admin_access=True),))
    assert "AdminAccess" in table(node(seen))


def test_it_only_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "gpu.nvidia.com"
    RecordStore(directory).write(ONE)
    (directory / "claims" / "bad.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    words = ["status", "--output=json", f"--kubelet-plugins-directory-path={tmp_path}"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [claim["name"] for claim in found["claims"]] == ["one"]
    assert found["damagedRecords"] == {"bad.json": "it is cut off, or not a file of this driver"}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_node_without_the_driver_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", f"--kubelet-plugins-directory-path={tmp_path}"]) == 1
    assert "the driver has not run on this node" in capsys.readouterr().err


def test_an_unknown_device_of_a_plan_is_no_trouble() -> None:
    other = replace(LONG, gpus=(GpuUuid("GPU-other"),))
    assert "Exclusive" in table(node(record("one", PLAIN, plans=(other,))))


def test_a_mig_device_is_told_with_its_own_mps_domain() -> None:
    made = make.mig_device(2, made_here=True)
    mig = recorded(made)
    (device,) = make.record(PLAIN).devices
    part = replace(device, name="gpu-2-mig-1g10gb-19-0", device=mig)
    served = DomainDevice(uuid=made.uuid, kind=DeviceKind.MIG, pinned_memory_mib=4096)
    domain = Domain(id=DomainId("uid-one_mig_0"), devices=(served,), active_thread_percentage=50)
    plan = SharingPlan(
        strategy="MPS",
        gpus=(PLAIN.uuid,),
        changes={"domain": domain_json(domain), "clients": {made.uuid: 50}},
        places=(mig.part,),
    )
    assert isinstance(mig, RecordedMig)
    making = MakeMigDevices(gpu=PLAIN.uuid, places=(mig.place,))
    one = record("one", devices=(part,), realisations=(making,), plans=(plan,))
    found = node(one, domains={"uid-one_mig_0": READY})
    assert found.strays == []
    line = table(found).splitlines()[1]
    assert "gpu-2-mig-1g10gb-19-0  MPS       50 % of threads, 4096 MiB  ready, PID 412" in line
    (claim,) = json.loads(report(found))["claims"]
    assert claim["devices"][0]["uuid"] == made.uuid
    assert claim["mpsDomain"]["daemonPID"] == 412
