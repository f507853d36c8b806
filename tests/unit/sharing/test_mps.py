from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import make
from dra_driver.claims.model.record import decode, encode
from dra_driver.devices.device import Device, DeviceKey, DeviceKind
from dra_driver.devices.model import Gpu, MigDevice
from dra_driver.errors import ConfigError, StateError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.mps import Mps, active_thread_percentage, pinned_memory_mib
from resource_nvidia_com.decode import decode as decode_config
from resource_nvidia_com.v1beta1.sharing import MpsConfig

ONE, TWO, THREE = make.gpu(1), make.gpu(2), make.gpu(3)


@pytest.fixture
def mps(tmp_path: Path) -> Mps:
    return Mps(DomainRequests(tmp_path, lambda: 0.0), lambda: 0.0, ready_seconds=1.0)


def group(gpus: Iterable[Gpu], **config: Any) -> Group:
    units = tuple(unit(gpu, gpu) for gpu in gpus)
    return Group(claim="uid", units=units, config=make.gpu_config("MPS", **config))


def unit(gpu: Gpu, found: Gpu | MigDevice) -> Unit:
    return Unit(name="device", request="gpu", gpu=gpu, device=make.device(found))


def test_one_plan_is_for_all_groups_with_the_largest_limits(mps: Mps) -> None:
    (plan,) = mps.plan(
        [
            group([TWO], defaultActiveThreadPercentage=50),
            group(
                [THREE, ONE],
                defaultActiveThreadPercentage=30,
                defaultPerDevicePinnedMemoryLimit={"0": "1Gi"},
                multiUser=True,
            ),
        ],
        0.0,
    )
    assert plan.gpus == (ONE.uuid, TWO.uuid, THREE.uuid)
    assert plan.wanted == Domain(
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
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",),
        (),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",),
    ]
    described = [plan.describe(make.device(one)) for one in (ONE, TWO)]
    assert [one.settings.get("activeThreadPercentage") for one in described] == [30, 50]
    assert [one.settings["multiUser"] for one in described] == [True, True]
    assert described[0].words == ("30 % of threads", "1024 MiB", "multi-user")


def test_a_group_without_a_percentage_leaves_the_daemon_without_one(mps: Mps) -> None:
    (plan,) = mps.plan([group([ONE]), group([TWO], defaultActiveThreadPercentage=30)], 0.0)
    assert plan.active_thread_percentage is None
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in mps.edits(plan)[DeviceKey(TWO.uuid)].env


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"multiUser": True}, "multiuser mode"),
        ({"defaultActiveThreadPercentage": 50}, "defaultActiveThreadPercentage"),
        ({"defaultPinnedDeviceMemoryLimit": "1Gi"}, "defaultPinnedDeviceMemoryLimit"),
        ({"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}, "defaultPerDevicePinnedMemoryLimit"),
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


def test_each_mig_device_has_a_domain_of_its_own_beside_the_one_of_whole_gpus(mps: Mps) -> None:
    devices = [make.mig_device(start=start) for start in (0, 1)]
    units = tuple(unit(make.gpu(0, mig=make.mig(*devices)), device) for device in devices)
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
    migs = Group(claim="uid", config=parameters, units=units)
    whole, first, second = mps.plan([group([ONE]), migs], 0.0)
    assert whole.domain == "uid"
    assert first.wanted == Domain(
        id=DomainId("uid_mig_0"),
        devices=(DomainDevice(uuid=devices[0].uuid, kind=DeviceKind.MIG),),
        active_thread_percentage=40,
    )
    assert second.domain == "uid_mig_1"
    assert second.limits[0].daemon_memory_mib == 2048
    assert first.gpus == (make.gpu(0).uuid,)
    assert first.devices == (units[0].device,)
    assert list(mps.edits(first)) == [devices[0].uuid]
    record = make.record(steps=(whole, first, second))
    assert decode(encode(record)).steps == record.steps
    each = [Group(claim="uid", config=make.gpu_config("MPS"), units=(one,)) for one in units]
    assert [step.domain for step in mps.plan(each, 0.0)] == ["uid_mig_0", "uid_mig_1"]


@pytest.mark.parametrize(
    "limits",
    [
        {"defaultPinnedDeviceMemoryLimit": "100Gi"},
        {"defaultPerDevicePinnedMemoryLimit": {ONE.uuid: "100Gi"}},
    ],
)
def test_a_limit_above_a_gpu_s_memory_is_that_memory(mps: Mps, limits: dict[str, Any]) -> None:
    (plan,) = mps.plan([group([ONE], **limits)], 0.0)
    (device,) = plan.wanted.devices
    assert device.pinned_memory_mib == 80 * 1024
    said = plan.describe(make.device(ONE))
    assert said.settings == {"pinnedMemoryMiB": 80 * 1024}
    assert said.words == ("81920 MiB",)


def test_a_limit_is_at_most_what_the_nvidia_driver_leaves_of_a_gpu(mps: Mps) -> None:
    reserved = make.gpu(1, memory_reserved_bytes=1024**3)
    (plan,) = mps.plan([group([reserved], defaultPinnedDeviceMemoryLimit="80Gi")], 0.0)
    assert plan.describe(make.device(ONE)).settings == {"pinnedMemoryMiB": 79 * 1024}


def test_a_limit_of_a_gpu_that_reports_no_memory_stays_as_it_is(mps: Mps) -> None:
    silent = make.gpu(2, memory_bytes=None)
    (plan,) = mps.plan([group([ONE, silent], defaultPinnedDeviceMemoryLimit="80Gi")], 0.0)
    assert [device.pinned_memory_mib for device in plan.wanted.devices] == [80 * 1024] * 2


def test_a_limit_above_a_mig_device_s_memory_is_that_memory(mps: Mps) -> None:
    device = make.mig_device(1)
    settings = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "80Gi"}}
    config = make.config(kind="MigDeviceConfig", sharing=settings)["opaque"]["parameters"]
    wanted = Group(
        claim="uid",
        units=(unit(make.gpu(1, mig=make.mig(device)), device),),
        config=decode_config(config),
    )
    (plan,) = mps.plan([wanted], 0.0)
    memory = device.profile.memory_bytes // 1024**2
    assert plan.describe(make.device(device)).settings == {"pinnedMemoryMiB": memory}


# Limits of a config

A, B, C = "GPU-aaaaaaaa", "GPU-bbbbbbbb", "GPU-cccccccc"


def config(default: str | None = None, **per_device: str) -> MpsConfig:
    settings: dict[str, Any] = {}
    if default:
        settings["defaultPinnedDeviceMemoryLimit"] = default
    if per_device:
        settings["defaultPerDevicePinnedMemoryLimit"] = {
            key.lstrip("_").replace("GPU_", "GPU-"): limit for key, limit in per_device.items()
        }
    return mps_config(**settings)


def mps_config(**settings: Any) -> MpsConfig:
    sharing = make.gpu_config("MPS", **settings).sharing
    assert sharing is not None
    assert sharing.mps_config is not None
    return sharing.mps_config


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("2Gi", 2048), ("10M", 9), ("1G", 953), ("1Mi", 1), ("1.5Mi", 1), ("1Ti", 1024**2)],
)
def test_a_limit_is_in_whole_mib(limit: str, mib: int) -> None:
    assert pinned_memory_mib(config(limit), [A]) == (mib,)


def test_entries_override_the_default() -> None:
    limits = pinned_memory_mib(config("2Gi", _1="3Gi", GPU_cccccccc="1Gi"), [A, B, C])
    assert limits == (2048, 3072, 1024)


def test_an_index_counts_gpus_by_uuid_and_mig_devices_by_gpu_and_place(mps: Mps) -> None:
    limits = {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}
    (plan,) = mps.plan([group([TWO, ONE], **limits)], 0.0)
    assert [each.daemon_memory_mib for each in plan.limits] == [1024, None]
    card = make.gpu(0, mig=make.mig(make.mig_device()))
    places = [Device(base=make.place(make.mig_device(start=start))) for start in (2, 0, 1)]
    units = (Unit(name=str(at), request="m", gpu=card, device=at) for at in places)
    settings = {"strategy": "MPS", "mpsConfig": limits}
    parameters = make.config(kind="MigDeviceConfig", sharing=settings)["opaque"]["parameters"]
    migs = Group(claim="uid", config=decode_config(parameters), units=tuple(units))
    first, *others = mps.plan([migs], 0.0)
    assert first.devices == (places[1],)
    assert [step.limits[0].daemon_memory_mib for step in (first, *others)] == [1024, None, None]
    with pytest.raises(StateError, match="does not exist yet"):
        _ = first.wanted


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("_2", "invalid device: invalid device index: 2; the devices under this config are GPU-aa"),
        ("GPU_dddddddd", "invalid device: unable to parse key as an integer: GPU-dddddddd"),
    ],
)
def test_a_key_that_names_no_device_is_refused(key: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        pinned_memory_mib(config(**{key: "1Gi"}), [A, B])


def test_two_keys_for_one_device_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        pinned_memory_mib(config(_1="1Gi", GPU_bbbbbbbb="2Gi"), [A, B])
    assert str(caught.value) == (
        "invalid device: 1 and GPU-bbbbbbbb are the same device of "
        "defaultPerDevicePinnedMemoryLimit, which can have only one limit"
    )


def test_a_percentage_of_zero_is_no_limit() -> None:
    assert active_thread_percentage(mps_config(defaultActiveThreadPercentage=0)) is None
    assert active_thread_percentage(mps_config()) is None
    assert active_thread_percentage(mps_config(defaultActiveThreadPercentage=7)) == 7
