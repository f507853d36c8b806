"""MIG devices in ResourceSlices: those that exist, those that could, and the GPUs they are on."""

from typing import Any

import pytest
from msgspec.structs import replace
from testbed.apiserver.rules import check_slice

import make
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import BareInstance, Gpu, MigMode, Refusal
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import Projection, projection

ON = MigMode.ENABLED
HAND_MADE = make.mig_device(0, "3g.40gb", 4)
PARENT = make.gpu(0).uuid


def h100(*instances: Any, minor: int = 0, **changes: object) -> Gpu:
    mode = ON if instances else MigMode.DISABLED
    return make.gpu(minor, mig_mode=mode, mig=make.mig(*instances, **changes))


def a100(mode: MigMode, *instances: Any, **changes: object) -> Gpu:
    mig = make.mig(*instances, needs_reset=True, pending_mode=mode, **changes)
    return make.gpu(0, architecture="Ampere", mig_mode=mode, mig=mig)


def found(*gpus: Gpu, with_counters: bool = True) -> Projection:
    return projection(make.inventory(*gpus), with_counters=with_counters)


def names(published: Projection) -> list[str]:
    return [str(device["name"]) for device in published.devices]


def device(published: Projection, name: str) -> dict[str, Any]:
    (one,) = (each for each in published.devices if each["name"] == name)
    return one


def test_a_hopper_gpu_is_published_whole_and_in_every_part_it_could_be_cut_into() -> None:
    published = found(h100())

    assert len(published.devices) == 26
    assert names(published)[0] == "gpu-0"
    assert [counter_set["name"] for counter_set in published.counter_sets] == ["gpu-0-counter-set"]
    assert published.withheld == published.notes == ()


def test_a_partition_is_described_as_by_nvidias_driver() -> None:
    one = device(found(h100()), "gpu-0-mig-1g10gb-me-20-6")

    assert one["attributes"] == {
        "type": {"string": "mig"},
        "parentUUID": {"string": PARENT},
        "profile": {"string": "1g.10gb+me"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "535.261.3"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "addressingMode": {"string": "HMM"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:0f"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    assert one["capacity"] == {
        "multiprocessors": {"value": "16"},
        "copyEngines": {"value": "1"},
        "decoders": {"value": "1"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "1"},
        "ofaEngines": {"value": "1"},
        "memory": {"value": "9856Mi"},
    }
    assert one["consumesCounters"] == [
        {
            "counterSet": "gpu-0-counter-set",
            "counters": {
                "ofa-engines": {"value": "1"},
                "memory-slice-6": {"value": "1"},
                "memory": {"value": "9856Mi"},
            },
        }
    ]


def test_the_whole_gpu_consumes_all_counters_and_has_the_capacity_of_its_largest_profile() -> None:
    published = found(h100())
    whole = device(published, "gpu-0")

    assert whole["consumesCounters"][0]["counters"] == published.counter_sets[0]["counters"]
    assert whole["capacity"]["memory"] == {"value": "81152Mi"}
    assert whole["capacity"]["multiprocessors"] == {"value": "132"}


def test_an_instance_that_a_claim_is_having_made_changes_no_byte_either() -> None:
    half = BareInstance(
        parent=PARENT,
        profile=HAND_MADE.profile,
        placement=HAND_MADE.placement,
        gpu_instance=1,
        made_here=True,
    )
    assert found(h100(half)) == found(h100())


def test_the_mode_of_a_hopper_gpu_changes_no_byte() -> None:
    assert found(make.gpu(0, mig_mode=ON, mig=make.mig())) == found(h100())


def test_an_instance_made_by_hand_is_published_as_it_is() -> None:
    one = device(found(h100(HAND_MADE)), "gpu-0-mig-3g40gb-9-4")

    assert one["attributes"]["uuid"] == {"string": HAND_MADE.uuid}
    assert one["capacity"]["memory"] == {"value": "40448Mi"}
    assert {name for name in one["capacity"] if name.startswith("memorySlice")} == {
        f"memorySlice{number}" for number in (4, 5, 6, 7)
    }
    (consumed,) = one["consumesCounters"]
    assert consumed == {
        "counterSet": "gpu-0-counter-set",
        "counters": {
            **{f"memory-slice-{number}": {"value": "1"} for number in (4, 5, 6)},
            "memory": {"value": "40448Mi"},
        },
    }


def test_where_others_left_no_room_nothing_needs_counters() -> None:
    published = found(h100(make.mig_device(0, "7g.80gb", 0)))

    assert names(published) == ["gpu-0-mig-7g80gb-0-0"]
    assert published.counter_sets == ()
    assert "consumesCounters" not in published.devices[0]


def test_an_instance_made_by_hand_takes_what_the_part_in_its_place_would() -> None:
    (by_hand,) = found(h100(HAND_MADE)).devices[:1]
    part = device(found(h100()), "gpu-0-mig-3g40gb-9-4")

    assert by_hand["name"] == part["name"]
    assert by_hand["consumesCounters"] == part["consumesCounters"]


def test_the_counter_sets_of_gpus_of_one_card_are_the_same_but_for_their_names() -> None:
    in_mode = make.gpu(1, mig_mode=ON, mig=make.mig())
    published = found(h100(HAND_MADE), in_mode, h100(minor=2))
    (first, *others) = (one["counters"] for one in published.counter_sets)

    assert len(published.counter_sets) == 3
    assert others == [first, first]


def test_beside_instances_made_by_hand_only_what_fits_is_published() -> None:
    published = found(h100(HAND_MADE))
    starts = {int(name.rsplit("-", 1)[1]) for name in names(published)[1:]}

    assert names(published)[0] == "gpu-0-mig-3g40gb-9-4"
    assert starts == {0, 1, 2, 3}
    assert "gpu-0" not in names(published)
    assert "nvidia-smi mig -i 0000:10:00.0 -dgi" in published.notes[0].text
    parts: list[Any] = [one["consumesCounters"] for one in published.devices[1:]]
    taken = {name for (consumed,) in parts for name in consumed["counters"]}
    assert taken == {"ofa-engines", "memory", *(f"memory-slice-{n}" for n in range(4))}


def test_a_bare_gpu_instance_blocks_its_place_and_is_reported() -> None:
    half = BareInstance(
        parent=PARENT, profile=HAND_MADE.profile, placement=HAND_MADE.placement, gpu_instance=2
    )
    published = found(h100(half))

    assert "gpu-0-mig-3g40gb-9-4" not in names(published)
    assert "GPU instance 2 (3g.40gb at 4) has no compute instance" in published.notes[0].text


def test_ampere_with_mode_off_is_a_whole_gpu_with_the_reason() -> None:
    published = found(a100(MigMode.DISABLED))

    assert names(published) == ["gpu-0"]
    assert "consumesCounters" not in device(published, "gpu-0")
    assert published.counter_sets == ()
    assert "-mig 1 and reset the GPU" in published.notes[0].text


def test_ampere_with_mode_on_and_nothing_on_it_is_not_stranded() -> None:
    published = found(a100(ON))

    assert len(published.devices) == 25
    assert "gpu-0" not in names(published)


def test_a_vgpu_has_the_instances_its_host_gave_it() -> None:
    published = found(a100(ON, HAND_MADE, is_virtual=True))

    assert names(published) == ["gpu-0-mig-3g40gb-9-4"]
    assert published.counter_sets == ()


def test_capability_is_of_the_card_and_not_of_the_node() -> None:
    plain = make.gpu(1, mig_mode=MigMode.UNSUPPORTED)
    published = found(h100(), plain)

    assert names(published)[:2] == ["gpu-1", "gpu-0"]
    assert device(published, "gpu-1") == found(plain).devices[0]


def test_whole_gpus_come_first_from_the_last_and_partitions_fill_from_the_first() -> None:
    published = names(found(*(h100(minor=minor) for minor in range(3))))

    assert published[:3] == ["gpu-2", "gpu-1", "gpu-0"]
    assert [name.split("-mig")[0] for name in published[3:]] == (
        ["gpu-0"] * 25 + ["gpu-1"] * 25 + ["gpu-2"] * 25
    )


def test_without_counters_whole_gpus_stay_and_partitions_go() -> None:
    published = found(h100(), with_counters=False)

    assert names(published) == ["gpu-0"]
    assert published.counter_sets == ()
    assert "consumesCounters" not in published.devices[0]
    assert published.devices[0]["capacity"] == {"memory": {"value": "80Gi"}}
    assert "does not store counters" in published.notes[0].text


def test_without_counters_a_gpu_with_instances_is_not_given_out_as_a_whole() -> None:
    made = make.mig_device(0, "1g.10gb", 6, made_here=True)
    assert names(found(h100(made), with_counters=False)) == []
    assert names(found(h100(HAND_MADE, made), with_counters=False)) == ["gpu-0-mig-3g40gb-9-4"]
    assert [entry.index for entry in found(h100(made), with_counters=False).withheld] == [0]


def test_instances_that_cannot_be_read_withhold_the_gpu_with_the_reason() -> None:
    one = make.gpu(0, mig_mode=ON, mig=make.mig(problem="run it as root"))
    published = found(one)

    assert published.devices == ()
    assert "run it as root" in published.withheld[0].reason


def test_a_card_with_more_slices_than_the_api_takes_is_a_whole_gpu() -> None:
    shape = make.H100_PROFILES[0]

    def offered(slices: int) -> Projection:
        wide = make.mig(profiles=(make.profile_like(shape, size=1, starts=range(slices)),))
        return found(make.gpu(0, mig_mode=MigMode.DISABLED, mig=wide))

    assert len(names(offered(27))) == 1 + 27
    assert names(offered(28)) == ["gpu-0"]
    (note,) = offered(28).notes
    assert "its MIG profiles need 33 counters, and the API allows 32" in note.text


def test_a_device_that_covers_too_much_for_the_api_lacks_only_its_slices() -> None:
    shape = make.profile_like(make.H100_PROFILES[-1], size=12, starts=[0])
    instance = replace(
        make.mig_device(0, "7g.80gb", 0), profile=shape, placement=shape.placements[0]
    )
    published = found(make.gpu(0, mig_mode=ON, mig=make.mig(instance, profiles=(shape,))))

    (one,) = published.devices
    assert "memory" in one["capacity"]  # type: ignore[operator]
    assert [entry.attribute for entry in published.omitted] == ["memorySlice…"]


@pytest.mark.parametrize("mode", [ON, MigMode.DISABLED])
def test_two_gpus_of_one_minor_number_are_published_once(mode: MigMode) -> None:
    twin = make.gpu(0, index=5, uuid="GPU-twin", mig_mode=mode, mig=make.mig())
    published = found(h100(), twin)

    assert len(set(names(published))) == len(published.devices) == 26
    (entry,) = published.withheld
    assert entry.index == 5
    assert entry.reason.startswith("another GPU has the same minor number 0; ")


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16])
@pytest.mark.parametrize("by_hand", [False, True])
def test_any_number_of_gpus_keeps_within_the_limits_of_the_api(
    count: int, *, by_hand: bool
) -> None:
    instances = [make.mig_device(0, "1g.10gb", start) for start in range(7)] if by_hand else []
    published = found(*(h100(*instances, minor=minor) for minor in range(count)))
    pool = build_slices(
        published.devices,
        driver="gpu.nvidia.com",
        node_name="n",
        counter_sets=published.counter_sets,
    )
    for index in range(len(pool.contents)):
        metadata = {"name": pool.slice_name(index)}
        spec = pool.spec(index, generation=1)
        check_slice({"kind": "ResourceSlice", "metadata": metadata, "spec": spec}, None)
    assert len(published.devices) == count * (7 if by_hand else 26)


# GPUs that cannot be switched to MIG mode


def refusing(*waiting: tuple[int, int]) -> dict[Any, Refusal]:
    """A refusal of GPU 0, with claims that wait for a profile at a start."""
    slots = [partition_named(h100(), *one) for one in waiting]
    return {PARENT: Refusal(reason="dcgm (PID 9)", waiting=frozenset(s.slot for s in slots if s))}


def test_only_the_gpu_that_refuses_mig_mode_is_published_whole() -> None:
    inventory = make.inventory(h100(), h100(minor=1))
    before, published = projection(inventory), projection(inventory, refused=refusing())

    others = [name for name in names(before) if not name.startswith("gpu-0")]
    # First, for claims of a whole one: nothing else can be made of it.
    assert names(published) == ["gpu-0", *others]
    for one in published.devices:
        assert one in before.devices
    assert published.counter_sets == before.counter_sets
    (note,) = published.notes
    assert (note.index, note.text) == (0, "no MIG devices are offered on it for now: dcgm (PID 9)")


def test_awaited_parts_stay_published() -> None:
    before = found(h100())
    published = projection(make.inventory(h100()), refused=refusing((19, 3), (9, 4)))

    assert names(published) == ["gpu-0", "gpu-0-mig-1g10gb-19-3", "gpu-0-mig-3g40gb-9-4"]
    assert all(one in before.devices for one in published.devices)
    assert published.counter_sets == before.counter_sets


def test_a_gpu_in_mig_mode_needs_no_switch_that_could_be_refused() -> None:
    inventory = make.inventory(make.gpu(0, mig_mode=ON, mig=make.mig()))

    assert projection(inventory, refused=refusing()) == projection(inventory)


# GPUs that are in MIG mode


def in_mode(minor: int, *, ours: bool) -> Gpu:
    return make.gpu(minor, mig_mode=ON, mig=make.mig(turned_on_here=ours))


def test_gpus_that_somebody_put_in_mig_mode_are_divided_first_and_given_out_whole_last() -> None:
    published = found(h100(), h100(minor=1), in_mode(2, ours=False), h100(minor=3))
    parts = [name.partition("-mig-")[0] for name in names(published) if "-mig-" in name]

    assert names(published)[:4] == ["gpu-3", "gpu-1", "gpu-0", "gpu-2"]
    assert list(dict.fromkeys(parts)) == ["gpu-2", "gpu-0", "gpu-1", "gpu-3"]


def test_a_mode_that_this_driver_turned_on_changes_nothing_that_is_published() -> None:
    off = found(h100(), h100(minor=1))

    assert found(h100(), in_mode(1, ours=True)) == off
    assert found(h100(), in_mode(1, ours=False)) != off
