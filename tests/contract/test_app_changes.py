"""The whole driver as a process, where something changes beside it: GPUs, labels, configs, drivers.

What each part does then is tested with the part; here, that the driver has put the parts together.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from testbed.holder import holding
from testbed.kubelet import ClaimName, KubeletClient

import make
from dra_driver.admin.stored import stored_records
from dra_driver.cli import main
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds import mps
from worlds.configs import HALF, LONG, PATIENCE
from worlds.kubelet_pods import serving_pods
from worlds.nvidia import checkpoint
from worlds.nvidia_files import SEED, Left
from worlds.process import (
    SLICES,
    ProcessNode,
    TakeOverProcess,
    being_prepared,
    eventually,
    process_node,
    supervised,
)
from worlds.sick import looked, machine_of, prepared, start, uuid_of

XID = ["gpu.nvidia.com/xid"]
QUIET_SECONDS = 3.0
"""Longer than a driver takes to put back what another one has changed."""

node = process_node()


def named(node: ProcessNode, prefix: str = "") -> set[str]:
    """The devices that are published."""
    return {
        device["name"]
        for one in node.api.objects(SLICES)
        for device in one["spec"].get("devices", ())
        if device["name"].startswith(prefix)
    }


def wait_named(node: ProcessNode, *names: str) -> None:
    eventually(lambda: named(node) == set(names), f"{names} to be published")


# The health of GPUs


def conditions(node: ProcessNode, name: str) -> dict[str, dict[str, Any]]:
    """The conditions of the one device of a claim, by type."""
    for claim in node.api.objects("resourceclaims"):
        if claim["metadata"]["name"] == name:
            for device in claim["status"].get("devices", ()):
                return {condition["type"]: condition for condition in device["conditions"]}
    return {}


def healthy(node: ProcessNode, name: str) -> str:
    return str(conditions(node, name).get("Healthy", {}).get("status"))


def test_a_sick_gpu_is_tainted_and_reported_until_it_recovers(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4")
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1", two="gpu-2")
        eventually(lambda: conditions(node, "one") and conditions(node, "two"), "conditions")
        well = conditions(node, "two")
        before = len(node.api.seen("patch", "resourceclaims"))
        was = str(well["Healthy"]["lastTransitionTime"])
        eventually(lambda: f"{datetime.now(tz=UTC):%FT%TZ}" > was, "another second")
        machine.emit_xid(uuid_of(machine, 2), 79)
        eventually(lambda: healthy(node, "two") == "False", "sick")
        found = conditions(node, "two")
        assert found["Ready"] == well["Ready"]
        assert found["Healthy"]["reason"] == "Xid79"
        assert found["Healthy"]["lastTransitionTime"] > was
        assert healthy(node, "one") == "True"
        assert len(node.api.seen("patch", "resourceclaims")) == before + 1
        eventually(lambda: node.taints() == {"gpu-2": XID}, "its taint")
        eventually(lambda: node.api.objects("events"), "an event")

        machine.lose_gpu(uuid_of(machine, 2))
        eventually(lambda: "out of reach" in conditions(node, "two")["Healthy"]["message"], "loss")
        assert "is lost" in kubelet.prepare(node.allocate("ill", "gpu-2"))["uid-ill"].error
        machine.restore_gpu(uuid_of(machine, 2))
        eventually(lambda: healthy(node, "two") == "True", "it to be well")
        eventually(lambda: node.taints() == {}, "the taint to be lifted")


def test_taints_have_the_configured_effects(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4")
    node.driver.env |= {
        "TAINT_WARNING": "None",
        "TAINT_FAULT": "NoExecute",
        "TAINT_LOSS": "off",
        "ADDITIONAL_XIDS_TO_IGNORE": "119",
    }
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
    for minor, xid in ((0, 92), (1, 62), (2, 79), (3, 119)):
        machine.emit_xid(uuid_of(machine, minor), xid)
    eventually(lambda: node.taints() == {"gpu-0": XID, "gpu-1": XID}, "taints")
    effects = {
        device["name"]: device["taints"][0]["effect"]
        for one in node.api.objects(SLICES)
        for device in one["spec"]["devices"]
        if device.get("taints")
    }
    assert effects == {"gpu-0": "None", "gpu-1": "NoExecute"}


def test_a_killed_driver_forgets_nothing_and_reports_again(node: ProcessNode) -> None:
    machine = machine_of(node, "h100x8")
    gpu = uuid_of(machine, 0)
    machine.set_mig_mode(gpu, enabled=True)
    mine = machine.create_mig(gpu, "2g.20gb", 0)
    name = "gpu-0-mig-2g20gb-14-0"
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet, gpus=8)
        prepared(node, kubelet, mine=name, whole="gpu-3", well="gpu-4")
        machine.emit_xid(uuid_of(machine, 3), 62)
        eventually(lambda: node.taints() == {"gpu-3": XID}, "its taint")
        eventually(lambda: healthy(node, "whole") == "False", "its condition")
    node.driver.kill()
    machine.destroy_mig(mine)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet, gpus=8)
        stream = kubelet.watch_health("v1")
        told = next(stream).devices
        assert {one.device.device_name: one.health for one in told} == {
            name: 2,
            "gpu-3": 2,
            "gpu-4": 1,
        }
        eventually(lambda: healthy(node, "mine") == "False", "the loss")
        assert node.taints()["gpu-3"] == XID


# What is offered


def inspected(node: ProcessNode, capsys: pytest.CaptureFixture[str]) -> str:
    """What `dra-driver inspect` says on the node."""
    root = node.place.driver_root
    flags = {
        "nvidia-driver-root": root,
        "container-driver-root": root,
        "sys-root": root / "sys",
        "proc-root": root / "proc",
        "kubelet-plugins-directory-path": node.place.plugins,
        "mig": "on-demand",
    }
    assert main(["inspect", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    return capsys.readouterr().out


def test_partitions_of_a_gpu_that_others_have_open_are_withdrawn_until_a_restart(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    eventually(lambda: len(named(node, "gpu-0-mig-")) == 25, "all partitions")
    part = "gpu-0-mig-1g10gb-19-6"
    with KubeletClient(node.place.registry) as kubelet, holding(node.place.driver_root, 0):
        kubelet.register()
        assert kubelet.prepare(node.allocate("held", part), timeout=9)["uid-held"].error
        eventually(lambda: named(node, "gpu-0-mig-") == {part}, "the others to be withdrawn")
        assert "GPU 0: no MIG devices are offered on it for now" in inspected(node, capsys)
        node.driver.kill()
        node.driver.start()
        eventually(lambda: len(named(node, "gpu-0-mig-")) == 25, "all partitions to be back")
        assert "for now" not in inspected(node, capsys)


def test_a_claim_keeps_a_gpu_that_the_setting_leaves_out_and_no_other_gets_it(
    node: ProcessNode,
) -> None:
    node.install_gpus("t4x4")
    node.driver.start()
    node.wait_devices(4)
    first, late = node.allocate("first", "gpu-2"), node.allocate("late", "gpu-2")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        (device,) = kubelet.prepare(first)["uid-first"].devices
    node.driver.kill()
    node.driver.env["EXCLUDE_GPUS"] = "2"
    node.driver.start()
    wait_named(node, "gpu-0", "gpu-1", "gpu-3")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert list(kubelet.prepare(first)["uid-first"].devices) == [device]
        refused = 'device "gpu-2" is no longer offered: it is left out by "2" of --exclude-gpus'
        assert refused in kubelet.prepare(late)["uid-late"].error
        assert kubelet.unprepare(first)["uid-first"].error == ""


# Other drivers


def registered(node: ProcessNode, pod: str) -> None:
    with KubeletClient(node.place.registry, pattern=f"*-{pod}-reg.sock") as kubelet:
        kubelet.register()


def writes(node: ProcessNode) -> int:
    return sum(len(node.api.seen(verb, SLICES)) for verb in ("create", "update", "delete"))


def is_quiet(node: ProcessNode) -> bool:
    """Whether nobody writes slices for some seconds."""
    before = writes(node)
    time.sleep(QUIET_SECONDS)
    return writes(node) == before


def test_only_the_last_registered_of_two_drivers_publishes(node: ProcessNode) -> None:
    node.install_gpus("t4x4")
    old = node.driver
    old.env["POD_UID"] = "old"
    new = node.make_driver(**(old.env | {"POD_UID": "new", "EXCLUDE_GPUS": "0"}))
    old.start()
    registered(node, "old")
    node.wait_devices(4)
    new.start()
    new.wait_log("publishing failed")
    assert is_quiet(node)
    assert len(node.devices()) == 4  # it never becomes ready: the old one goes on

    registered(node, "new")
    node.wait_devices(3)
    assert is_quiet(node)
    assert len(node.devices()) == 3

    new.kill()
    node.wait_devices(4)  # the kubelet calls the old one again
    said = " ".join(str(event["error"]) for event in old.events("publishing failed"))
    assert "the driver that the kubelet registered last publishes" in said


def test_a_node_is_not_taken_over_while_nvidias_driver_runs(node: ProcessNode) -> None:
    """Its init container waits, then fails; a driver that starts all the same publishes nothing."""
    node.install_gpus("t4x4")
    node.place.data.mkdir(parents=True)
    file = node.place.data / "checkpoint.json"
    file.write_bytes(checkpoint({}))
    theirs = node.place.data / "dra.sock"
    node.driver.env["POD_UID"] = "ours"
    init = TakeOverProcess(node.driver)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(theirs))
        listening.listen()
        assert init.run("--wait=0") == 1
        reason = f"NVIDIA's DRA driver runs on this node, and listens on {theirs}"
        assert f"error: {reason}: remove NVIDIA's DRA driver from this node" in init.tail()
        node.driver.start()
        node.driver.wait_log("publishing failed")
        assert is_quiet(node)
        assert file.exists()
        assert writes(node) == 0
        init.start()
        assert init.wait_log("node not taken over from nvidia's driver")["reason"] == reason
    theirs.unlink(missing_ok=True)
    assert init.wait() == 0
    assert not file.exists()
    node.wait_devices(4)


def test_claims_of_nvidias_driver_are_answered_for_and_their_gpu_is_whole_after_them(
    node: ProcessNode,
) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="stand-in", seed=SEED))
    left = Left("dynamic-mig")
    left.restore_machine(machine)
    left.restore_files(node.place.data, node.place.cdi_root)
    for claim in left.claims:
        del claim["metadata"]["resourceVersion"]
        node.api.put(claim)
    refs = left.refs.values()
    claims = [ClaimName(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]
    whole = {f"gpu-{minor}" for minor in range(8)}
    pods = {(ref.namespace, ref.name): [f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu"] for ref in refs}
    with serving_pods(node.place.plugins, pods):
        assert TakeOverProcess(node.driver).run() == 0
    records = stored_records(node.place.data).records
    assert {record.ref for record in records} == set(refs), "the kubelet has their names"
    node.driver.start()
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register(driver=node.driver)
        wait_named(node, *(whole - {"gpu-1"}))
        assert node.api.seen("update", SLICES) == []  # nothing else was published before
        kubelet.must_prepare(*claims)
        kubelet.must_unprepare(*claims)
    wait_named(node, *whole)
    assert not any(one.mig_mode for one in machine.status())
    assert node.place.left_over() == []


# The end, and quiet


def open_nodes(node: ProcessNode) -> list[str]:
    """The GPUs' device nodes that the driver has open."""
    links: list[str] = []
    for link in Path(f"/proc/{node.driver.pid}/fd").iterdir():
        with suppress(OSError):
            links.append(str(link.readlink()))
    return [path for path in links if path.startswith(str(node.place.driver_root / "dev"))]


def test_an_evicted_driver_waits_for_claims_and_closes_gpus(node: ProcessNode) -> None:
    node.install_gpus("t4x4")
    node.driver.env["SHUTDOWN_DELAY"] = "8"
    node.driver.start()
    node.wait_devices(4)
    claim = node.allocate("one", "gpu-1")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        node.driver.wait_registered()
        assert kubelet.prepare(claim)[claim.uid].error == ""
        eventually(lambda: open_nodes(node), "the driver to have GPUs open")
        node.label({"nvidia.com/dra-driver": "paused-for-driver-upgrade"})
        node.driver.send(signal.SIGTERM)
        node.driver.wait_log("claims of evicted pods waited for")
        asked = len(node.api.seen("get", "nodes"))
        eventually(lambda: len(node.api.seen("get", "nodes")) > asked, "its look for the labels")
        assert kubelet.unprepare(claim)[claim.uid].error == ""
        eventually(lambda: not open_nodes(node), "the driver to let go of them")
        assert node.driver.events("sockets closed") == [], "the kubelet can still call it"
    assert node.driver.wait(timeout=30) == 0
    assert node.place.left_over() == []


@pytest.fixture
def with_mps(node: ProcessNode, needs_root: None, real_userspace: None) -> Iterator[Machine]:
    yield node.install_gpus("h100x8", Options(userspace="real"))
    node.driver.kill()
    mps.clean(node.place.mps)


@pytest.mark.usefixtures("with_mps")
def test_a_claim_that_waits_for_its_daemon_ends_with_the_driver(node: ProcessNode) -> None:
    node.driver.start()
    node.wait_device("gpu-3")
    claim = node.allocate("waiting", "gpu-2", configs=[make.config(sharing=HALF)])
    with being_prepared(node, claim) as answers:
        desired = node.place.plugins / "gpu.nvidia.com/mps/desired/uid-waiting.json"
        eventually(desired.exists, "the request for an MPS domain")
        assert node.driver.stop() == 0
    assert "MPS" in answers[0]
    assert not desired.exists()


@pytest.fixture
def every_kind(node: ProcessNode, with_mps: Machine) -> Iterator[list[ClaimName]]:
    """A claim of each kind, on a node whose driver offers all of that."""
    file = node.root / "shares.yaml"
    resource = "{name: gpu, replicas: 4, devices: [7]}"
    file.write_text(f"version: v1\nsharing: {{mps: {{resources: [{resource}]}}}}\n")
    node.driver.env |= {"SHARE_CONFIG": str(file), "MIG": "on-demand", "POD_UID": "old"}
    with_mps.set_mig_mode(uuid_of(with_mps, 3), enabled=True)
    with supervised(node):
        node.driver.start()
        node.wait_device("gpu-7-single-share-0-of-4")
        eventually(lambda: named(node, "gpu-3-mig-1g"), "partitions")
        yield [
            node.allocate("whole", "gpu-0"),
            node.allocate("sliced", "gpu-1", configs=[make.config(sharing=LONG)]),
            node.allocate("mps", "gpu-2", configs=[make.config(sharing=HALF)]),
            node.allocate("mig", min(named(node, "gpu-3-mig-1g"))),
            node.allocate("share", "gpu-7-single-share-0-of-4"),
        ]


def test_two_drivers_side_by_side_answer_for_each_others_claims(
    node: ProcessNode, every_kind: list[ClaimName]
) -> None:
    old, new = node.driver, node.make_driver(**(node.driver.env | {"POD_UID": "new"}))
    clients = (KubeletClient(node.place.registry, f"*-{pod}-reg.sock") for pod in ("old", "new"))
    with next(clients) as one, next(clients) as other:
        one.register()
        new.start()
        other.register(driver=new)
        for first, second in ((one, other), (other, one)):
            answers = dict(first.must_prepare(*every_kind))
            assert dict(second.must_prepare(*every_kind)) == answers
            second.must_unprepare(*every_kind)
            assert node.place.left_over() == []
        other.must_prepare(*every_kind)
        rival = node.allocate("rival", "gpu-0")
        assert "different claim" in one.prepare(rival, timeout=3)["uid-rival"].error
        left = set(node.place.left_over())
        offered = named(node) - named(node, "gpu-4")
        switching = node.allocate("switching", min(named(node, "gpu-4-mig-1g")))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(other.must_prepare, switching)
            new.wait_log("mig partitions withdrawn")  # the other has the GPU open
            assert old.stop() == 0
            call.result(PATIENCE)
        assert left < set(node.place.left_over())
        eventually(lambda: offered <= named(node), "what the old one has offered")
        other.must_unprepare(switching, *every_kind)
        # The mode is turned off once the MPS supervisor has no GPU open, either.
        eventually(lambda: node.place.left_over() == [], "nothing to be left")


def written(node: ProcessNode) -> list[str]:
    """Every file, folder and write to the API server so far; to read a file changes none.

    Not the library that has the simulated GPUs in it, since its readers write there, too. What is
    set on GPUs is logged.
    """
    verbs = {"create", "update", "patch", "delete"}
    found = [f"{one.verb} {one.plural} {one.name}" for one in node.api.log if one.verb in verbs]
    for folder, below, names in os.walk(node.root):
        below[:] = [name for name in below if name != "usr"]
        for path in (folder, *(f"{folder}/{name}" for name in names if not name.endswith(".log"))):
            with suppress(FileNotFoundError):
                stat = os.lstat(path)
                found.append(f"{path} {stat.st_mode} {stat.st_ino} {stat.st_mtime_ns}")
    return found


def settled(node: ProcessNode) -> list[str] | None:
    before = written(node)
    time.sleep(2)
    return before if written(node) == before else None


def test_unchanged_scans_write_nothing(
    node: ProcessNode, with_mps: Machine, every_kind: list[ClaimName]
) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        kubelet.must_prepare(*every_kind)
        before = eventually(lambda: settled(node), "nothing to be written")
        lines = len(node.driver.events())
        looked(with_mps, 10)
        assert written(node) == before
        assert node.driver.events()[lines:] == []
