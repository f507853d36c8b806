"""A card that does not change its MIG mode, as another process has it open; on simulated GPUs."""

import re

import pynvml
import pytest
from testbed.holder import holding

from dra_driver.errors import DeviceError, TransientError
from dra_driver.slices.project import projection
from worlds.node import Node

SOON = 0.3


def test_a_refused_switch_names_who_has_the_gpu_open(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    with holding(node.machine.driver_root, 0) as pid:
        with pytest.raises(TransientError) as refused:
            node.driver.prepare(ref, seconds=SOON)
        assert re.sub("waited [0-9]+ s", "waited 0 s", str(refused.value)) == (
            f"{node.uuid(0)} (/dev/nvidia0) cannot be switched to MIG mode while others have it"
            f" open: dcgm-exporter (PID {pid}); end these processes, or have no MIG devices made on"
            " this node (--mig existing); waited 0 s; the kubelet tries again"
        )
    assert node.left() == []
    node.driver.prepare(ref)
    assert node.mig_shapes() == {0: ["1g.10gb@0"]}


def test_a_refused_switch_off_names_them_too(node: Node) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.look()
    ref = node.claim("gpu-0")
    with holding(node.machine.driver_root, 0) as pid:
        with pytest.raises(TransientError) as refused:
            node.driver.prepare(ref, seconds=SOON)
        assert str(refused.value).startswith(
            f"MIG mode of {node.uuid(0)} (/dev/nvidia0) cannot be turned off while others have it"
            f" open: dcgm-exporter (PID {pid}); end these processes; waited"
        )


def test_holders_of_another_gpu_block_nobody(node: Node) -> None:
    with holding(node.machine.driver_root, 0, 2):
        node.driver.prepare(node.claim(node.name("1g.10gb", 0, minor=1)))
    assert node.mig_shapes() == {1: ["1g.10gb@0"]}


def test_refusals_keep_what_claims_wait_for_until_they_stop(node: Node) -> None:
    ref = node.claim(node.name("1g.10gb", 0))
    with holding(node.machine.driver_root, 0):
        with pytest.raises(TransientError):
            node.driver.prepare(ref, seconds=SOON)
        (refusal,) = node.driver.refusals.current().values()
        assert [slot.start for slot in refusal.waiting] == [0]
        node.driver.unprepare(ref)
        (refusal,) = node.driver.refusals.current().values()
        assert refusal.waiting == frozenset()
    node.driver.prepare(node.claim(node.name("1g.10gb", 1), name="next"))
    assert node.driver.refusals.current() == {}


def test_a_mode_turned_on_for_claims_is_known_from_one_turned_on_by_others(node: Node) -> None:
    node.driver.prepare(node.claim(node.name("1g.10gb", 0)))
    node.machine.set_mig_mode(node.uuid(1), enabled=True)
    node.look()
    assert [gpu.minor for gpu in node.inventory.gpus if gpu.was_put_in_mig_mode] == [1]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_gpu_on_which_nobody_may_make_mig_devices_is_not_offered_for_them(
    node: Node, code: int
) -> None:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    node.look()
    ref = node.claim(node.name("1g.10gb", 0))
    node.machine.fail_call("nvmlDeviceCreateGpuInstanceWithPlacement", code)
    with pytest.raises(DeviceError, match="delete the pod so that it is scheduled elsewhere"):
        node.driver.prepare(ref, seconds=SOON)
    (refusal,) = node.driver.refusals.current().values()
    assert not refusal.is_of_mode
    published = projection(node.inventory, refused=node.driver.refusals.current())
    places = [
        str(device["name"]) for device in published.devices if "gpu-0-mig" in str(device["name"])
    ]
    assert places == [node.name("1g.10gb", 0)], "what the claim has stays, and nothing else"
    node.driver.unprepare(ref)
    node.machine.clear_faults()
    node.driver.prepare(node.claim(node.name("1g.10gb", 1), name="next"))
    assert node.driver.refusals.current() == {}
