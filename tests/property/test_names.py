"""Device names, for any minor number the kernel can give."""

import re

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cdi.model import claim_device_id, claim_device_name
from dra_driver.devices.names import (
    GpuName,
    MigName,
    gpu_name,
    in_order,
    mig_name,
    parse_device_name,
    share_suffix,
    undivided_name,
)

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
CDI_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
MINORS = st.integers(min_value=0, max_value=2**20 - 1)


@given(MINORS)
def test_a_device_name_is_a_dns_label(minor: int) -> None:
    name = gpu_name(minor)

    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= 63


@given(MINORS)
def test_the_minor_number_can_be_read_back(minor: int) -> None:
    assert parse_device_name(gpu_name(minor)) == GpuName(minor=minor)


@given(MINORS, st.text(max_size=96), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_the_name_of_any_mig_device_is_a_dns_label_that_can_be_read_back(
    minor: int, profile: str, number: int, start: int
) -> None:
    name = mig_name(minor, profile, number, start)

    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= 63
    assert parse_device_name(name) == MigName(minor=minor, profile_id=number, start=start)


@given(st.uuids(), MINORS, st.none() | st.uuids().map(str))
def test_a_claims_cdi_name_is_one_that_runtimes_parse(
    uid: object, minor: int, share_id: str | None
) -> None:
    name = claim_device_name(str(uid), gpu_name(minor), share_id)
    kind, separator, device = claim_device_id(str(uid), gpu_name(minor), share_id).partition("=")

    assert CDI_DEVICE.fullmatch(name)
    assert (kind, separator, device) == ("k8s.gpu.nvidia.com/claim", "=", name)


@given(
    st.lists(st.integers(0, 300), unique=True),
    st.integers(1, 99),
    st.sampled_from(["share", "single-share", "mps-share"]),
)
def test_names_stand_as_people_count_and_shares_with_their_device(
    minors: list[int], count: int, kind: str
) -> None:
    names = [str(gpu_name(minor)) for minor in minors]
    assert sorted(names, key=in_order) == [str(gpu_name(minor)) for minor in sorted(minors)]
    for name in names:
        assert (
            undivided_name(f"{name}{share_suffix(kind, 0, count)}") == undivided_name(name) == name
        )
