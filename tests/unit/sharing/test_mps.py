from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.claims.model.record import decode, encode
from dra_driver.devices.kinds import DeviceKind
from dra_driver.devices.model import Gpu
from dra_driver.errors import ConfigError, StateError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, domain_of, shared_domain
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import DeviceKey, Group, MigUnit, SharingPlan
from dra_driver.sharing.mps import Mps, too_high
from resource_nvidia_com.decode import decode as decode_config

ONE, TWO, THREE = make.gpu(1), make.gpu(2), make.gpu(3)


@pytest.fixture
def mps(tmp_path: Path) -> Mps:
    return Mps(DomainRequests(tmp_path, lambda: 0.0), lambda: 0.0, ready_seconds=1.0)


def group(gpus: Iterable[Gpu], **config: Any) -> Group:
    return Group(claim="uid", gpus=tuple(gpus), config=make.gpu_config("MPS", **config))


def test_one_plan_is_for_all_groups_with_the_largest_limits(mps: Mps) -> None:
    (plan,) = mps.plan(
        [
            group([TWO], defaultActiveThreadPercentage=30),
            group(
                [THREE, ONE],
                defaultActiveThreadPercentage=50,
                defaultPerDevicePinnedMemoryLimit={"0": "1Gi"},
                multiUser=True,
            ),
        ],
        0.0,
    )
    assert plan.gpus == (ONE.uuid, TWO.uuid, THREE.uuid)
    assert domain_of(plan.changes["domain"]) == Domain(
        id=DomainId("uid"),
        devices=(
            DomainDevice(uuid=ONE.uuid, pinned_memory_mib=1024),
            DomainDevice(uuid=TWO.uuid),
            DomainDevice(uuid=THREE.uuid),
        ),
        active_thread_percentage=50,
        multi_user=True,
    )
    assert [edits.env[1:] for edits in mps.edits(plan).values()] == [
        (),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",),
        (),
    ]
    described = [mps.describe(plan, DeviceKey(one.uuid)) for one in (ONE, TWO)]
    assert [one.settings.get("activeThreadPercentage") for one in described] == [50, 30]
    assert [one.settings["multiUser"] for one in described] == [True, True]
    assert described[0].words == "50 % of threads, 1024 MiB, multi-user"
    other = mps.describe(plan, DeviceKey(make.gpu(7).uuid))
    assert "activeThreadPercentage" not in other.settings


def test_a_group_without_a_percentage_leaves_the_daemon_without_one(mps: Mps) -> None:
    (plan,) = mps.plan([group([ONE]), group([TWO], defaultActiveThreadPercentage=30)], 0.0)
    assert domain_of(plan.changes["domain"]).active_thread_percentage is None
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in mps.edits(plan)[TWO.uuid].env


def test_a_plan_comes_back_from_its_record(mps: Mps) -> None:
    (plan,) = mps.plan([group([ONE, TWO], defaultPinnedDeviceMemoryLimit="10Gi")], 0.0)
    (stored,) = decode(encode(make.record(ONE, TWO, plans=(plan,)))).plans
    assert domain_of(stored.changes["domain"]) == domain_of(plan.changes["domain"])
    assert mps.edits(stored) == mps.edits(plan)


def test_a_plan_without_clients_says_so(mps: Mps) -> None:
    (plan,) = mps.plan([group([ONE])], 0.0)
    changes = {name: one for name, one in plan.changes.items() if name != "clients"}
    with pytest.raises(StateError) as caught:
        mps.edits(SharingPlan(strategy="MPS", gpus=plan.gpus, changes=changes))
    assert str(caught.value) == "the record's plan for MPS names no clients"


def test_a_plan_of_something_else_is_not_taken_for_one() -> None:
    with pytest.raises(StateError, match="plan for MPS cannot be read"):
        Mps.describe(SharingPlan(strategy="MPS", gpus=(), changes={"domain": "uid"}), ONE.uuid)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"multiUser": True}, "multiuser mode"),
        ({"defaultActiveThreadPercentage": 50}, "defaultActiveThreadPercentage"),
        ({"defaultPinnedDeviceMemoryLimit": "1Gi"}, "defaultPinnedDeviceMemoryLimit"),
        (
            {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}},
            "defaultPerDevicePinnedMemoryLimit",
        ),
    ],
)
def test_cards_before_volta_have_no_limits(mps: Mps, config: dict[str, Any], what: str) -> None:
    old = make.gpu(4, cuda_compute_capability=(6, 1))
    with pytest.raises(ConfigError, match=rf'^{what} was requested .* "6.1", wanted >= "7.0"'):
        mps.plan([group([ONE, old], **config)], 0.0)
    assert mps.plan([group([ONE, old])], 0.0)
    volta = make.gpu(4, cuda_compute_capability=(7, 0))
    assert mps.plan([group([ONE, volta], **config)], 0.0)


def test_cards_before_mps_have_none(mps: Mps) -> None:
    with pytest.raises(ConfigError, match=r'^MPS was requested .* "3.0", wanted >= "3.5"'):
        mps.plan([group([make.gpu(4, cuda_compute_capability=(3, 0))])], 0.0)
    assert mps.plan([group([make.gpu(4, cuda_compute_capability=(3, 5))])], 0.0)


def test_what_is_asked_for_without_a_record_can_be_undone(mps: Mps, tmp_path: Path) -> None:
    (plan,) = mps.plan([group([ONE])], 0.0)
    mps.ensure(plan)
    assert mps.claims() == {"uid"}
    mps.sweep("uid", 0.0)
    assert mps.claims() == frozenset()


def test_each_mig_device_has_a_domain_of_its_own_beside_the_one_of_whole_gpus(mps: Mps) -> None:
    units = tuple(MigUnit(gpu=make.gpu(0), device=make.mig_device(start=start)) for start in (0, 1))
    config = make.config(
        kind="MigDeviceConfig",
        sharing={
            "strategy": "MPS",
            "mpsConfig": {
                "defaultActiveThreadPercentage": 40,
                "defaultPerDevicePinnedMemoryLimit": {"1": "2Gi"},
            },
        },
    )
    parameters = decode_config(config["opaque"]["parameters"]).normalise()
    migs = Group(claim="uid", config=parameters, migs=units)
    whole, first, second = mps.plan([group([ONE]), migs], 0.0)
    assert domain_of(whole.changes["domain"]).id == "uid"
    assert domain_of(first.changes["domain"]) == Domain(
        id=DomainId("uid_mig_0"),
        devices=(DomainDevice(uuid=units[0].device.uuid, kind=DeviceKind.MIG),),
        active_thread_percentage=40,
    )
    assert domain_of(second.changes["domain"]).id == "uid_mig_1"
    assert domain_of(second.changes["domain"]).devices[0].pinned_memory_mib == 2048
    assert first.gpus == (make.gpu(0).uuid,)
    assert [place.placement for place in first.places] == [units[0].device.placement]
    assert list(mps.edits(first)) == [units[0].device.uuid]
    record = make.record(plans=(whole, first, second))
    assert decode(encode(record)).plans == record.plans


def test_what_is_left_of_a_claims_domains_is_ended_together(mps: Mps) -> None:
    for plan in mps.plan([group([ONE])], 0.0):
        mps.ensure(plan)
    unit = MigUnit(gpu=TWO, device=make.mig_device(2))
    for plan in mps.plan([Group(claim="uid", config=make.gpu_config("MPS"), migs=(unit,))], 0.0):
        mps.ensure(plan)
    assert mps.claims() == {"uid"}
    mps.sweep("another", 0.0)
    assert mps.claims() == {"uid"}
    mps.sweep("uid", 0.0)
    assert mps.claims() == frozenset()


def test_shared_domains_are_no_claims_and_no_claim_ends_them(tmp_path: Path) -> None:
    requests = DomainRequests(tmp_path, lambda: 0.0)
    mps = Mps(requests, lambda: 0.0, ready_seconds=1.0)
    device = (DomainDevice(uuid=ONE.uuid),)
    for domain in (DomainId("uid"), shared_domain("uid"), shared_domain("uid_mig_0")):
        requests.write_desired(Domain(id=domain, devices=device))
    assert mps.claims() == {"uid"}
    for claim in ("uid", shared_domain("uid"), shared_domain("uid_mig_0")):
        mps.sweep(claim, 0.0)
    assert requests.list() == {shared_domain("uid"), shared_domain("uid_mig_0")}


@pytest.mark.parametrize(
    "limits",
    [
        {"defaultPinnedDeviceMemoryLimit": "100Gi"},
        {"defaultPerDevicePinnedMemoryLimit": {ONE.uuid: "100Gi"}},
    ],
)
def test_a_limit_above_a_gpu_s_memory_is_that_memory(mps: Mps, limits: dict[str, Any]) -> None:
    (plan,) = mps.plan([group([ONE], **limits)], 0.0)
    (device,) = domain_of(plan.changes["domain"]).devices
    assert device.pinned_memory_mib == 80 * 1024
    said = Mps.describe(plan, DeviceKey(ONE.uuid))
    assert said.settings == {"pinnedMemoryMiB": 80 * 1024}
    assert said.words == "81920 MiB (asked for 102400 MiB)"


def test_a_limit_above_what_the_nvidia_driver_leaves_of_a_gpu_is_too_high(mps: Mps) -> None:
    reserved = make.gpu(1, memory_reserved_bytes=1024**3)
    (plan,) = mps.plan([group([reserved], defaultPinnedDeviceMemoryLimit="80Gi")], 0.0)
    assert Mps.describe(plan, DeviceKey(ONE.uuid)).settings == {"pinnedMemoryMiB": 79 * 1024}


def test_a_limit_of_all_memory_is_not_too_high(mps: Mps) -> None:
    silent = make.gpu(2, memory_bytes=None)
    plans = mps.plan([group([ONE, silent], defaultPinnedDeviceMemoryLimit="80Gi")], 0.0)
    assert [too_high(plan) for plan in plans] == [{}]


def test_a_limit_above_a_mig_device_s_memory_is_that_memory(mps: Mps) -> None:
    device = make.mig_device(1)
    settings = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "80Gi"}}
    config = make.config(kind="MigDeviceConfig", sharing=settings)["opaque"]["parameters"]
    unit = MigUnit(gpu=ONE, device=device)
    wanted = Group(claim="uid", migs=(unit,), config=decode_config(config))
    (plan,) = mps.plan([wanted], 0.0)
    assert too_high(plan) == {device.uuid: 80 * 1024}
    memory = device.profile.memory_bytes // 1024**2
    assert Mps.describe(plan, DeviceKey(device.uuid)).settings == {"pinnedMemoryMiB": memory}
