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
from dra_driver.claims.model.record import ClaimRecord, decode, encode
from dra_driver.errors import StateError
from dra_driver.mps.domain import Domain, DomainDevice, DomainId

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


@given(st.data())
def test_a_record_with_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(make.record(make.gpu(0), make.gpu(5))))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StateError):
        decode(bytes(whole))
