"""Slices of any machine: within every limit of the API, and reached from any starting point."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from testbed.apiserver.rules import check_slice

from dra_driver.devices.device import Device, Mig, Whole
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.mig.partitions import is_partitioned
from dra_driver.devices.model import (
    Gpu,
    GpuUuid,
    Instance,
    Inventory,
    MigDevice,
    MigFacts,
    MigMode,
    MigProfile,
    MigUuid,
    PciAddress,
    Placement,
    Refusal,
    SickGpu,
)
from dra_driver.slices.counters import MOST_COUNTERS, counter_set_name, memory, memory_of, whole
from dra_driver.slices.order import capability
from dra_driver.slices.pool import DesiredPool, build_slices
from dra_driver.slices.project import projection
from dra_driver.slices.publish.writes import (
    Create,
    Delete,
    Update,
    Write,
    owner_reference,
    writes_for,
)
from scheduled import Scheduler

OWNER = owner_reference(name="n1", uid="node-uid")

texts = st.text(st.characters(), max_size=90)
small = st.integers(min_value=0, max_value=9)


@st.composite
def profiles(draw: st.DrawFn, number: int, memory_slices: int) -> MigProfile:
    """Any MIG profile that NVML could tell of on a card of so many memory slices."""
    size = draw(st.integers(min_value=1, max_value=memory_slices))
    last = memory_slices - size
    first = draw(st.integers(min_value=0, max_value=last))
    starts = range(first, last + 1, draw(st.integers(min_value=1, max_value=memory_slices)))
    engines, memory = draw(st.tuples(small, small)), draw(st.integers(min_value=0, max_value=2**40))
    return MigProfile(
        id=number,
        name=draw(st.sampled_from(["1g.10gb", "1g.24gb+me.all", "2g.48gb-me"]) | texts),
        compute_slices=draw(st.integers(min_value=1, max_value=8)),
        instances=draw(st.integers(min_value=1, max_value=8)),
        memory_bytes=memory,
        multiprocessors=draw(st.integers(min_value=1, max_value=200)),
        copy_engines=engines[0],
        decoders=engines[1],
        encoders=0,
        jpeg_engines=engines[0],
        ofa_engines=engines[1],
        placements=tuple(Placement(start=start, size=size) for start in starts),
    )


@st.composite
def migs(draw: st.DrawFn) -> MigFacts:
    """MIG of any card, with any instances on it, made here or by others."""
    memory_slices = draw(st.sampled_from([1, 4, 8, 12, 24, 26, 40]))
    count = draw(st.sampled_from([0, 1, 2, 4]))
    found = tuple(draw(profiles(number, memory_slices)) for number in range(count))
    instances: list[Instance] = []
    for profile in draw(st.lists(st.sampled_from(found), max_size=2)) if found else ():
        placement = draw(st.sampled_from(profile.placements))
        if not any(placement.overlaps(other.placement) for other in instances):
            instances.append(
                MigDevice(
                    parent=GpuUuid("GPU-parent"),
                    profile=profile,
                    placement=placement,
                    gpu_instance=len(instances),
                    compute_instance=0,
                    uuid=MigUuid(draw(texts)),
                    made_here=draw(st.booleans()),
                )
            )
    return MigFacts(
        profiles=found,
        pending_mode=draw(st.sampled_from(MigMode)),
        needs_reset=draw(st.booleans()),
        is_virtual=draw(st.booleans()),
        instances=tuple(instances),
        problem=draw(st.none() | texts),
    )


gpus = st.builds(
    Gpu,
    index=st.integers(min_value=0, max_value=300),
    minor=st.integers(min_value=0, max_value=255),
    uuid=texts.map(GpuUuid),
    pci_address=st.from_regex(r"\A[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z").map(PciAddress),
    product_name=texts,
    brand=texts,
    architecture=texts,
    cuda_compute_capability=st.tuples(small, small),
    memory_bytes=st.none() | st.integers(min_value=0, max_value=2**62),
    mig_mode=st.sampled_from(MigMode),
    pcie_root=st.none() | texts,
    numa_node=st.none() | st.integers(min_value=-1, max_value=64),
    addressing_mode=st.none() | texts,
    mig=st.none() | migs(),
)
inventories = st.builds(
    Inventory,
    driver_version=st.none() | texts | st.from_regex(r"\A[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,3}\Z"),
    cuda_version=st.none() | st.tuples(small, small),
    gpus=st.lists(gpus, max_size=5).map(tuple),
    sick=st.lists(st.builds(SickGpu, index=small, reason=texts), max_size=3).map(tuple),
)


def _devices(start: int, count: int, step: int) -> list[dict[str, Any]]:
    return [{"name": f"gpu-{minor}"} for minor in range(start, start + count)][::step]


device_lists = st.builds(
    _devices,
    st.integers(min_value=0, max_value=130),
    st.sampled_from([0, 1, 63, 64, 65, 128, 129, 300]),
    st.sampled_from([1, -1, 2]),
)
"""Lists that differ in content, order and number of slices (64 devices each)."""


def slices(desired: DesiredPool) -> list[dict[str, Any]]:
    return [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": desired.slice_name(index)},
            "spec": desired.spec(index, generation=1),
        }
        for index in range(len(desired.contents))
    ]


def pool(
    devices: Sequence[dict[str, Any]], counter_sets: Sequence[dict[str, Any]] = ()
) -> DesiredPool:
    return build_slices(devices, driver="gpu.nvidia.com", node_name="n1", counter_sets=counter_sets)


@given(inventories, st.booleans())
def test_slices_of_any_machine_are_accepted_by_the_api(
    inventory: Inventory, with_counters: bool
) -> None:
    found = projection(inventory, with_counters=with_counters)
    for entry in slices(pool(found.devices, found.counter_sets)):
        check_slice(json.loads(json.dumps(entry)), None)


@given(inventories, st.booleans())
def test_every_gpu_is_published_or_withheld_with_a_reason(
    inventory: Inventory, with_counters: bool
) -> None:
    found = projection(inventory, with_counters=with_counters)
    published = {str(device["name"]).partition("-mig-")[0] for device in found.devices}
    counted = len(inventory.gpus) + len(inventory.sick)
    assert len(published) + len(found.withheld) == counted
    assert all(device["attributes"] for device in found.devices)


@given(inventories, st.booleans(), st.data())
def test_memory_is_consumed_by_all_devices_of_a_set_and_keeps_nothing_away(
    inventory: Inventory, everywhere: bool, data: st.DataObject
) -> None:
    found = projection(inventory, memory_counters=everywhere)
    assume(found.devices)
    sets: Any = found.counter_sets
    counted = {one["name"] for one in sets if "memory" in one["counters"]}
    for device, source in zip(found.devices, found.sources, strict=True):
        consumed: Any = device.get("consumesCounters", ())
        of_memory = {one["counterSet"] for one in consumed if "memory" in one["counters"]}
        has_some = memory_of(source.gpu, source.device) > 0
        assert of_memory == ({counter_set_name(source.gpu)} & counted if has_some else set())
        assert counter_set_name(source.gpu) in counted or not (everywhere and memory(source.gpu))
    all_counters, others = Scheduler(found), Scheduler(found, ignoring="memory")
    for number in data.draw(st.lists(st.integers(0, len(found.devices) - 1), max_size=40)):
        assert all_counters.take(number) == others.take(number)
    for entry in slices(pool(found.devices, found.counter_sets)):
        check_slice(json.loads(json.dumps(entry)), None)


def is_to_be_made(device: Device) -> bool:
    """Whether it is a MIG device that could be there."""
    return isinstance(device.base, Mig) and not device.exists


@given(inventories)
def test_the_least_capable_undivided_gpu_comes_first(inventory: Inventory) -> None:
    found = projection(inventory)
    whole = [source.gpu for source in found.sources if isinstance(source.device.base, Whole)]
    divided = {source.gpu.uuid for source in found.sources if is_to_be_made(source.device)}
    plain = [capability(gpu) for gpu in whole if gpu.uuid not in divided]
    assert plain == sorted(plain)


@given(inventories, st.lists(texts | small.map(str)))
def test_any_words_leave_every_gpu_published_or_excluded(
    inventory: Inventory, words: list[str]
) -> None:
    found = without_excluded(inventory, words)

    left = [one.index for one in found.excluded]
    there = [*(gpu.index for gpu in found.gpus), *(sick.index for sick in found.sick)]
    assert set(left) | set(there) == {
        *(gpu.index for gpu in inventory.gpus),
        *(sick.index for sick in inventory.sick),
    }
    assert {gpu.uuid for gpu in found.gpus}.isdisjoint({one.uuid for one in found.excluded})


@given(inventories)
def test_nothing_is_shared_without_counters(inventory: Inventory) -> None:
    found = projection(inventory, with_counters=False)
    assert found.counter_sets == ()
    whole = {str(device["name"]) for device in found.devices if "-mig-" not in str(device["name"])}
    parents = {str(device["name"]).partition("-mig-")[0] for device in found.devices}
    in_parts = {
        str(device["name"]).partition("-mig-")[0]
        for device in found.devices
        if "-mig-" in str(device["name"])
    }
    assert whole.isdisjoint(in_parts)
    assert whole | in_parts == parents
    assert not any("consumesCounters" in device for device in found.devices)


@given(inventories)
def test_mig_devices_of_claims_change_no_byte(inventory: Inventory) -> None:
    bare = tuple(_without_ours(gpu) for gpu in inventory.gpus)
    before = projection(replace(inventory, gpus=bare))
    now = projection(inventory)
    assert json.dumps((now.devices, now.counter_sets)) == json.dumps(
        (before.devices, before.counter_sets)
    )


@given(inventories)
def test_a_mode_that_was_turned_on_for_claims_changes_no_byte(inventory: Inventory) -> None:
    on, off = (tuple(_switched(gpu, mode) for gpu in inventory.gpus) for mode in _MODES)
    now, before = (projection(replace(inventory, gpus=each)) for each in (on, off))
    assert json.dumps((now.devices, now.counter_sets)) == json.dumps(
        (before.devices, before.counter_sets)
    )


_MODES = (MigMode.ENABLED, MigMode.DISABLED)


def _switched(gpu: Gpu, mode: MigMode) -> Gpu:
    """Return the GPU as claims switch it, if they could."""
    mig = gpu.mig
    off = replace(gpu, mig_mode=MigMode.DISABLED)
    if mig is None or not is_partitioned(off) or len(whole(mig.profiles)) + 1 > MOST_COUNTERS:
        return gpu
    is_on = mode is MigMode.ENABLED
    return replace(gpu, mig_mode=mode, mig=replace(mig, instances=(), turned_on_here=is_on))


@given(inventories, st.data())
def test_a_refused_switch_takes_partitions_of_that_gpu_away_and_nothing_else(
    inventory: Inventory, data: st.DataObject
) -> None:
    assume(len({gpu.minor for gpu in inventory.gpus}) == len(inventory.gpus))
    refusing = data.draw(st.sets(st.sampled_from(inventory.gpus))) if inventory.gpus else set()
    refused = {gpu.uuid: Refusal(reason="held") for gpu in refusing}
    before, now = projection(inventory), projection(inventory, refused=refused)
    kept = [
        device
        for device, source in zip(before.devices, before.sources, strict=True)
        if source.gpu.uuid not in refused
        or source.gpu.mig_mode is MigMode.ENABLED
        or not is_to_be_made(source.device)
    ]
    assert sorted(map(json.dumps, now.devices)) == sorted(map(json.dumps, kept))
    assert [one for one in now.counter_sets if one not in before.counter_sets] == []


def _without_ours(gpu: Gpu) -> Gpu:
    """Return the GPU as before claims had anything made on it, if they could."""
    mig = gpu.mig
    if mig is None or not is_partitioned(gpu) or len(whole(mig.profiles)) + 1 > MOST_COUNTERS:
        return gpu
    others = tuple(instance for instance in mig.instances if not instance.made_here)
    return replace(gpu, mig=replace(mig, instances=others))


@given(inventories)
def test_the_order_in_which_gpus_were_found_does_not_matter_to_the_bytes(
    inventory: Inventory,
) -> None:
    keys = {(gpu.pci_address, gpu.index) for gpu in inventory.gpus}
    if len(keys) == len(inventory.gpus):
        turned = Inventory(
            driver_version=inventory.driver_version,
            cuda_version=inventory.cuda_version,
            gpus=inventory.gpus[::-1],
            sick=inventory.sick,
        )
        assert json.dumps(projection(turned).devices) == json.dumps(projection(inventory).devices)


def apply(writes: Sequence[Write], existing: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Do to a list of slices what an API server does."""
    stored = {entry["metadata"]["name"]: entry for entry in copy.deepcopy(list(existing))}
    for number, write in enumerate(writes):
        match write:
            case Delete():
                del stored[write.name]
            case Create():
                assert write.name not in stored
                stored[write.name] = json.loads(json.dumps(write.body))
                stored[write.name]["metadata"] |= {"uid": f"u{number}", "resourceVersion": "1"}
            case Update():
                assert write.name in stored
                stored[write.name] = json.loads(json.dumps(write.body))
    return list(stored.values())


def is_complete(existing: Sequence[dict[str, Any]]) -> bool:
    """Tell whether the scheduler would use the pool."""
    pools = [entry["spec"]["pool"] for entry in existing]
    newest = max((entry["generation"] for entry in pools), default=0)
    current = [entry for entry in pools if entry["generation"] == newest]
    return bool(current) and all(len(current) == entry["resourceSliceCount"] for entry in current)


@given(device_lists, device_lists)
def test_a_plan_reaches_the_desired_slices_and_is_then_empty(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    start = apply(writes_for(pool(before), [], owner=OWNER), [])
    end = apply(writes_for(pool(after), start, owner=OWNER), start)
    assert writes_for(pool(after), end, owner=OWNER) == ()
    assert is_complete(end)
    ordered = sorted(end, key=lambda entry: str(entry["metadata"]["name"]))
    assert [device for entry in ordered for device in entry["spec"]["devices"]] == after


@given(device_lists, device_lists, st.data())
def test_it_converges_after_interrupted_plans_and_losses(
    before: list[dict[str, Any]], after: list[dict[str, Any]], data: st.DataObject
) -> None:
    start = apply(writes_for(pool(before), [], owner=OWNER), [])
    writes = writes_for(pool(after), start, owner=OWNER)
    part = apply(writes[: data.draw(st.integers(0, len(writes)))], start)
    kept = [entry for entry in part if data.draw(st.booleans())]
    for wanted in (after, before):
        end = apply(writes_for(pool(wanted), kept, owner=OWNER), kept)
        assert writes_for(pool(wanted), end, owner=OWNER) == ()
        assert is_complete(end)


@given(device_lists, device_lists)
def test_no_half_done_plan_looks_complete_with_a_mixture_of_old_and_new(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    start = apply(writes_for(pool(before), [], owner=OWNER), [])
    writes = writes_for(pool(after), start, owner=OWNER)
    for count in range(1, len(writes)):
        part = apply(writes[:count], start)
        newest = max((entry["spec"]["pool"]["generation"] for entry in part), default=0)
        seen = [
            device["name"]
            for entry in part
            if entry["spec"]["pool"]["generation"] == newest
            for device in entry["spec"]["devices"]
        ]
        names = [{device["name"] for device in wanted} for wanted in (before, after)]
        assert not is_complete(part) or set(seen) in names
