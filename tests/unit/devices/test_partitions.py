"""What GPUs can be divided into, and why others are not."""

import pytest

import make
from dra_driver.devices.device import Device, name_of
from dra_driver.devices.mig.partitions import (
    awaits_reset,
    is_partitioned,
    is_whole,
    partition_named,
    partitions,
    why_not_partitioned,
)
from dra_driver.devices.model import Gpu, MigMode, MigProfile, Placement
from dra_driver.devices.names import GpuName, MigName, mig_name, parse_device_name

ON, OFF = MigMode.ENABLED, MigMode.DISABLED


def gpu(mode: MigMode = OFF, **changes: object) -> Gpu:
    return make.gpu(0, mig_mode=mode, mig=make.mig(**changes))


def test_every_profile_at_every_placement_is_a_partition() -> None:
    found = partitions(gpu())

    assert len(found) == 7 + 7 + 4 + 3 + 2 + 1 + 1
    assert len({name_of(gpu(), Device(base=entry)) for entry in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "parts", "whole"),
    [
        ("hopper off", True, True),
        ("hopper on", True, True),
        ("ampere off", False, True),
        ("ampere on", True, False),
        ("no mig", False, True),
        ("unknown mig", False, False),
        ("virtual on", False, False),
        ("unreadable on", False, False),
        ("no profiles off", False, True),
    ],
)
def test_the_offer_depends_on_card_and_mode(name: str, *, parts: bool, whole: bool) -> None:
    one = {
        "hopper off": gpu(),
        "hopper on": gpu(ON),
        "ampere off": gpu(needs_reset=True),
        "ampere on": gpu(ON, needs_reset=True),
        "no mig": make.gpu(0, mig_mode=MigMode.UNSUPPORTED),
        "unknown mig": make.gpu(0, mig_mode=ON),
        "virtual on": gpu(ON, is_virtual=True),
        "unreadable on": gpu(ON, problem="no permission"),
        "no profiles off": gpu(profiles=()),
    }[name]

    assert (is_partitioned(one), is_whole(one)) == (parts, whole)
    assert bool(partitions(one)) is parts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"needs_reset": True}, "nvidia-smi -i 0000:10:00.0 -mig 1"),
        ({"needs_reset": True, "pending_mode": ON}, "-i 0000:10:00.0 --gpu-reset"),
        ({"is_virtual": True}, "vGPU"),
        ({"problem": "no permission"}, "no permission"),
        ({"profiles": ()}, "no MIG profile"),
    ],
)
def test_an_undivided_gpu_has_a_reason(changes: dict[str, object], reason: str) -> None:
    assert reason in (why_not_partitioned(gpu(**changes)) or "")


@pytest.mark.parametrize(
    ("mode", "pending", "waits"), [(OFF, ON, True), (ON, OFF, True), (ON, ON, False)]
)
def test_an_ampere_gpu_waits_for_the_reset_that_changes_its_mode(
    mode: MigMode, pending: MigMode, *, waits: bool
) -> None:
    assert awaits_reset(gpu(mode, needs_reset=True, pending_mode=pending)) is waits
    # A mode that others keep a Hopper GPU from taking waits for them, and a vGPU for its host.
    assert not awaits_reset(gpu(mode, pending_mode=pending))
    assert not awaits_reset(gpu(mode, needs_reset=True, pending_mode=pending, is_virtual=True))


def test_a_card_without_mig_waits_for_no_reset() -> None:
    assert not awaits_reset(make.gpu(0, mig_mode=MigMode.UNSUPPORTED))


def test_a_card_without_mig_needs_no_reason() -> None:
    assert why_not_partitioned(make.gpu(0, mig_mode=MigMode.UNSUPPORTED)) is None


def test_a_partition_is_found_by_what_its_name_says() -> None:
    found = partition_named(gpu(), 9, 4)

    assert found is not None
    assert (found.profile, found.placement) == ("3g.40gb", Placement(start=4, size=4))
    assert partition_named(gpu(), 9, 2) is None
    assert partition_named(make.gpu(0), 9, 4) is None


@pytest.mark.parametrize(
    ("profile", "number", "name"),
    [
        ("1g.5gb", 19, "gpu-0-mig-1g5gb-19-0"),
        ("1g.24gb+me", 20, "gpu-0-mig-1g24gb-me-20-0"),
        ("1g.24gb+me.all", 65, "gpu-0-mig-1g24gb-meall-65-0"),
        ("1g.24gb-me", 67, "gpu-0-mig-1g24gb-me-67-0"),
        ("7g.80gb", 0, "gpu-0-mig-7g80gb-0-0"),
    ],
)
def test_names_of_mig_devices_are_those_of_nvidias_driver(
    profile: str, number: int, name: str
) -> None:
    assert mig_name(0, profile, number, 0) == name
    assert parse_device_name(name) == MigName(minor=0, profile_id=number, start=0)
    assert not isinstance(parse_device_name(name), GpuName)


@pytest.mark.parametrize(
    "name", ["gpu-0", "gpu-0-mig-1g5gb-19", "gpu-x-mig-a-1-2", "mig-1-2-3", ""]
)
def test_other_names_are_not_mig_devices(name: str) -> None:
    assert not isinstance(parse_device_name(name), MigName)


def test_the_minor_number_of_a_whole_gpu_is_read_from_its_name() -> None:
    assert parse_device_name("gpu-12") == GpuName(minor=12)
    assert not isinstance(parse_device_name("gpu-"), GpuName)


@pytest.mark.parametrize(
    ("name", "graphics"),
    [("1g.24gb+gfx", True), ("1g.24gb+me,gfx", True), ("1g.24gb+me", False), ("1g.24gb", False)],
)
def test_graphics_are_known_by_the_profiles_name(name: str, *, graphics: bool) -> None:
    shape = make.H100_PROFILES[0]
    fields = {field: getattr(shape, field) for field in MigProfile.__slots__}

    assert MigProfile(**(fields | {"name": name})).has_graphics is graphics


def test_placements_overlap_only_where_they_share_a_memory_slice() -> None:
    middle = Placement(start=2, size=2)

    assert list(middle.memory_slices) == [2, 3]
    assert middle.overlaps(Placement(start=3, size=1))
    assert middle.overlaps(Placement(start=0, size=8))
    assert not middle.overlaps(Placement(start=4, size=4))
    assert not middle.overlaps(Placement(start=0, size=2))
