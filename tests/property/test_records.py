"""Records on disk: what comes back is what was written, or nothing; never something else."""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

import make
from dra_driver.claims.model.record import ClaimRecord, RecordState, decode, encode
from dra_driver.errors import StateError
from dra_driver.host.envelope import seal
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, domain_json
from dra_driver.sharing.steps import Backend
from resource_nvidia_com.v1beta1.names import Interval

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
numbers = st.integers(0, 2**31)
domains = st.builds(
    Domain,
    id=st.from_regex(r"[A-Za-z0-9]{1,20}", fullmatch=True).map(DomainId),
    devices=st.lists(
        st.builds(
            DomainDevice,
            uuid=st.uuids().map("GPU-{}".format),
            pinned_memory_mib=st.none() | st.integers(1, 2**31),
        ),
        min_size=1,
        max_size=2,
        unique_by=lambda one: one.uuid,
    ).map(tuple),
    active_thread_percentage=st.none() | st.integers(1, 100),
    multi_user=st.booleans(),
)
"""Those that a daemon could serve: others cannot be made."""

plain: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: numbers,
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    NoneType: st.none(),
    Domain: domains,
}


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type: of each member of a union, and each field of it."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    if kind in plain:
        return plain[kind]
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*map(values, members))
    if origin is tuple:
        return st.lists(values(members[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(*map(values, members), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    assert issubclass(kind, Struct), kind
    return st.builds(kind, **{field.name: values(field.type) for field in fields(kind)})


records: st.SearchStrategy[ClaimRecord] = values(ClaimRecord)


@given(records)
def test_a_record_comes_back_as_it_was(record: ClaimRecord) -> None:
    assert decode(encode(record)) == record


@given(records, st.data())
def test_a_record_cut_off_anywhere_is_refused(record: ClaimRecord, data: st.DataObject) -> None:
    whole = encode(record)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(StateError):
        decode(whole[:length])


@given(st.data())
def test_a_record_with_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(make.record(make.gpu(0), make.gpu(5))))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StateError):
        decode(bytes(whole))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(StateError):
        decode(data)


# Records of the format before this one, as JSON


def known(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with these fields, of which those that end in `_` may be lacking."""
    fixed = {name: one for name, one in fields.items() if not name.endswith("_")}
    optional = {name[:-1]: one for name, one in fields.items() if name.endswith("_")}
    return st.fixed_dictionaries(fixed, optional=optional)


def one_of(*kinds: str) -> st.SearchStrategy[str]:
    return st.sampled_from(kinds)


def by_key(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(text, entries, max_size=2)


def a_list(members: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(members, min_size=least, max_size=2)


maybe = st.none() | numbers
amounts = by_key(numbers)
place = {"gpu": text, "profile": text, "profileID": numbers, "start": numbers, "size": numbers}
was_way = one_of("MPS", "TimeSlicing")
was_division = known(
    count=numbers,
    strategy=was_way,
    servedAs=text,
    combines=st.booleans(),
    freeCompute=st.booleans(),
    together=a_list(text),
)
was_equal = {"index": numbers, "division": was_division}
was_consumed = {
    "shareID": text,
    "strategy": was_way,
    "memoryMiB": numbers,
    "cores": numbers,
    "shares_": numbers,
}
was_there = known(kind=st.just("gpu"), gpu=text) | known(
    kind=st.just("mig"),
    gpuInstance=numbers,
    computeInstance=numbers,
    uuid=text,
    madeHere=st.booleans(),
    **place,
)
was_undivided = was_there | known(kind=st.just("partition"), **place)
was_share = {"kind": st.just("share"), "of": was_undivided}
was_device = was_undivided | known(**was_share, **was_equal) | known(**was_share, **was_consumed)
was_entry = known(
    name=text,
    device=was_device,
    pool=text,
    requests=a_list(text),
    cdiDeviceIDs=a_list(text),
    adminAccess=st.booleans(),
    shareID=st.none() | text,
    subRequest_=text,
)
was_part = known(gpu=text, share_=known(**was_equal) | known(**was_consumed)) | known(
    gpu=text, start=numbers, size=numbers
)
was_limits = known(
    taken=numbers,
    of=maybe,
    consumedMemoryMiB_=numbers,
    consumedCores_=numbers,
    activeThreadPercentage=maybe,
    memoryMiB=amounts,
)
was_domain = domains.map(domain_json)


def was_plan(name: str, **changes: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return known(
        strategy=st.just(name),
        gpus=a_list(text, least=1),
        changes=known(**changes),
        places_=a_list(was_part),
    )


was_shared = st.one_of(
    was_plan(
        "TimeSlicing",
        interval=one_of(*Interval),
        computeMode=numbers,
        device_=text,
        foundInterval_=one_of(*Interval),
    ),
    was_plan("MPS", domain=was_domain, clients=by_key(numbers), tooHigh_=by_key(numbers)),
    was_plan("NvidiaMPS", daemon=text, folder=text, clients=a_list(text)),
    was_plan(
        "Shares",
        claim=text,
        strategy=was_way,
        shares=by_key(was_limits),
        memory_=known(
            by=one_of(*Backend),
            ofDevice=one_of(*Backend),
            why=text,
            claim=text,
            pod=text,
            mib=amounts,
        ),
        domain_=was_domain,
        containers_=by_key(known(activeThreadPercentage=maybe, memoryMiB=amounts)),
    ),
)
was_realised = known(gpu=text, makeMIGDevices=a_list(known(**place), least=1)) | known(
    gpu=text, turnMIGModeOff=known(restore=st.booleans())
)
was_user = known(name=text, uid=text)
was_record = known(
    writtenBy_=text,
    claim=known(uid=text, namespace=text, name=text),
    bootID=text,
    state=one_of(*RecordState),
    devices=a_list(was_entry),
    realisations=a_list(was_realised),
    plans=a_list(was_shared),
    pendingCleanups=a_list(
        known(plan=was_shared, reason=text, since_=st.floats(0, 2**32))
        | known(realisation=was_realised, reason=text)
    ),
    pods=a_list(was_user),
    podGroups_=a_list(was_user),
    takenOver_=st.just(True),
    podClaimName_=text,
    askedParts_=a_list(text),
)


def lifted_names(owed: Mapping[str, Any]) -> list[str]:
    """The names of the steps that one plan, or something that was realised, has become."""
    if "strategy" not in owed:
        return ["MIG"]
    is_member = owed["strategy"] == "Shares" and "domain" in owed["changes"]
    return [owed["strategy"]] * (2 if is_member else 1)


@given(was_record)
def test_a_record_of_the_former_format_is_read_with_all_that_it_names(
    former: dict[str, Any],
) -> None:
    found = decode(seal(former))
    assert [found.ref.uid, found.boot_id, found.state] == [
        former["claim"]["uid"],
        former["bootID"],
        former["state"],
    ]
    assert [(device.name, device.device.gpu) for device in found.devices] == [
        (device["name"], device["device"].get("of", device["device"])["gpu"])
        for device in former["devices"]
    ]
    done = [*former["realisations"], *former["plans"]]
    owed = [one.get("plan") or one["realisation"] for one in former["pendingCleanups"]]
    for steps_of, names_of in ((found.steps, done), ([one.of for one in found.pending], owed)):
        assert [step.name for step in steps_of] == [
            name for one in names_of for name in lifted_names(one)
        ]
    assert decode(encode(found)) == found


@given(was_there, st.none() | known(**was_equal) | known(**was_consumed), st.data())
def test_what_shared_a_device_in_the_former_format_is_about_that_very_device(
    base: dict[str, Any], share: dict[str, Any] | None, data: st.DataObject
) -> None:
    part = {name: base[name] for name in ("gpu", "start", "size") if name in base}
    device = base
    if share is not None:
        part["share"], device = share, {"kind": "share", "of": base, **share}
    former = data.draw(was_record)
    former["devices"] = [data.draw(was_entry) | {"device": device}]
    former["plans"] = [data.draw(was_shared) | {"places": [part]}]
    found = decode(seal(former))
    steps_of_it = [step.devices for step in found.steps[len(former["realisations"]) :]]
    assert steps_of_it
    assert {(found.devices[0].device,)} == set(steps_of_it)
