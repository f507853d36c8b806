"""Shares: their names, what two claims can have at a time, and how much each may use."""

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.device import Base, Device, Whole, equal_shares, mig_of, name_of
from dra_driver.devices.names import GpuName, MigName, ShareName, parse_device_name
from dra_driver.devices.shares import Division, EqualShare, ShareStrategy, memory_mib, percentage

GPU = make.gpu(3)
WHOLE = Whole(gpu=GPU.uuid)
TEN = Division(count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)


def share(index: int, division: Division = TEN, *, base: Base = WHOLE) -> Device:
    return Device(base=base, share=EqualShare(index=index, division=division))


def test_a_share_says_in_its_name_of_what_it_is_which_one_and_of_how_many() -> None:
    names = [name_of(GPU, one) for one in equal_shares(WHOLE, TEN)]
    assert names[0] == "gpu-3-mps-share-0-of-10"
    assert names[9] == "gpu-3-mps-share-9-of-10"
    assert parse_device_name(names[9]) == ShareName(of=GpuName(minor=3), index=9, count=10)


def test_a_share_of_a_mig_device_is_named_after_it_and_is_of_its_kind() -> None:
    device = make.device(make.mig_device(3, "2g.20gb", 2))
    half = share(1, replace(TEN, count=2), base=device.base)
    assert name_of(GPU, half) == "gpu-3-mig-2g20gb-14-2-mps-share-1-of-2"
    assert parse_device_name(name_of(GPU, half)) == ShareName(
        of=MigName(minor=3, profile_id=14, start=2), index=1, count=2
    )
    assert half.kind is device.kind


def test_the_name_of_a_share_is_a_label_however_long_the_profile_is() -> None:
    profile = replace(make.H100_PROFILES[0], name="1g." + "x" * 60)
    long = mig_of(replace(make.mig_device(3), profile=profile))
    name = name_of(GPU, share(7, base=long))
    assert len(name) <= 63
    assert name.endswith("-share-7-of-10")
    assert isinstance(parse_device_name(name), ShareName)


@pytest.mark.parametrize(
    "name",
    [
        "gpu-0-share-0",
        "gpu-0-share-0-of-0",
        "gpu-0-share-01-of-10",
        "gpu-0-share-0-of-10-share-0-of-2",
        "share-0-of-10",
    ],
)
def test_similar_names_are_not_shares(name: str) -> None:
    assert not isinstance(parse_device_name(name), ShareName)


def test_two_claims_can_have_different_shares_of_a_device_and_nothing_else_of_it() -> None:
    assert not share(0).overlaps(share(1))
    assert share(0).overlaps(share(0))
    assert share(0).overlaps(make.device(GPU))
    assert make.device(GPU).overlaps(share(0))
    assert not share(0).overlaps(share(0, base=Whole(gpu=make.gpu(4).uuid)))


@pytest.mark.parametrize(
    "other",
    [
        replace(TEN, count=4),
        replace(TEN, strategy=ShareStrategy.TIME_SLICING),
        replace(TEN, served_as="nvidia.com/gpu.shared"),
        replace(TEN, combines=False),
    ],
)
def test_shares_of_different_divisions_exclude_each_other(other: Division) -> None:
    assert share(0).overlaps(share(1, other))


def test_a_share_of_a_gpu_and_a_mig_device_on_it_exclude_each_other() -> None:
    mig = make.device(make.mig_device(3, "1g.10gb", 0))
    assert mig.overlaps(share(0))
    assert share(0).overlaps(mig)
    assert share(0).overlaps(share(1, base=mig.base))


@pytest.mark.parametrize("count", range(1, 61))
def test_combined_shares_never_exceed_the_device(count: int) -> None:
    total = 81559 * 1024**2 + 12345
    for first in range(1, count):
        rest = count - first
        assert percentage(first, count) + percentage(rest, count) <= 100
        memory = memory_mib(total, first, count) + memory_mib(total, rest, count)
        assert memory * 1024**2 <= total
    assert percentage(1, count) >= 1
