"""Every kind of device is known to every layer: a new kind that one of them lacks fails here.

mypy says the same through `assert_never`; this test holds the code to having those matches.
"""

import ast
from enum import EnumMeta
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

import dra_driver
import make
from dra_driver.cdi.edits_cache import NodeEdits
from dra_driver.cdi.model import Edits
from dra_driver.cdi.roots import Roots
from dra_driver.claims.model import record
from dra_driver.claims.model.devices import (
    RecordedDevice,
    record_json,
    record_of,
    recorded,
    recorded_kind,
    restored,
)
from dra_driver.devices.kinds import Device, DeviceKind, NodeDevice, kind_of, name_of
from dra_driver.devices.model import Gpu, MigDevice, Partition
from dra_driver.devices.names import parse_device_name
from dra_driver.devices.shares import (
    ConsumableShare,
    ConsumableSlot,
    Division,
    Share,
    ShareStrategy,
)
from dra_driver.errors import StateError
from dra_driver.node.claims import _device_type

PACKAGE = Path(dra_driver.__file__).parent
GPU = make.gpu(0, mig=make.mig(make.mig_device(0, "2g.20gb", 2)))
EXAMPLES: dict[type, Device] = {
    Gpu: GPU,
    MigDevice: make.mig_device(0, "2g.20gb", 2),
    Partition: Partition(
        parent=GPU.uuid,
        profile=make.H100_PROFILES[0],
        placement=make.H100_PROFILES[0].placements[0],
    ),
    Share: Share(
        of=GPU,
        index=3,
        division=Division(
            count=10, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True
        ),
    ),
    ConsumableShare: ConsumableShare(
        of=GPU,
        slot=ConsumableSlot(
            share_id="a671734a", strategy=ShareStrategy.MPS, memory_mib=10240, cores=20
        ),
    ),
}

# Layer: module and function with the one match, and over which kinds.
LAYERS: dict[str, tuple[str, str, Any]] = {
    "kind": ("devices/kinds.py", "kind_of", Device),
    "name": ("devices/kinds.py", "name_of", Device),
    "published attributes": ("slices/attributes.py", "_describe_device", Device),
    "published capacity": ("slices/wire.py", "wire_form", Device),
    "form in a record": ("claims/model/devices.py", "recorded", Device),
    "back from a record": ("claims/model/devices.py", "restored", RecordedDevice),
    "record as JSON": ("claims/model/devices.py", "_device_json", RecordedDevice),
    "whether it exists": ("claims/model/record.py", "_exists", RecordedDevice),
    "realising": ("claims/prepare/realise.py", "_find", RecordedDevice),
    "remaking": ("claims/prepare/realise.py", "_remake", RecordedDevice),
    "make": ("claims/prepare/realise.py", "_make", record.Realisation),
    "unmake": ("claims/prepare/realise.py", "_unmake", record.Realisation),
    "config": ("claims/model/config.py", "_kind_for", DeviceKind),
    "sharing": ("claims/prepare/strategies.py", "_group", Device),
    "container edits": ("cdi/edits_cache.py", "device", Device),
    "status": ("claims/model/devices.py", "recorded_kind", RecordedDevice),
    "UUID of an MPS domain": ("devices/kinds.py", "is_uuid_of", DeviceKind),
    "metrics": ("node/claims.py", "_device_type", DeviceKind),
}


def members(kinds: Any) -> set[str]:
    if isinstance(kinds, EnumMeta):
        return {f"{kinds.__name__}.{one}" for one in kinds.__members__}
    return {one.__name__ for one in get_args(kinds)}


def named(pattern: ast.pattern) -> set[str]:
    """The classes and enum members that a case names."""
    match pattern:
        case ast.MatchOr():
            return {name for one in pattern.patterns for name in named(one)}
        case ast.MatchClass():
            return {ast.unparse(pattern.cls)}
        case ast.MatchValue():
            return {ast.unparse(pattern.value)}
    return set()


def matches(module: str, function: str) -> list[ast.Match]:
    tree = ast.parse((PACKAGE / module).read_text())
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    assert found, f"{module} has no function {function}"
    return [node for one in found for node in ast.walk(one) if isinstance(node, ast.Match)]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_one_match_over_all_kinds_that_mypy_holds_to_them(layer: str) -> None:
    module, function, kinds = LAYERS[layer]
    (match,) = matches(module, function)
    *cases, last = match.cases
    assert {name for case in cases for name in named(case.pattern)} == members(kinds)
    assert isinstance(last.pattern, ast.MatchAs)
    assert last.pattern.name is None
    assert ast.unparse(last.body[0]).startswith("assert_never(")


def test_no_layer_tells_kinds_apart_by_the_text_of_a_name_or_uuid() -> None:
    guesses = ("-mig-", "MIG-", "GPU-")
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if "simulator" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Compare) and is_guess(node.left, guesses))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("startswith", "partition", "split", "find")
            and any(is_guess(argument, guesses) for argument in node.args)
        )
    ]
    assert found == []


def is_guess(node: ast.expr, guesses: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Constant) and node.value in guesses


def test_there_is_an_example_of_each_kind() -> None:
    assert set(EXAMPLES) == set(get_args(Device))
    kinds = {type(recorded(one)) for one in EXAMPLES.values()}
    assert kinds == set(get_args(RecordedDevice))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_kind_has_a_name_that_means_it_and_a_form_in_a_record(kind: type) -> None:
    device = EXAMPLES[kind]
    assert parse_device_name(name_of(GPU, device)) is not None
    stored = recorded(device)
    assert recorded_kind(stored) is kind_of(device)
    assert restored(stored, GPU) == NodeDevice(gpu=GPU, device=device)
    (entry,) = make.record(GPU).devices
    entry = replace(entry, device=stored)
    assert record_of(record_json(entry)) == entry


@pytest.mark.parametrize("kind", DeviceKind)
def test_each_kind_is_counted_under_its_own_type(kind: DeviceKind) -> None:
    assert _device_type(kind).value == kind.value


def test_what_is_yet_to_be_made_has_no_container_edits(tmp_path: Path) -> None:
    roots = Roots(driver=tmp_path, driver_on_host="/", dev=tmp_path, dev_on_host="/dev")
    node = NodeEdits(common=Edits(), roots=roots)
    with pytest.raises(
        StateError, match=r"1g.10gb at 0 of GPU-.* cannot be used before it is made"
    ):
        node.device(NodeDevice(gpu=GPU, device=EXAMPLES[Partition]))
