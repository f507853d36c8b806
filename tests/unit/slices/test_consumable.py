"""What is published of devices that several claims can have at a time."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import Device, NodeDevice
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.devices.shares import ConsumedShare, Division, ShareStrategy
from dra_driver.slices.consumable import Consumable, ConsumableMode, consumable
from dra_driver.slices.counters import memory_of
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.wire import wire_form
from resource_nvidia_com.quantity import Quantity

GIB, MIB = 1024**3, 1024**2
T4 = make.gpu(
    0, product_name="Tesla T4", memory_bytes=15360 * MIB + 4096, memory_reserved_bytes=450 * MIB
)
USABLE = "14910Mi"
H100 = make.gpu(0, mig=make.mig(), memory_reserved_bytes=550 * MIB)


def project(*gpus: Gpu, mode: str = "memory", **changes: Any) -> Projection:
    share = ShareOffer(consumable=Consumable.of(mode), **changes.pop("share", {}))
    return projection(make.inventory(*gpus), share=share, **changes)


def device(found: Projection, name: str = "gpu-0") -> Mapping[str, Any]:
    (one,) = (one for one in found.devices if one["name"] == name)
    return one


def policy(default: str, least: str, most: str, step: str) -> dict[str, Any]:
    return {"default": default, "validRange": {"min": least, "max": most, "step": step}}


CORES = {"value": "100", "requestPolicy": policy("0", "0", "100", "1")}

# As NVIDIA's driver has them (consumable_shares.go), but for `cores`.
NVIDIA = {
    "unlimited": {"memory": policy("0", "0", USABLE, "1Mi")},
    "memory": {"memory": policy(USABLE, "1Mi", USABLE, "1Mi")},
    "4": {"memory": policy("0", "0", USABLE, "1Mi"), "shares": policy("1", "1", "4", "1")},
}


@pytest.mark.parametrize("mode", list(NVIDIA))
def test_the_policies_are_those_of_nvidias_driver_and_one_of_cores(mode: str) -> None:
    found = device(project(T4, mode=mode))
    assert found["allowMultipleAllocations"] is True
    values = {"memory": USABLE, "shares": "4"}
    wanted = {
        name: {"value": values[name], "requestPolicy": one} for name, one in NVIDIA[mode].items()
    }
    assert found["capacity"] == wanted | {"cores": CORES}


@pytest.mark.parametrize("mode", ["disabled", "memory", "unlimited", "4"])
def test_a_setting_is_printed_as_it_was_given(mode: str) -> None:
    assert str(Consumable.of(mode)) == mode


def test_a_consumed_part_is_described_like_its_device() -> None:
    of = make.whole(T4)
    share = ConsumedShare(share_id="s1", strategy=ShareStrategy.MPS)
    part = NodeDevice(gpu=T4, device=Device(base=of.device.base, share=share))
    published = [
        wire_form(
            one,
            make.inventory(T4),
            joined={},
            in_parts=False,
            consumable_by=Consumable.of("memory"),
        ).wire
        for one in (of, part)
    ]
    assert published[0] == published[1]
    assert memory_of(T4, part.device) == memory_of(T4, of.device) == 15360 * MIB + 4096


def test_disabled_publishes_what_it_did_before() -> None:
    assert project(T4, mode="disabled") == projection(make.inventory(T4))
    assert device(project(T4, mode="disabled"))["capacity"] == {
        "memory": {"value": str(Quantity.of_bytes(15360 * MIB + 4096))}
    }


def test_one_share_has_a_range_without_a_step_which_the_api_would_refuse() -> None:
    found = device(project(T4, mode="1"))
    assert found["capacity"]["shares"] == {
        "value": "1",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "1"}},
    }


@pytest.mark.parametrize("mode", list(NVIDIA))
@pytest.mark.parametrize("gpu", [T4, H100, make.gpu(0, memory_bytes=None)])
def test_every_capacity_has_a_policy_whose_numbers_the_api_takes(mode: str, gpu: Gpu) -> None:
    for one in device(project(gpu, mode=mode))["capacity"].values():
        found = one["requestPolicy"]
        value, default = amount(one["value"]), amount(found["default"])
        within = found.get("validRange")
        if within is None:
            assert default == 0
            continue
        least, most = amount(within["min"]), amount(within["max"])
        assert least <= default <= most <= value
        if "step" in within:
            step = amount(within["step"])
            assert least + step <= value
            assert (default - least) % step == (most - least) % step == 0


def amount(text: str) -> int:
    return Quantity.parse(text).whole


def test_a_gpu_in_parts_is_consumed_as_a_whole_by_its_counters_and_by_what_is_asked_for() -> None:
    found, plain = project(H100), projection(make.inventory(H100))
    gpu = device(found)
    assert gpu["consumesCounters"] == device(plain)["consumesCounters"]
    assert found.counter_sets == plain.counter_sets
    assert gpu["capacity"]["multiprocessors"]["requestPolicy"] == {"default": "0"}
    usable = amount(gpu["capacity"]["memory"]["value"])
    assert usable == min(
        80 * GIB - 550 * MIB, amount(device(plain)["capacity"]["memory"]["value"]) // MIB * MIB
    )


def test_a_partition_that_is_made_on_demand_is_for_one_claim() -> None:
    found, plain = project(H100), projection(make.inventory(H100))
    assert found.devices[1:] == plain.devices[1:]
    assert len(plain.devices) > 1


def test_a_mig_device_that_exists_is_consumed_in_parts() -> None:
    mig = replace(make.mig(), instances=(make.mig_device(),))
    found = project(make.gpu(0, mig=mig, mig_mode=MigMode.ENABLED))
    (one,) = (each for each in found.devices if "uuid" in each["attributes"])  # type: ignore[operator]
    capacity: Any = one["capacity"]
    assert one["allowMultipleAllocations"] is True
    assert all("requestPolicy" in each for each in capacity.values())
    assert len(capacity) + len(one["attributes"]) <= 32  # type: ignore[arg-type]


def test_a_gpu_that_a_share_config_divides_is_not_consumed_in_parts() -> None:
    division = Division(
        count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False
    )
    share = {"divisions": {make.place(T4): division}}
    for one in project(T4, share=share).devices:
        assert "allowMultipleAllocations" not in one
        assert all("requestPolicy" not in each for each in one["capacity"].values())  # type: ignore[attr-defined]


def test_without_the_feature_gate_each_device_is_for_one_claim() -> None:
    assert project(T4, with_consumables=False) == projection(make.inventory(T4))


def test_reserved_memory_is_published_but_not_offered() -> None:
    plain = device(projection(make.inventory(T4)))["capacity"]["memory"]["value"]
    assert amount(plain) == T4.memory_bytes
    shared = device(project(T4))["capacity"]["memory"]["value"]
    assert amount(shared) == 15360 * MIB - 450 * MIB


def test_a_card_without_known_memory_is_shared_without_it() -> None:
    found = consumable({}, None, Consumable.of("4"))
    assert set(found) == {"memory", "shares", "cores"}
    assert found["memory"] == {"value": "0", "requestPolicy": {"default": "0"}}


@pytest.mark.parametrize(
    ("text", "gate", "wanted"),
    [
        ("disabled", None, Consumable()),
        ("disabled", True, Consumable()),
        ("memory", False, Consumable()),
        ("memory", True, Consumable(mode=ConsumableMode.MEMORY)),
        ("unlimited", None, Consumable(mode=ConsumableMode.UNLIMITED)),
        ("7", None, Consumable(mode=ConsumableMode.COUNT, count=7)),
    ],
)
def test_the_setting_and_the_gate(text: str, gate: bool | None, wanted: Consumable) -> None:
    assert Consumable.of(text, gate=gate) == wanted


def test_a_gpu_that_others_put_in_mig_mode_is_for_one_claim_even_where_modes_are_switched() -> None:
    on = make.gpu(0, mig_mode=MigMode.ENABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
    found = project(on, replace(H100, minor=1, uuid=make.gpu(1).uuid))
    assert "allowMultipleAllocations" not in device(found, "gpu-0")
    assert not any("requestPolicy" in one for one in device(found, "gpu-0")["capacity"].values())
    assert device(found, "gpu-1")["allowMultipleAllocations"] is True
