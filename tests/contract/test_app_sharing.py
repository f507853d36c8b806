"""Driver and MPS supervisor as processes, with NVIDIA's own programs on simulated GPUs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer
from testbed.kubelet import KubeletClient

import make
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, shared_domain
from dra_driver.mps.members import SharedDomains
from dra_driver.mps.requests import DomainRequests
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds import mps
from worlds.configs import HALF, LONG
from worlds.process import ProcessNode, being_prepared, eventually, metrics, supervised


@pytest.fixture
def node(tmp_path: Path, api: ApiServer, needs_root: None) -> Iterator[ProcessNode]:
    node = ProcessNode(tmp_path, api)
    yield node
    node.driver.kill()
    mps.clean(node.place.mps)


@pytest.fixture
def machine(node: ProcessNode, real_userspace: None) -> Machine:
    return node.install_gpus("h100x8", Options(userspace="real"))


@pytest.fixture
def supervisor(node: ProcessNode, machine: Machine) -> Iterator[None]:
    with supervised(node):
        yield


def uuid(machine: Machine, minor: int) -> str:
    return next(gpu.uuid for gpu in machine.gpus if gpu.minor == minor)


def spec_edits(node: ProcessNode) -> dict[str, Any]:
    """What a container gets of the one prepared device."""
    (name,) = node.place.cdi_files()
    (device,) = json.loads((node.place.cdi_root / name).read_text())["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_a_driver_that_starts_ends_shared_domains_that_no_claim_is_in(
    node: ProcessNode, machine: Machine
) -> None:
    folder = node.place.plugins / "gpu.nvidia.com/mps"
    requests = DomainRequests(folder, lambda: 0.0)
    shared = SharedDomains(folder, requests, time.monotonic)
    recordless, left = (
        Domain(
            id=shared_domain(uuid(machine, minor)),
            devices=(DomainDevice(uuid=uuid(machine, minor)),),
        )
        for minor in (0, 1)
    )
    shared.join(recordless, "uid-without-a-record")
    shared.join(left, "uid-left")
    (folder / "members" / left.id / "uid-left").unlink()  # as a driver that was killed leaves it
    node.driver.start()
    eventually(lambda: requests.desired(left.id) is None, "the end of what nobody is left in")
    eventually(lambda: requests.desired(recordless.id) is None, "the end of the other one")
    assert shared.claims() == frozenset()


@pytest.mark.usefixtures("supervisor")
def test_an_mps_claim_outlives_the_driver_and_goes_with_its_pod(
    node: ProcessNode, machine: Machine
) -> None:
    node.driver.start()
    node.wait_device("gpu-3")
    claim = node.allocate("shared", "gpu-2", configs=[make.config(sharing=HALF)])
    requests = DomainRequests(node.place.plugins / "gpu.nvidia.com/mps", lambda: 0.0)
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-shared"].error == ""
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in spec_edits(node)["env"]
    assert machine.compute_mode(uuid(machine, 2)) == 3
    before = requests.status(DomainId("uid-shared"))
    assert before is not None
    assert before.active_thread_percentage == 50.0

    node.driver.kill()
    node.driver.start()
    node.driver.wait_log("driver started")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-shared"].error == ""
        assert requests.status(DomainId("uid-shared")) == before
        assert kubelet.unprepare(claim)["uid-shared"].error == ""
    assert machine.compute_mode(uuid(machine, 2)) == 0
    assert requests.list() == frozenset()
    assert node.place.cdi_files() == []


def test_a_claim_that_waits_for_its_daemon_ends_with_the_driver(
    node: ProcessNode, machine: Machine
) -> None:
    node.driver.start()
    node.wait_device("gpu-3")
    claim = node.allocate("waiting", "gpu-2", configs=[make.config(sharing=HALF)])
    with being_prepared(node, claim) as answers:
        desired = node.place.plugins / "gpu.nvidia.com/mps/desired/uid-waiting.json"
        eventually(desired.exists, "the request for an MPS domain")
        assert node.driver.stop() == 0
    assert "MPS" in answers[0]
    assert not desired.exists()


def test_a_time_slice_that_cannot_be_reset_is_counted_until_it_is(
    node: ProcessNode, machine: Machine
) -> None:
    node.driver.start("--http-endpoint=127.0.0.1:0")
    port = node.driver.wait_log("http endpoint opened")["port"]
    node.wait_device("gpu-3")
    claim = node.allocate("sliced", "gpu-3", configs=[make.config(sharing=LONG)])
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        assert kubelet.prepare(claim)["uid-sliced"].error == ""
        assert machine.time_slice(uuid(machine, 3)) == 3
        machine.fail_call("nvidia-smi:set-timeslice", 999)
        assert kubelet.unprepare(claim)["uid-sliced"].error == ""
        labels = '{driver="gpu.nvidia.com",strategy="TimeSlicing"}'
        assert f"nvidia_dra_pending_cleanups{labels} 1.0" in metrics(port)
        assert f"nvidia_dra_sharing_undo_errors_total{labels} 1.0" in metrics(port)
        (line,) = node.driver.events("step not undone")
        assert "Unknown Error" in line["reason"]
        machine.clear_faults()
        other = node.allocate("other", "gpu-3")
        assert kubelet.prepare(other)["uid-other"].error == ""
        assert machine.time_slice(uuid(machine, 3)) == 0
        assert f"nvidia_dra_pending_cleanups{labels} 0.0" in metrics(port)
