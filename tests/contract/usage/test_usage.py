"""Who uses simulated GPUs, by the real pynvml: looks, the command, and the driver's metrics."""

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from testbed.apiserver.server import ApiServer
from testbed.kubelet import KubeletClient

import make
from dra_driver import cli
from dra_driver.admin.status import usage
from dra_driver.cdi.roots import Roots
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.load import ProcessKind
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.errors import SetupError
from dra_driver.node.usage import node_look
from dra_driver.ops.metrics import UsageMetric
from dra_driver.simulator import layout
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import UNKNOWN_PERCENT, Activity
from dra_driver.usage.node import NodeLook
from dra_driver.usage.sampler import Sampler
from worlds.kubelet_pods import note_pod, serving_pods
from worlds.process import ProcessNode
from worlds.session import session_on
from worlds.sick import looked

MIB = 1 << 20
PODS = ("train-0", "train-1", "train-2")
UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
ID = "ab" * 32


def put_process(machine: Machine, pid: int, group: str = "/", start: int = 1) -> None:
    """Let procfs have a process, of a pod or of none."""
    proc = machine.proc_root
    if not (proc / "self").is_symlink():
        (proc / "self").symlink_to("1")
    (proc / str(pid)).mkdir()
    fields = ["S", "1", *["0"] * 17, str(start), *["0"] * 30]
    (proc / f"{pid}/stat").write_text(f"{pid} (python3) {' '.join(fields)}\n")
    (proc / f"{pid}/cgroup").write_text(f"0::{group}\n")


def container(uid: str = UID, name: str = ID) -> str:
    return f"/kubepods/burstable/pod{uid}/{name}"


def note_container(machine: Machine, pod: str, namespace: str, ctr: str, name: str = ID) -> None:
    folder = machine.driver_root / "var/log/containers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{pod}_{namespace}_{ctr}-{name}.log").symlink_to("/nowhere")


def roots(machine: Machine) -> Roots:
    return Roots(
        driver=machine.driver_root,
        driver_on_host=str(machine.driver_root),
        dev=machine.dev_root / "dev",
        dev_on_host="/dev",
        proc=machine.proc_root,
        sys=machine.sys_root,
    )


class Node:
    """Two GPUs, a session of the driver on them, and records of claims."""

    def __init__(self, machine: Machine, calls: NvmlCalls | None = None) -> None:
        self.machine = machine
        self.session = session_on(machine, calls=calls)
        self.gpus = self.session.look().gpus
        self.records: list[ClaimRecord] = []

    def look(self) -> NodeLook:
        folder = self.machine.driver_root / "nothing"
        return node_look(
            self.session, roots(self.machine), folder, lambda _: {}, lambda: self.records
        )

    def claim(self, gpu: int) -> None:
        ref = ClaimRef(uid=ClaimUid("uid-one"), namespace="team-a", name="one")
        pods = (ConsumerPod(name="train-0", uid=UID),)
        self.records.append(replace(make.record(self.gpus[gpu]), ref=ref, pods=pods))

    def run(self, pid: int, mib: int = 1, *, gpu: int = 0, group: str = "/", **does: int) -> None:
        self.machine.take_memory(self.gpus[gpu].uuid, mib * MIB, pid=pid)
        self.machine.let_do(pid, Activity(**does))  # type: ignore[arg-type]
        put_process(self.machine, pid, group)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(Machine.create(tmp_path / "machine", "l4x2"))
    yield node
    node.session.close()


def test_a_containers_process_has_claim_memory_and_load(node: Node) -> None:
    node.claim(0)
    note_container(node.machine, "train-0", "team-a", "trainer")
    node.run(101, 300, group=container(), sm=40)
    node.run(102, 50)
    first, second = node.look().look().gpus
    (device,) = first.devices
    (user,) = device.users
    assert (user.claims, user.pod, user.container) == (("team-a/one",), "train-0", "trainer")
    assert (user.memory_bytes, user.sm) == (300 * MIB, 0.4)
    assert [(other.pid, other.memory_bytes) for other in device.others] == [(102, 50 * MIB)]
    assert first.load.memory is not None
    assert first.load.memory.used_bytes == 350 * MIB
    assert (first.load.busy, second.load.busy) == (0.4, 0.0)
    assert second.devices[0].users == ()


def test_clients_of_mps_are_listed_once_by_themselves(node: Node) -> None:
    node.claim(0)
    node.run(101, 300, group=container(), kind=layout.ProcessKind.BY_MPS, sm=20)
    # A driver may have a client in both lists; its memory is there once.
    node.machine.hold_instance(node.gpus[0].uuid, pid=101, memory=100 * MIB)
    (user,) = node.look().look().gpus[0].devices[0].users
    assert [(process.kind, process.memory_bytes) for process in user.processes] == [
        (str(ProcessKind.MPS), 300 * MIB)
    ]
    assert user.sm is None  # NVML counts the server as busy, and tells of no client's part


def test_unknown_figures_are_left_out(node: Node) -> None:
    node.run(101, 300, group=container(), sm=UNKNOWN_PERCENT, hides_memory=True)
    old = int((time.time() - 60) * 1e6)
    node.run(102, 5, group=container(name="cd" * 32), sm=90, sampled_us=old)
    hidden, stale = node.look().look().gpus[0].devices[0].users
    assert (hidden.memory_bytes, hidden.sm) == (None, 0.0)
    assert (stale.memory_bytes, stale.sm) == (5 * MIB, 0.0)


def test_an_ended_or_later_process_belongs_to_nobody(node: Node) -> None:
    node.run(101, group=container())
    node.machine.take_memory(node.gpus[0].uuid, MIB, pid=102)  # not in procfs any more
    node.machine.take_memory(node.gpus[0].uuid, MIB, pid=103)
    put_process(node.machine, 103, container(name="cd" * 32), start=10**12)
    (device,) = node.look().look().gpus[0].devices
    assert [one.pid for user in device.users for one in user.processes] == [101]
    assert device.others == ()


def test_a_mig_device_has_its_own_memory_and_processes(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "machine", "h100x8")
    gpu = machine.find("0").uuid
    machine.set_mig_mode(gpu, enabled=True)
    mine, other = (machine.create_mig(gpu, "1g.10gb") for _ in range(2))
    node = Node(machine)
    machine.hold_instance(mine, pid=101, memory=200 * MIB)
    machine.let_do(101, Activity(sm=50))
    put_process(machine, 101, container())
    first = node.look().look().gpus[0]
    assert first.load.busy is None
    by_uuid = {device.uuid: device for device in first.devices}
    assert set(by_uuid) == {mine, other}
    (user,) = by_uuid[mine].users
    assert (user.memory_bytes, user.sm) == (200 * MIB, None)
    memory = by_uuid[mine].memory
    assert memory is not None
    assert memory.used_bytes == 200 * MIB
    assert by_uuid[other].users == ()
    node.session.close()


def test_a_gpu_that_hangs_is_reported_and_the_scrape_is_in_time(node: Node) -> None:
    node.claim(0)
    node.run(101, group=container())
    node.machine.slow_call(
        "nvmlDeviceGetComputeRunningProcesses_v3", 600_000, uuid=node.gpus[1].uuid, times=1
    )
    usage = Sampler(node.look().look)
    found = {(one.metric, tuple(one.labels)): one.value for one in usage.series()}
    assert found[UsageMetric.UP, ("0",)] == 1
    assert found[UsageMetric.UP, ("1",)] == 0
    assert any(metric is UsageMetric.CONTAINER_MEMORY for metric, _ in found)
    node.machine.clear_faults()


def test_nvml_is_only_queried_on_request(node: Node) -> None:
    node.machine.fail_call("nvmlDeviceGetComputeRunningProcesses_v3", code=999, times=1)
    look, threads = node.look().look, threading.enumerate()
    Sampler(look)
    assert set(threading.enumerate()) <= set(threads), "somebody is there who could ask later"
    assert [fault.times for fault in node.machine.faults()] == [1]


def words_of(machine: Machine, *words: str) -> list[str]:
    return [
        "usage",
        "--nvidia-driver-root",
        str(machine.driver_root),
        "--sys-root",
        str(machine.sys_root),
        "--proc-root",
        str(machine.proc_root),
        *words,
    ]


def test_by_command(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note_container(node.machine, "train-0", "team-a", "trainer")
    node.run(101, 300, group=container(), sm=40)
    node.session.close()
    words = words_of(node.machine, "--kubelet-plugins-directory-path", str(tmp_path))
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "train-0" in out
    assert "300 MiB" in out
    assert "101 python3" in out
    assert out.count("GPU ") == 2
    assert cli.main([*words, "--gpu", "1"]) == 0
    out = capsys.readouterr().out
    assert "train-0" not in out
    assert "not in use" in out
    assert cli.main([*words, "--pid", "101", "--output", "json"]) == 0
    (gpu,) = json.loads(capsys.readouterr().out)["gpus"]
    assert gpu["index"] == 0
    (user,) = gpu["devices"][0]["users"]
    assert (user["namespace"], user["pod"], user["container"]) == ("team-a", "train-0", "trainer")
    assert (user["memoryBytes"], user["smUtilization"]) == (300 * MIB, 0.4)
    assert cli.main([*words, "--pid", "7777"]) == 1
    assert "process 7777 uses no GPU of this node" in capsys.readouterr().err
    assert cli.main([*words, "--gpu", "9"]) == 1
    assert "no GPU of this node is '9'" in capsys.readouterr().err


def test_without_a_terminal_no_name_is_cut(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pod = "dcgmproftester-with-a-long-name-7f9c6d5b8-x2x4q"
    note_container(node.machine, pod, "monitoring-of-the-platform", "the-container-of-the-test")
    node.run(101, 300, group=container(), sm=40)
    node.session.close()
    words = words_of(node.machine, "--kubelet-plugins-directory-path", str(tmp_path))
    assert cli.main([*words, "--gpu", "0", "--once"]) == 0
    out = capsys.readouterr().out
    assert f"monitoring-of-the-platform/{pod}  the-container-of-the-test  " in out
    assert "…" not in out


def test_a_gpus_name_its_uuid_and_its_index_mean_the_same(node: Node) -> None:
    use = node.look().look()
    uuid = node.gpus[1].uuid
    for name in ("1", uuid, uuid.upper(), f"gpu-{node.gpus[1].minor}"):
        found = usage.selected(usage.Question(gpu=name), use)
        assert found.indices == frozenset({1})
    with pytest.raises(SetupError, match="name one by index"):
        usage.selected(usage.Question(gpu="GPU-x"), use)


def metrics_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def test_later_pods_have_names_which_are_looked_up_on_request(
    tmp_path: Path, api: ApiServer, capfd: pytest.CaptureFixture[str]
) -> None:
    node = ProcessNode(tmp_path, api)
    machine = node.install_gpus("l4x2")
    gpu = machine.find("0")
    machine.take_memory(gpu.uuid, 300 * MIB, pid=101)
    put_process(machine, 101, container())  # of the second pod, whose containers have no names
    node.driver.env |= {"HTTP_ENDPOINT": "127.0.0.1:0", "USAGE_METRICS": "true"}
    node.driver.env |= {"CLAIM_STATUS": "false"}
    node.driver.start()
    try:
        node.driver.wait_log("driver started")
        node.wait_devices(2)
        claim = node.allocate("shared", f"gpu-{gpu.minor}")
        with KubeletClient(node.place.registry) as kubelet:
            kubelet.register(driver=node.driver)
            reserve(api, "train-0")
            assert kubelet.prepare(claim)["uid-shared"].error == ""
        api.stop()  # the kubelet knows
        port = node.driver.wait_log("http endpoint opened")["port"]
        words = words_of(machine, "--kubelet-plugins-directory-path", str(node.place.plugins))
        told = {("default", pod): ["k8s.gpu.nvidia.com/claim=uid-shared-gpu-0"] for pod in PODS}
        for pod in PODS:
            note_pod(machine.driver_root, "default", pod, UID if pod == PODS[1] else f"uid-{pod}")
        with serving_pods(node.place.plugins, told) as pods:
            looked(machine, 2)
            assert pods.asked == 0
            text = metrics_at(port)
            found = {pod: labels_of(text, pod) for pod in PODS}
            assert [one["value"] for one in found.values()] == ["0.0", "1.0", "0.0"]
            assert {one["claim"] for one in found.values()} == {"default/shared"}
            assert {one["namespace"] for one in found.values()} == {"default"}
            assert cli.main([*words, "--output", "json"]) == 0
            users = users_in(capfd.readouterr().out)
            assert [one["pod"] for one in users] == ["train-1", "train-0", "train-2"]
        assert cli.main([*words, "--pid", "101"]) == 0
        shown = capfd.readouterr()
        assert "300 MiB" in shown.out
        assert "joined a claim later are not known: the kubelet's PodResources API" in shown.err
    finally:
        node.driver.kill()


def reserve(api: ApiServer, pod: str) -> None:
    """Have the claim reserved for a pod."""
    (claim,) = api.objects("resourceclaims")
    api.delete_all("resourceclaims")
    del claim["metadata"]["resourceVersion"]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]
    api.put(claim)


def labels_of(text: str, pod: str) -> dict[str, str]:
    """The labels and the value of what is told of a pod's processes."""
    (line,) = [
        one
        for one in text.splitlines()
        if one.startswith("nvidia_dra_container_gpu_processes{") and f'pod="{pod}"' in one
    ]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    return labels | {"value": line.rpartition(" ")[2]}


def users_in(text: str) -> list[dict[str, Any]]:
    return [
        user
        for gpu in json.loads(text)["gpus"]
        for device in gpu["devices"]
        for user in device["users"]
    ]
