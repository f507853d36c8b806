"""Claims on MIG devices that others made, removed or replaced, and one that two claims have."""

import pytest
from msgspec.structs import replace

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import MigStep
from dra_driver.devices.device import Mig
from dra_driver.devices.model import MigUuid
from dra_driver.errors import DeviceError
from worlds.configs import MPS_ON_MIG
from worlds.node import Node


def test_a_mig_device_that_others_made_is_used_and_left(node: Node) -> None:
    uuid = node.uuid(0)
    node.machine.set_mig_mode(uuid, enabled=True)
    static = node.machine.create_mig(uuid, "2g.20gb", 2)
    node.look()
    ref = node.claim(node.name("2g.20gb", 2))
    node.driver.prepare(ref)
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.devices[0].device.uuid == static
    assert record.steps == ()
    node.driver.unprepare(ref)
    assert (node.mig_shapes(), node.mig_modes()) == ({0: ["2g.20gb@2"]}, {0: 1})


def test_a_bare_gpu_instance_of_others_is_not_completed(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    node.look()
    (device,) = node.gpu().mig.instances  # type: ignore[union-attr]
    with node.session.mig() as calls:
        calls.destroy_compute_instance(device.parent, device.gpu_instance, device.compute_instance)
    with pytest.raises(DeviceError, match="it is not a whole MIG device"):
        node.driver.prepare(node.claim(node.name("1g.10gb", 0)))


def test_a_removed_static_mig_device_fails_the_next_prepare(node: Node) -> None:
    uuid = node.uuid(0)
    node.machine.set_mig_mode(uuid, enabled=True)
    static = node.machine.create_mig(uuid, "1g.10gb", 0)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    node.machine.destroy_mig(static)
    node.driver.specs.delete(ref.uid)
    with pytest.raises(DeviceError, match=f"{static}.* was removed by others"):
        node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.driver.left() == []


def had_another(node: Node, ref: ClaimRef) -> None:
    """Let the record of a claim with one MIG device name another one, which was there before."""
    records = node.driver.claims.ledger
    record = records.read(ref.uid)
    assert record is not None
    (entry,) = record.devices
    base = entry.device.base
    assert isinstance(base, Mig)
    assert base.instance is not None
    ids = replace(base.instance, uuid=MigUuid("MIG-former"))
    former = replace(entry, device=replace(entry.device, base=replace(base, instance=ids)))
    records.write(replace(record, devices=(former,)))


def test_a_replaced_static_mig_device_fails_the_next_prepare(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    static = node.machine.create_mig(node.uuid(0), "1g.10gb", 0)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(ref)
    had_another(node, ref)
    node.driver.specs.delete(ref.uid)
    with pytest.raises(DeviceError, match=f"on the node: it was MIG-former and is {static} now"):
        node.driver.prepare(ref)


def test_a_mig_device_made_here_may_be_replaced_unless_it_is_shared(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    answer = node.driver.prepare(ref)
    had_another(node, ref)
    assert node.driver.prepare(ref) == answer
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.devices[0].device.uuid == node.migs()[0].uuid
    shared = node.claim(node.name("1g.10gb", 1), name="shared", configs=[MPS_ON_MIG])
    node.driver.prepare(shared)
    had_another(node, shared)
    node.driver.specs.delete(shared.uid)
    with pytest.raises(DeviceError, match="on the node: it was MIG-former"):
        node.driver.prepare(shared)


def test_a_mig_device_that_two_claims_have_goes_with_the_last_of_them(node: Node) -> None:
    """As NVIDIA's driver gives a MIG device to several claims, which then are taken over."""
    first = node.claim(node.name("1g.10gb", 0))
    node.driver.prepare(first)
    ledger = node.driver.claims.ledger
    record = ledger.read(first.uid)
    assert record is not None
    last = replace(first, uid=ClaimUid("last"), name="last")
    steps = [replace(step, claim=last.uid) for step in record.steps if isinstance(step, MigStep)]
    ledger.write(replace(record, ref=last, steps=tuple(steps)))
    node.driver.unprepare(first)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}
    assert list(ledger.made().values()) == [{last.uid}]
    node.driver.unprepare(last)
    assert node.left() == []
