"""The whole driver as a process: simulated GPUs, a small API server, a kubelet's calls."""

import json
import os
import re
import signal
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from testbed.apiserver.server import ApiServer
from testbed.commands import wait_until
from testbed.driver import DRIVER
from testbed.kubelet import ClaimName, KubeletClient

import dra_driver.kubelet.probe
import make
from worlds.process import NODE, ProcessNode, being_prepared, eventually, metrics, process_node

PATHS = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}

node = process_node()


@pytest.fixture
def running(node: ProcessNode) -> ProcessNode:
    node.install_gpus("h100x8")
    node.driver.start()
    node.driver.wait_log("driver started")
    return node


def test_eight_gpus_are_published_prepared_and_given_back(running: ProcessNode) -> None:
    assert len(running.wait_devices(8)) == 8
    claim = running.allocate("one", running.devices()[3])
    with KubeletClient(running.place.registry) as kubelet:
        kubelet.register()
        answer = kubelet.prepare(claim)["uid-one"]
        assert answer.error == ""
        (device,) = answer.devices
        assert (device.pool_name, device.device_name) == (NODE, running.devices()[3])
        (spec,) = running.place.cdi_files()
        content = json.loads((running.place.cdi_root / spec).read_text())
        assert list(device.cdi_device_ids) == [f"{content['kind']}={content['devices'][0]['name']}"]
        assert list(kubelet.prepare(claim)["uid-one"].devices) == [device]
        assert kubelet.unprepare(claim)["uid-one"].error == ""
    assert running.place.cdi_files() == []
    (line,) = running.driver.events("claim prepared")
    assert (line["claim"], line["devices"]) == ("default/one", [device.device_name])
    assert len(running.driver.events("claim unprepared")) == 1


def test_without_claim_status_no_claim_is_written(node: ProcessNode) -> None:
    node.install_gpus("l4x2")
    node.driver.env |= {"CLAIM_STATUS": "false"}
    node.driver.start()
    node.driver.wait_log("driver started")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(node.allocate("one", "gpu-1"))["uid-one"].error == ""
        assert node.driver.stop() == 0  # what waits to be written is written before
    assert node.api.seen("patch", "resourceclaims") == []


def test_the_models_of_configs_are_loaded_for_the_first_one_and_not_before(
    node: ProcessNode,
) -> None:
    # pydantic itself tells nothing here: who has a kubeconfig has it by the kubernetes package.
    def has(module: str) -> bool:
        pattern = rf"^import time:.* {module}$"
        return re.search(pattern, node.driver.log.read_text(), re.MULTILINE) is not None

    node.install_gpus("h100x8")
    node.driver.env["PYTHONPROFILEIMPORTTIME"] = "1"
    node.driver.start()
    node.wait_devices(8)
    plain = node.allocate("plain", "gpu-0")
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}
    wrong = node.allocate("wrong", "gpu-1", configs=[make.config(sharing=sharing)])
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(plain)["uid-plain"].error == ""
        assert kubelet.unprepare(plain)["uid-plain"].error == ""
        assert has("dra_driver.claims.model.config")
        assert not has("resource_nvidia_com.model")
        assert "must be at most 100" in kubelet.prepare(wrong)["uid-wrong"].error
        assert has("resource_nvidia_com.model")


def test_sigterm_removes_the_sockets_leaves_claims_prepared_and_ends_with_0(
    running: ProcessNode,
) -> None:
    running.wait_devices(8)
    claim = running.allocate("kept", "gpu-0")
    with KubeletClient(running.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-kept"].error == ""
    assert running.driver.stop() == 0
    assert list(running.place.registry.iterdir()) == []
    assert not (running.place.plugins / "gpu.nvidia.com/dra.sock").exists()
    assert len(running.place.cdi_files()) == 1
    assert len(running.devices()) == 8


@pytest.mark.parametrize("close", ["while it runs", "before it starts"])
def test_a_driver_with_unread_output_works_and_leaves_no_socket(
    node: ProcessNode, close: str
) -> None:
    node.install_gpus("t4x4")
    script = 'exec "$0" kubelet-plugin'
    if close == "before it starts":
        script += " <&- >&- 2>&-"
    log = subprocess.PIPE
    process = subprocess.Popen(
        ["sh", "-c", script, DRIVER], env=node.driver.env | PATHS, stdout=log, stderr=log
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        eventually(lambda: list(node.place.registry.glob("[!.]*")), "a socket")
        process.stdout.close()
        process.stderr.close()
        node.wait_devices(4)
        claim = node.allocate("one", "gpu-1")
        with KubeletClient(node.place.registry) as kubelet:
            kubelet.register()
            assert kubelet.prepare(claim)["uid-one"].error == ""
            assert kubelet.unprepare(claim)["uid-one"].error == ""
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert list(node.place.registry.iterdir()) == []


def test_sigterm_answers_a_claim_that_waits_for_its_gpu(node: ProcessNode) -> None:
    machine = node.install_gpus("t4x4")
    machine.unload_driver()
    node.driver.start()
    node.driver.wait_log("gpus not available")
    claim = node.allocate("waiting", "gpu-0")
    with being_prepared(node, claim) as answers:
        node.driver.wait_log("prepare retried")
        assert node.driver.stop() == 0
    assert "the GPU driver of this node does not answer" in answers[0]
    assert node.place.cdi_files() == []


def test_gpus_are_published_and_a_claim_that_waits_is_prepared_once_their_driver_is_loaded(
    node: ProcessNode,
) -> None:
    machine = node.install_gpus("t4x4")
    machine.unload_driver()
    node.driver.start()
    node.driver.wait_log("gpus not available")
    node.wait_devices(0)
    claim = node.allocate("waiting", "gpu-0")
    with being_prepared(node, claim) as answers:
        node.driver.wait_log("prepare retried")
        machine.load_driver()
    assert answers == [""]
    assert node.wait_devices(4) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert len(node.place.cdi_files()) == 1


def test_the_kubelet_is_answered_without_gpus_and_without_an_api_server(
    node: ProcessNode, api: ApiServer
) -> None:
    api.fail(status=503, times=float("inf"))
    node.driver.start()
    node.driver.wait_log("driver started")
    with KubeletClient(node.place.registry) as kubelet:
        assert kubelet.register().name == "gpu.nvidia.com"
        assert (
            kubelet.unprepare(ClaimName(namespace="default", name="old", uid="uid-old"))[
                "uid-old"
            ].error
            == ""
        )
    node.driver.wait_log("driver registered with the kubelet")
    assert "libnvidia-ml.so.1" in node.driver.wait_log("gpus not available")["cause"]


def test_a_gpu_that_hangs_is_tainted_alone_until_it_answers(node: ProcessNode) -> None:
    machine = node.install_gpus("t4x4")
    node.driver.env["NVML_TIMEOUT"] = "1"
    node.driver.start("--http-endpoint=127.0.0.1:0")
    port = node.driver.wait_log("http endpoint opened")["port"]
    node.wait_devices(4)
    hung = next(one for one in machine.status() if one.gpu.minor == 2).gpu
    machine.slow_call("nvmlDeviceGetName", 600_000, uuid=hung.uuid, times=1)
    keys = {"gpu-2": ["gpu.nvidia.com/unresponsive"]}
    wait_until(lambda: node.taints() == keys, "its taint", timeout=60, interval=0.05)
    said = node.driver.wait_log("gpu cannot be described")
    assert f"GPU {said['index']} has not answered since 20" in said["cause"]
    silent = f'nvidia_dra_nvml_silent_seconds{{driver="gpu.nvidia.com",gpu="{said["index"]}"}} '
    seconds = [line.removeprefix(silent) for line in metrics(port).splitlines() if silent in line]
    assert 1 <= float(seconds[0]) < 600
    assert 'nvidia_dra_gpus{driver="gpu.nvidia.com",state="sick"} 1.0' in metrics(port)
    sliced = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    healthy = node.allocate("well", "gpu-1", configs=[make.config(sharing=sliced)])
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(healthy)["uid-well"].error == ""
        sick = kubelet.prepare(node.allocate("ill", "gpu-2"), timeout=8)["uid-ill"].error
        assert "has not answered since" in sick
        assert kubelet.unprepare(healthy)["uid-well"].error == ""
    machine.clear_faults()
    assert node.driver.wait_log("nvml answers again")["seconds"] >= 1
    eventually(lambda: node.taints() == {}, "the taint to be lifted")
    assert f"{silent}0.0" in metrics(port)


def test_metrics_and_liveness_are_served_where_set(node: ProcessNode) -> None:
    node.install_gpus("t4x4")
    path = f"{node.place.plugins}/h"
    node.driver.start(
        "--http-endpoint=127.0.0.1:0", "--healthcheck-port=0", f"--health-socket={path}"
    )
    port = node.driver.wait_log("http endpoint opened")["port"]
    health = node.driver.wait_log("health port opened")["port"]
    node.wait_devices(4)
    claim = node.allocate("one", "gpu-1")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-one"].error == ""
    for service in ("liveness", "readiness"):
        program = [sys.executable, "-I", "-S", dra_driver.kubelet.probe.__file__, path, service]
        assert subprocess.run(program, check=False, timeout=30).returncode == 0
    text = eventually(lambda: _published(port), "published devices in the metrics")
    labels = f'device_type="gpu",driver="gpu.nvidia.com",node="{NODE}"'
    assert f"nvidia_dra_prepared_devices{{{labels}}} 1.0" in text
    labels = 'driver="gpu.nvidia.com",operation="prepare"'
    assert f"nvidia_dra_requests_total{{{labels}}} 1.0" in text
    assert 'nvidia_dra_gpus{driver="gpu.nvidia.com",state="ok"} 4.0' in text
    assert 'nvidia_dra_kubelet_registered{driver="gpu.nvidia.com"} 1.0' in text
    with grpc.insecure_channel(f"127.0.0.1:{health}") as channel:
        request = health_pb2.HealthCheckRequest(service="liveness")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def _published(port: int) -> str:
    text = metrics(port)
    wanted = 'nvidia_dra_published_devices{driver="gpu.nvidia.com"} 4.0'
    return text if wanted in text else ""


def test_sigusr2_writes_the_stacks_of_all_threads(running: ProcessNode) -> None:
    running.driver.send(signal.SIGUSR2)
    dump = running.place.plugins / "gpu.nvidia.com/thread-stacks.dump"
    # The main thread is the last one that faulthandler writes.
    eventually(lambda: "dra_driver/node/command.py" in dump.read_text(), "the main thread's stack")
    assert dump.read_text().count("hread 0x") > 3
    assert running.driver.running()


def test_a_feature_gate_of_a_newer_driver_is_a_line_in_the_log(node: ProcessNode) -> None:
    node.driver.env["FEATURE_GATES"] = "Tomorrow=true,DynamicMIG=false"
    node.driver.start()
    line = node.driver.wait_log("setting has no effect")
    node.driver.wait_log("driver started")
    assert (line["level"], line["setting"]) == ("warning", "feature gate Tomorrow")
    assert line["reason"].startswith("this driver supports only DynamicMIG, ")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--kubeconfig", "/nowhere"), 1, "cannot read the kubeconfig"),
        (("--http-endpoint", "8080"), 1, "is not of the form host:port"),
        (("--proc-root", "/nowhere"), 1, "boot_id cannot be read"),
        (
            ("--healthcheck-port=0", "--kubelet-registrar-directory-path=/dev/null/r"),
            1,
            "socket /dev/null/r/gpu.nvidia.com-reg.sock cannot be made: Not a directory",
        ),
    ],
)
def test_a_failed_start_prints_one_line(
    node: ProcessNode, words: tuple[str, ...], status: int, message: str
) -> None:
    node.driver.start(*words)
    assert node.driver.wait(timeout=60) == status
    (line,) = [one for one in node.driver.log.read_text().splitlines() if one.startswith("error: ")]
    assert message in line
    assert not node.place.registry.exists()
