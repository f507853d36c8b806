"""The whole driver as a process, where an admin changes the MIG modes of GPUs: `--mig auto`."""

from contextlib import suppress

from testbed.apiserver.server import ApiServer
from testbed.kubelet import KubeletClient

from dra_driver.errors import SetupError
from dra_driver.simulator.machine import Machine
from worlds.process import SLICES, ProcessNode, eventually, process_node

PART = "gpu-1-mig-3g40gb-9-4"
FREE = "gpu-1-mig-3g40gb-9-0"

node = process_node()


def named(node: ProcessNode, prefix: str = "") -> list[str]:
    """The devices that are published."""
    return [
        device["name"]
        for one in node.api.objects(SLICES)
        for device in one["spec"].get("devices", ())
        if device["name"].startswith(prefix)
    ]


def switched(machine: Machine, minor: int, *, on: bool) -> None:
    """Turn a GPU's MIG mode on or off as an admin does, who tries again while it is in use."""

    def is_switched() -> bool:
        with suppress(SetupError):
            machine.set_mig_mode(machine.gpus[minor].uuid, enabled=on)
        return machine.status()[minor].mig_mode == on

    eventually(is_switched, "the driver to let go of the GPU")


def modes(machine: Machine) -> list[int]:
    return [number for number, one in enumerate(machine.status()) if one.mig_mode]


def test_a_mode_that_an_admin_changes_changes_the_offer_and_none_is_switched(
    node: ProcessNode,
) -> None:
    machine = node.install_gpus("h100x8")
    switched(machine, 1, on=True)
    node.driver.start()
    eventually(lambda: len(named(node)) == 7 + 25, "whole GPUs beside partitions")
    assert len(named(node, "gpu-1-mig-")) == 25
    late = node.allocate("late", PART)
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        part = node.allocate("part", FREE)
        assert kubelet.prepare(part)["uid-part"].error == ""
        assert kubelet.prepare(node.allocate("whole", "gpu-0"))["uid-whole"].error == ""
        assert modes(machine) == [1]
        assert kubelet.unprepare(part)["uid-part"].error == ""
        assert modes(machine) == [1], "it was the admin who turned it on"
        switched(machine, 1, on=False)
        eventually(lambda: named(node) == [f"gpu-{minor}" for minor in range(8)], "whole GPUs")
        error = kubelet.prepare(late)["uid-late"].error
        assert "is not in MIG mode, so no MIG device can be made on it" in error
        assert modes(machine) == []
        switched(machine, 2, on=True)
        eventually(lambda: len(named(node)) == 7 + 25, "partitions of the other GPU")
        error = kubelet.prepare(node.allocate("other", "gpu-2"))["uid-other"].error
        assert "is in MIG mode and cannot be used as a whole" in error
        assert modes(machine) == [2]


def test_what_claims_have_stays_published_while_modes_change(node: ProcessNode) -> None:
    machine = node.install_gpus("h100x8")
    node.driver.start()
    eventually(lambda: len(named(node)) == 8, "whole GPUs")
    whole = node.allocate("whole", "gpu-0")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(whole)["uid-whole"].error == ""
        switched(machine, 0, on=True)
        switched(machine, 1, on=True)
        eventually(lambda: len(named(node, "gpu-1-mig-")) == 25, "partitions of the free GPU")
        assert named(node, "gpu-0") == ["gpu-0"]
        assert kubelet.unprepare(whole)["uid-whole"].error == ""
        eventually(lambda: len(named(node, "gpu-0-mig-")) == 25, "partitions of the other")
        assert modes(machine) == [0, 1]


def test_what_was_made_on_demand_is_given_back_under_auto(node: ProcessNode) -> None:
    machine = node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    eventually(lambda: len(named(node)) == 8 + 8 * 25, "everything")
    part = node.allocate("part", PART)
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(part)["uid-part"].error == ""
    assert modes(machine) == [1]
    node.driver.kill()
    node.driver.env["MIG"] = "auto"
    node.driver.start()
    eventually(lambda: len(named(node)) == 8, "seven whole GPUs and the claim's device")
    assert named(node, "gpu-1") == [PART]
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(part)["uid-part"].error == ""
        assert kubelet.unprepare(part)["uid-part"].error == ""
    eventually(lambda: named(node, "gpu-1") == ["gpu-1"], "the whole GPU")
    assert modes(machine) == []


def test_before_1_37_a_gpu_in_mig_mode_is_withheld_with_the_ways_out(
    node: ProcessNode, api: ApiServer
) -> None:
    api.kubernetes = "1.36"
    machine = node.install_gpus("h100x8")
    switched(machine, 1, on=True)
    node.driver.start()
    eventually(lambda: len(named(node)) == 7, "the other GPUs")
    assert not any("sharedCounters" in one["spec"] for one in api.objects(SLICES))
    reason = node.driver.wait_log("gpu withheld")["reason"]
    for way in ("nvidia-smi mig", "mig-parted", "-mig 0", "--mig on-demand"):
        assert way in reason
