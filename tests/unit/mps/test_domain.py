"""Domains and statuses as bytes on disk and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.devices.device import DeviceKind
from dra_driver.errors import StateError, VersionError
from dra_driver.host.envelope import seal, unseal
from dra_driver.mps.domain import (
    Daemon,
    Domain,
    DomainDevice,
    DomainId,
    State,
    Status,
    check_id,
    decode_domain,
    decode_status,
    encode,
    shared_domain,
)

GPU = "GPU-00000000-0000-4000-8000-00000000000"
IDS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?", fullmatch=True)
DEVICES = st.lists(
    st.builds(
        DomainDevice,
        uuid=st.sampled_from([f"{GPU}{number}" for number in range(8)]),
        pinned_memory_mib=st.none() | st.integers(1, 2**31),
    ),
    min_size=1,
    unique_by=lambda device: device.uuid,
).map(tuple)
DOMAINS = st.builds(
    Domain,
    id=IDS.map(DomainId),
    devices=DEVICES,
    active_thread_percentage=st.none() | st.integers(1, 100),
    multi_user=st.booleans(),
    incarnation=st.text(),
)
STATUSES = st.builds(
    Status,
    id=IDS.map(DomainId),
    state=st.sampled_from(State),
    supervisor=st.text(),
    generation=st.text(),
    reason=st.text(),
    daemon=st.none() | st.builds(Daemon, pid=st.integers(1), start_ticks=st.integers(0)),
    active_thread_percentage=st.none() | st.floats(0, 100),
    pinned_memory_mib=st.dictionaries(st.text(), st.integers(0)),
    restarts=st.integers(0),
    failures=st.integers(0),
)


@given(DOMAINS)
def test_a_domain_comes_back_from_its_bytes(domain: Domain) -> None:
    assert decode_domain(encode(domain)) == domain


@given(STATUSES)
def test_a_status_comes_back_from_its_bytes(status: Status) -> None:
    assert decode_status(encode(status)) == status


@given(DOMAINS, st.data())
def test_a_damaged_domain_is_refused(domain: Domain, data: st.DataObject) -> None:
    whole = encode(domain)
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))])
    for damaged in (whole[:at], whole[:at] + damage + whole[at + 1 :]):
        with pytest.raises(StateError):
            decode_domain(damaged)


@pytest.mark.parametrize("payload", [{}, {"id": 1}, {"id": "a", "devices": 3}, {"id": "a"}])
def test_a_sealed_file_of_another_kind_is_refused(payload: dict[str, object]) -> None:
    for decode in (decode_domain, decode_status):
        with pytest.raises(StateError, match="not that of a"):
            decode(seal(payload))


def test_a_newer_file_is_distinguished_from_a_damaged_one() -> None:
    newer = encode(domain()).replace(b'"version":3', b'"version":4')
    refused = "it has version 4, but this driver reads version 3"
    with pytest.raises(StateError, match=refused):
        decode_domain(newer)


def test_a_kind_of_device_that_is_not_known_here_is_a_newer_versions() -> None:
    payload = dict(unseal(encode(domain()))) | {
        "devices": [{"uuid": f"{GPU}0", "kind": "share", "pinnedMemoryMiB": None}]
    }
    with pytest.raises(
        VersionError, match="what this version does not know: Invalid enum value 'share'"
    ):
        decode_domain(seal(payload))


def test_fields_of_a_newer_writer_are_passed_over() -> None:
    payload = {
        "id": "claim",
        "devices": [{"uuid": f"{GPU}0", "kind": "gpu", "pinnedMemoryMiB": None, "priority": 1}],
        "activeThreadPercentage": None,
        "multiUser": False,
        "staticPartitions": True,
    }
    assert decode_domain(seal(payload)) == domain()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "../etc"}, "not a valid domain id"),
        ({"id": ""}, "not a valid domain id"),
        ({"devices": ()}, "one device or more"),
        ({"devices": (DomainDevice(uuid=f"{GPU}0"),) * 2}, "each once"),
        ({"devices": (DomainDevice(uuid="GPU-0\nquit"),)}, "not a valid UUID"),
        ({"devices": (DomainDevice(uuid="0"),)}, "not a valid UUID"),
        (
            {
                "devices": (
                    DomainDevice(uuid=f"{GPU}0"),
                    DomainDevice(uuid="MIG-1", kind=DeviceKind.MIG),
                )
            },
            "a domain of its own",
        ),
        ({"devices": (DomainDevice(uuid=f"{GPU}0", pinned_memory_mib=0),)}, "1 MiB or more"),
        ({"active_thread_percentage": 101}, "want 1 to 100"),
        ({"active_thread_percentage": -1}, "want 1 to 100"),
        ({"active_thread_percentage": 0}, "want 1 to 100"),
    ],
)
def test_an_impossible_domain_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(StateError, match=words):
        domain(**changes)


def test_the_generation_follows_every_change_and_the_daemons_only_its_own() -> None:
    one, other = domain(), domain(active_thread_percentage=10)
    assert one.generation != other.generation
    assert one.daemon_generation == other.daemon_generation
    assert one.daemon_generation != domain(multi_user=True).daemon_generation


@pytest.mark.parametrize("text", ["a", "11111111-0000-4000-8000-000000000000", "a.b_c-0"])
def test_a_claims_uid_is_a_domain_id(text: str) -> None:
    assert check_id(text) == text


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\0", "x" * 122, "a."])
def test_a_shared_domain_cannot_have_any_name(name: str) -> None:
    with pytest.raises(StateError, match="not a valid domain id"):
        shared_domain(name)


def test_an_incarnation_changes_what_is_answered_and_not_what_is_served() -> None:
    one, other = domain(), domain(incarnation="1")
    assert one.generation != other.generation
    assert one.daemon_generation == other.daemon_generation
    assert other.content == one


def domain(**changes: object) -> Domain:
    facts: dict[str, object] = {"id": "claim", "devices": (DomainDevice(uuid=f"{GPU}0"),)}
    return Domain(**(facts | changes))  # type: ignore[arg-type]
