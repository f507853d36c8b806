"""The driver as a process limits the memory of shares, on control groups that are plain folders."""

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer
from testbed.claims import allocation, claim
from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.shares.notes import read_notes
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from worlds.groups import MIB, R615, Groups, make_root
from worlds.kubelet_pods import note_pod, serving_pods
from worlds.process import NODE, ProcessNode, eventually

CONFIG = """\
version: v1
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
"""


GAUGE = 'nvidia_dra_memory_limits_not_in_force{driver="gpu.nvidia.com"}'


class Scene:
    """A driver that divides each GPU into four time-sliced shares."""

    def __init__(self, node: ProcessNode) -> None:
        self.node = node
        self.root = node.root / "cgroup"
        options = Options(userspace="stand-in", cgroup_root=self.root)
        changes = {"driver_version": R615, "memory_limits": "misc"}
        profile = profiles.changed(profiles.load("t4x4"), changes)
        self.machine = Machine.create(node.place.driver_root, profile, options)
        make_root(self.root, self.machine.gpus, dmem=False)
        self.groups = Groups(self.root, dmem=False)
        self.groups.make("kubepods.slice")
        config = node.root / "shares.yaml"
        config.write_text(CONFIG)
        node.driver.env |= {
            "SYS_ROOT": str(self.machine.sys_root),
            "PROC_ROOT": str(self.machine.proc_root),
            "SHARE_CONFIG": str(config),
            "CGROUP_ROOT": str(self.root),
        }

    def start(self) -> None:
        self.node.driver.start()
        self.node.wait_device("gpu-0-share-0-of-4")

    def reserve(self, name: str, device: str, *pods: str) -> ClaimName:
        """Store a claim that is allocated a share, and reserved for pods."""
        made = claim(name)
        made["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
        made["status"] = allocation(NODE, device) | {
            "reservedFor": [{"resource": "pods", "name": f"p{uid[:4]}", "uid": uid} for uid in pods]
        }
        if any(one["metadata"]["name"] == name for one in self.node.api.objects("resourceclaims")):
            self.node.api.delete_all("resourceclaims")
        self.node.api.put(made)
        return ClaimName(namespace="default", name=name, uid=f"uid-{name}")

    def fits(self, group: Path, mib: int, *, pid: int) -> bool:
        """Whether a process of a pod's container gets so much memory of the first GPU."""
        container = next(group.glob("*.scope"))
        gpu = self.machine.find("0").uuid
        taken = self.machine.take_memory(gpu, mib * MIB, pid=pid, group=container)
        if taken:
            self.machine.release_memory(gpu, pid=pid)
        return taken

    def remarks(self) -> tuple[str, ...]:
        """What `dra-driver status` says below its table."""
        return read_notes(self.node.place.plugins / "gpu.nvidia.com").remarks

    def gauge(self, port: int) -> str:
        """Of how many claims limits are not in force, as the metrics say."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(GAUGE)]
        return str(line.removeprefix(GAUGE).strip())

    def events(self) -> list[Any]:
        return self.node.api.objects("events")


@pytest.fixture
def scene(tmp_path: Path, api: ApiServer, needs_root: None) -> Any:
    node = ProcessNode(tmp_path, api)
    yield Scene(node)
    node.driver.kill()


def test_shares_are_limited_whatever_becomes_of_the_driver(scene: Scene) -> None:
    (pod, group), (other, beside) = scene.groups.pod(1), scene.groups.pod(1)
    mine = scene.reserve("mine", "gpu-0-share-0-of-4", pod)
    scene.start()
    notes = read_notes(scene.node.place.plugins / "gpu.nvidia.com")
    assert {device.limited_by for device in notes.devices} == {"control groups (NVML)"}
    with KubeletClient(scene.node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(mine)["uid-mine"].error == ""
    assert scene.fits(group, 3000, pid=1)
    assert not scene.fits(group, 5000, pid=1)
    assert not scene.fits(beside, 100, pid=2)

    scene.node.driver.kill()  # and with the last process on the GPU go its limits
    scene.node.driver.start()
    eventually(lambda: not scene.fits(group, 5000, pid=1), "the limit of the pod")
    eventually(lambda: not scene.fits(beside, 100, pid=2), "the limit of all pods")

    scene.node.driver.kill()
    told = {("default", name): ["k8s.gpu.nvidia.com/claim=uid-mine-x"] for name in ("one", "two")}
    for name, uid in (("one", pod), ("two", other)):
        note_pod(scene.machine.driver_root, "default", name, uid)
    with serving_pods(scene.node.place.plugins, told):
        scene.node.driver.start()
        eventually(scene.events, "the event of the later pod")
    assert {(event["reason"], event["regarding"]["uid"]) for event in scene.events()} == {
        ("NoGPUMemory", other)
    }
    with KubeletClient(scene.node.place.registry) as kubelet:
        kubelet.register()
        both = scene.reserve("both", "gpu-0-share-1-of-4", pod, other)
        assert "reserved for 2 pods" in kubelet.prepare(both)["uid-both"].error
        assert kubelet.unprepare(mine)["uid-mine"].error == ""
    assert scene.fits(beside, 5000, pid=2)


def test_limits_that_cannot_be_set_again_are_in_the_metrics(scene: Scene) -> None:
    pod, group = scene.groups.pod(1)
    mine = scene.reserve("mine", "gpu-0-share-0-of-4", pod)
    scene.node.driver.env |= {"RESCAN_INTERVAL": "0.2"}
    scene.node.driver.start("--http-endpoint=127.0.0.1:0")
    port = scene.node.driver.wait_log("http endpoint opened")["port"]
    scene.node.wait_device("gpu-0-share-0-of-4")
    with KubeletClient(scene.node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(mine)["uid-mine"].error == ""
    assert scene.gauge(port) == "0.0"
    gpu = scene.machine.find("0").uuid
    scene.machine.fail_call("nvmlDeviceSetMemoryLimits_v1", 4, uuid=gpu)
    group.rename(scene.root / "aside")
    scene.groups.make(f"{group.relative_to(scene.root)}/cri-containerd-{1:064x}.scope")
    eventually(lambda: scene.gauge(port) == "1.0", "the gauge to count the claim")
    scene.machine.clear_faults()
    eventually(lambda: scene.gauge(port) == "0.0", "the limit to be set again")
    assert not scene.fits(group, 5000, pid=1)


def test_status_and_log_say_that_persistence_mode_is_off_until_it_is_on(scene: Scene) -> None:
    scene.node.driver.env |= {"RESCAN_INTERVAL": "0.2"}
    scene.start()
    eventually(scene.remarks, "the remark")
    (remark,) = scene.remarks()
    assert remark.startswith("gpu-0, gpu-1, gpu-2, gpu-3: persistence mode is off")
    assert "run nvidia-persistenced" in remark
    line = scene.node.driver.wait_log("memory limits can be lost")
    assert line["level"] == "warning"
    for gpu in scene.machine.gpus:
        scene.machine.set_fact(gpu.uuid, Fact.PERSISTENCE_MODE, 1)
    eventually(lambda: not scene.remarks(), "the remark to go")
