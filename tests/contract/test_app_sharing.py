"""Driver and MPS supervisor as processes, with NVIDIA's own programs on simulated GPUs."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import make
from apiserver.server import ApiServer
from dra_driver.errors import SetupError
from dra_driver.mps import mounts, processes
from dra_driver.mps.domain import DomainId
from dra_driver.mps.requests import DomainRequests
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from driver_process import NODE, Node, eventually
from kubelet_client import KubeletClient

LONG = make.config(
    sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
)
HALF = make.config(
    sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        metadata = {"name": NODE, "uid": "node-uid"}
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        yield server


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("compute modes, mounts and mount namespaces need root")
    node = Node(tmp_path, api)
    yield node
    if node.process is not None and node.process.poll() is None:
        node.end(signal.SIGKILL)
    for folder in (node.plugins / "gpu.nvidia.com/mps/domains").glob("*"):
        processes.kill(processes.marked(folder), 5.0)
        mounts.unmount_all(folder / "shm")


@pytest.fixture
def machine(node: Node) -> Machine:
    try:
        return node.install_gpus("h100x8", Options(userspace="real"))
    except SetupError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NVIDIA's user-space files cannot be had: {error}")


@pytest.fixture
def supervisor(node: Node, machine: Machine) -> Iterator[None]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(node.plugins),
        "NVIDIA_DRIVER_ROOT": str(node.driver_root),
        "PROC_ROOT": str(machine.proc_root),
        "SHM_SIZE": "16Mi",
    }
    with (node.root / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dra_driver", "mps-supervisor"],
            env=environment,
            stdout=log,
            stderr=log,
        )
    yield
    process.terminate()
    assert process.wait(30) == 0


def uuid(machine: Machine, minor: int) -> str:
    return next(gpu.uuid for gpu in machine.gpus if gpu.minor == minor)


def spec_edits(node: Node) -> dict[str, Any]:
    """What a container gets of the one prepared device."""
    (name,) = node.specs()
    (device,) = json.loads((node.cdi / name).read_text())["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


@pytest.mark.usefixtures("supervisor")
def test_an_mps_claim_outlives_the_driver_and_goes_with_its_pod(
    node: Node, machine: Machine
) -> None:
    node.start()
    node.wait_device("gpu-3")
    claim = node.allocate("shared", "gpu-2", configs=[HALF])
    requests = DomainRequests(node.plugins / "gpu.nvidia.com/mps", lambda: 0.0)
    with KubeletClient(node.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-shared"].error == ""
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in spec_edits(node)["env"]
    assert machine.compute_mode(uuid(machine, 2)) == 3
    before = requests.status(DomainId("uid-shared"))
    assert before is not None
    assert before.active_thread_percentage == 50.0

    node.end(signal.SIGKILL)
    node.start()
    node.wait_event("driver started")
    with KubeletClient(node.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-shared"].error == ""
        assert requests.status(DomainId("uid-shared")) == before
        assert kubelet.unprepare(claim)["uid-shared"].error == ""
    assert machine.compute_mode(uuid(machine, 2)) == 0
    assert requests.list() == frozenset()
    assert node.specs() == []


def test_a_claim_that_waits_for_its_daemon_ends_with_the_driver(
    node: Node, machine: Machine
) -> None:
    node.start()
    node.wait_device("gpu-3")
    claim = node.allocate("waiting", "gpu-2", configs=[HALF])
    answers: list[str] = []
    with KubeletClient(node.registry) as kubelet:
        kubelet.register()
        pod = threading.Thread(
            target=lambda: answers.append(kubelet.prepare(claim)["uid-waiting"].error)
        )
        pod.start()
        wish = node.plugins / "gpu.nvidia.com/mps/desired/uid-waiting.json"
        eventually(wish.exists, "the wish for an MPS domain")
        assert node.end(signal.SIGTERM) == 0
        pod.join()
    assert "MPS" in answers[0]
    assert not wish.exists()


def test_a_time_slice_that_cannot_be_reset_is_counted_until_it_is(
    node: Node, machine: Machine
) -> None:
    node.start("--http-endpoint=127.0.0.1:0")
    port = node.wait_event("http endpoint opened")["port"]
    node.wait_device("gpu-3")
    claim = node.allocate("sliced", "gpu-3", configs=[LONG])
    with KubeletClient(node.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-sliced"].error == ""
        assert machine.time_slice(uuid(machine, 3)) == 3
        machine.fail_call("nvidia-smi:set-timeslice", 999)
        assert kubelet.unprepare(claim)["uid-sliced"].error == ""
        labels = '{driver="gpu.nvidia.com",strategy="TimeSlicing"}'
        assert f"nvidia_dra_pending_cleanups{labels} 1.0" in metrics(port)
        assert f"nvidia_dra_sharing_undo_errors_total{labels} 1.0" in metrics(port)
        (line,) = node.events("plan not undone")
        assert "Unknown Error" in line["reason"]
        machine.clear_faults()
        other = node.allocate("other", "gpu-3")
        assert kubelet.prepare(other)["uid-other"].error == ""
        assert machine.time_slice(uuid(machine, 3)) == 0
        assert f"nvidia_dra_pending_cleanups{labels} 0.0" in metrics(port)


def metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
