"""The whole driver as a process, as it tells a kubelet how the devices of claims are doing."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.cli import main
from dra_driver.simulator.health_cli import Health, report
from dra_driver.simulator.machine import Machine
from sampling import EVERYTHING
from worlds import sick
from worlds.process import ProcessNode, eventually, process_node
from worlds.sick import KNOWS_NO_RECOVERY, looked, machine_of, prepared, uuid_of

UNKNOWN, HEALTHY, UNHEALTHY = range(3)

node = process_node()


class Told:
    """What a kubelet has been told last, by device; it keeps to one stream."""

    def __init__(self, kubelet: KubeletClient, version: str = "v1") -> None:
        self.health: dict[str, int] = {}
        self.messages: dict[str, str] = {}
        self.sent = 0
        self.ever: set[int] = set()
        self._stream = kubelet.watch_health(version)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(grpc.RpcError):
            for message in self._stream:
                self._take(message)

    def _take(self, message: Any) -> None:
        self.messages = {device.device.device_name: device.message for device in message.devices}
        self.health = {device.device.device_name: device.health for device in message.devices}
        self.ever |= {*self.health.values()}
        self.sent += 1

    def wait(self, wanted: dict[str, int]) -> None:
        eventually(lambda: self.health == wanted, f"{wanted}")


def start(node: ProcessNode, kubelet: KubeletClient, gpus: int = 4) -> Told:
    sick.start(node, kubelet, gpus)
    return Told(kubelet)


def test_what_claims_have_is_told_from_prepare_to_unprepare_and_each_change_at_once(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        told = start(node, kubelet)
        eventually(lambda: told.sent, "a first message")
        assert told.health == {}
        prepared(node, kubelet, one="gpu-1", two="gpu-2")
        told.wait({"gpu-1": HEALTHY, "gpu-2": HEALTHY})
        machine.emit_xid(uuid_of(machine, 2), 31)
        machine.emit_xid(uuid_of(machine, 3), 79)
        machine.emit_xid(uuid_of(machine, 2), 79)
        told.wait({"gpu-1": HEALTHY, "gpu-2": UNHEALTHY})
        assert told.messages == {
            "gpu-1": "",
            "gpu-2": "XID 79: the GPU has fallen off the bus; remedy: a reboot of the node",
        }
        machine.lose_gpu(uuid_of(machine, 2))
        eventually(lambda: "out of reach" in told.messages["gpu-2"], "the loss")
        machine.restore_gpu(uuid_of(machine, 2))
        told.wait({"gpu-1": HEALTHY, "gpu-2": HEALTHY})
        two = ClaimName(namespace="default", name="two", uid="uid-two")
        assert kubelet.unprepare(two)["uid-two"].error == ""
        told.wait({"gpu-1": HEALTHY})


def test_a_successor_tells_what_was_wrong_before_it_and_a_restarted_kubelet_hears_it(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        told = start(node, kubelet)
        prepared(node, kubelet, one="gpu-1", two="gpu-2")
        machine.emit_xid(uuid_of(machine, 2), 62)
        told.wait({"gpu-1": HEALTHY, "gpu-2": UNHEALTHY})
    node.driver.kill()
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet).wait({"gpu-1": HEALTHY, "gpu-2": UNHEALTHY})
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        Told(kubelet, "v1alpha1").wait({"gpu-1": HEALTHY, "gpu-2": UNHEALTHY})


def events(node: ProcessNode, claim: str) -> list[tuple[str, str]]:
    """The Events on a claim: reasons and notes."""
    return [
        (event["reason"], event["note"])
        for event in node.api.objects("events")
        if event["regarding"]["name"] == claim
    ]


def states(node: ProcessNode, machine: Machine, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The claims of devices that `dra-driver status` calls gone."""
    plugins = ["--kubelet-plugins-directory-path", str(node.place.plugins)]
    capsys.readouterr()
    assert main(["status", *plugins, "--proc-root", str(machine.proc_root)]) == 0
    rows = capsys.readouterr().out.splitlines()
    return {row.split()[0] for row in rows if row.endswith("device is gone")}


def test_a_mig_device_that_is_gone_and_a_gpu_that_is(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = machine_of(node, "h100x8", KNOWS_NO_RECOVERY)
    gpu = uuid_of(machine, 0)
    machine.set_mig_mode(gpu, enabled=True)
    mine = machine.create_mig(gpu, "2g.20gb", 0)
    machine.create_mig(gpu, "1g.10gb", 4)
    with KubeletClient(node.place.registry) as kubelet:
        told = start(node, kubelet, gpus=8)
        names = {"mine": "gpu-0-mig-2g20gb-14-0", "other": "gpu-0-mig-1g10gb-19-4"}
        prepared(node, kubelet, whole="gpu-3", **names)
        well = dict.fromkeys((*names.values(), "gpu-3"), HEALTHY)
        told.wait(well)
        assert states(node, machine, capsys) == set()
        machine.destroy_mig(mine)
        told.wait(well | {names["mine"]: UNHEALTHY})
        assert told.messages[names["mine"]].startswith(
            f"{mine} (2g.20gb of {gpu}) no longer exists"
        )
        assert states(node, machine, capsys) == {"default/mine"}
        eventually(lambda: events(node, "mine"), "an event")
        looked(machine, 2)
        ((reason, note),) = events(node, "mine")
        assert reason == "DeviceGone"
        assert note.startswith(f"{names['mine']}: {mine} (2g.20gb of {gpu}) no longer exists")
        assert "delete the pods" in note
        machine.remove_gpu(uuid_of(machine, 3))
        told.wait(well | {names["mine"]: UNHEALTHY, "gpu-3": UNHEALTHY})
        # A look that it went away under has still counted it.
        words = ("no longer found on this node", "out of reach")
        assert any(word in told.messages["gpu-3"] for word in words)
        assert states(node, machine, capsys) == {"default/mine", "default/whole"}
        eventually(lambda: events(node, "whole"), "an event")
        assert events(node, "other") == []


def test_shares_of_one_gpu_and_no_other(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4")
    config = node.root / "shares.yaml"
    config.write_text(
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    )
    node.driver.env["SHARE_CONFIG"] = str(config)
    with KubeletClient(node.place.registry) as kubelet:
        told = start(node, kubelet)
        names = [f"gpu-2-share-{index}-of-2" for index in range(2)]
        node.wait_device(names[0])
        prepared(node, kubelet, a=names[0], b=names[1], c="gpu-1-share-0-of-2")
        report(machine, uuid_of(machine, 2), Health(gpu="2", recovery_action="gpu-reset"))
        told.wait({**dict.fromkeys(names, UNHEALTHY), "gpu-1-share-0-of-2": HEALTHY})
        assert "wants the GPU to be reset" in told.messages[names[0]]
        report(machine, uuid_of(machine, 2), Health(gpu="2", recovery_action="none"))
        told.wait({**dict.fromkeys(names, HEALTHY), "gpu-1-share-0-of-2": HEALTHY})


PLACE = "gpu-0-mig-1g10gb-19-4"


def with_mig(node: ProcessNode, kubelet: KubeletClient) -> tuple[Machine, Told]:
    """Start on a GPU in MIG mode whose MIG devices are made for claims."""
    machine = machine_of(node, "h100x8", KNOWS_NO_RECOVERY)
    machine.set_mig_mode(uuid_of(machine, 0), enabled=True)
    node.driver.env["MIG"] = "on-demand"
    return machine, start(node, kubelet, gpus=8)


def cycle(node: ProcessNode, kubelet: KubeletClient, name: str) -> Iterator[None]:
    """Prepare a claim on the one place, and unprepare it at the next step."""
    claim = ClaimName(namespace="default", name=name, uid=f"uid-{name}")
    if claim.uid not in {one["metadata"]["uid"] for one in node.api.objects("resourceclaims")}:
        node.allocate(name, PLACE)
    kubelet.must_prepare(claim)
    yield
    kubelet.must_unprepare(claim)
    yield


@pytest.mark.parametrize("seed", range(2 if EVERYTHING else 1))
def test_mig_devices_that_claims_come_and_go_with_are_well_and_no_loss(
    node: ProcessNode, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 (cases, no secrets)
    with KubeletClient(node.place.registry) as kubelet:
        machine, told = with_mig(node, kubelet)
        for _ in range(12 if EVERYTHING else 8):
            for _ in cycle(node, kubelet, dice.choice("abc")):
                time.sleep(dice.choice((0, 0.3, 1.2)))  # a look is every half second
        prepared(node, kubelet, last=PLACE)
        told.wait({PLACE: HEALTHY})
        looked(machine, 3)
        assert told.ever == {HEALTHY}, told.messages
        assert node.driver.events("mig device of a claim is gone") == []


def test_a_lost_mig_device_is_told_of_its_own_claim_and_not_of_the_next_one_there(
    node: ProcessNode,
) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        machine, told = with_mig(node, kubelet)
        for name in ("one", "two"):
            steps = cycle(node, kubelet, name)
            next(steps)
            told.wait({PLACE: HEALTHY})
            assert told.ever == {HEALTHY}, told.messages
            looked(machine, 2)
            (lost,) = machine.mig_devices(uuid_of(machine, 0))
            machine.destroy_mig(lost.uuid)
            told.wait({PLACE: UNHEALTHY})
            next(steps)
            told.wait({})
            told.ever.clear()
        assert len(node.driver.events("mig device of a claim is gone")) == 2
