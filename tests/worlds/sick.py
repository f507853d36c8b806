"""Machines on which a driver's own process meets GPUs that become sick."""

from testbed.kubelet import KubeletClient

from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds.process import SLICES, ProcessNode, eventually


def machine_of(node: ProcessNode, profile: str) -> Machine:
    """Make the node's machine, with a GPU driver that does not say what a sick GPU needs."""
    changed = profiles.changed(profiles.load(profile), {"driver_version": "535.1.1"})
    machine = Machine.create(node.place.driver_root, changed, Options(userspace="stand-in"))
    node.driver.env |= {"SYS_ROOT": str(machine.sys_root), "PROC_ROOT": str(machine.proc_root)}
    return machine


def wait_until_heard(node: ProcessNode, gpus: int) -> None:
    """Wait until events of so many GPUs are heard: first they are of those described first."""
    node.driver.wait_log("gpu events received", gpus=gpus)


def start(node: ProcessNode, kubelet: KubeletClient, gpus: int = 4) -> None:
    """Start the node's driver, and have a kubelet register it once events are heard."""
    node.driver.start()
    node.driver.wait_log("driver started")
    eventually(lambda: node.api.objects(SLICES), "slices")
    wait_until_heard(node, gpus)
    kubelet.register(driver=node.driver)


def prepared(node: ProcessNode, kubelet: KubeletClient, **devices: str) -> None:
    """Have a device prepared for each claim, by the claim's name."""
    for name, device in devices.items():
        assert kubelet.prepare(node.allocate(name, device))[f"uid-{name}"].error == ""


def looked(machine: Machine, looks: int) -> None:
    """Wait until a driver has looked so often at all GPUs, from begin to end, after this call.

    Each look counts the GPUs once, and so meets a fault that does nothing.
    """
    count = "nvmlDeviceGetCount_v2"
    machine.slow_call(count, 1, times=looks + 1)
    eventually(lambda: count not in {one.function for one in machine.faults()}, "looks")


def uuid_of(machine: Machine, minor: int) -> str:
    """The UUID of one of a machine's GPUs."""
    return next(gpu.uuid for gpu in machine.gpus if gpu.minor == minor)
