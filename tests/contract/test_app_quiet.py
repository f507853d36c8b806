"""A node on which nothing changes: all look again and again, and nothing is written."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer
from testbed.kubelet import KubeletClient

import make
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds import mps
from worlds.configs import HALF, LONG
from worlds.process import SLICES, ProcessNode, eventually, supervised
from worlds.sick import looked

WRITES = {"create", "update", "patch", "delete"}
SHARES = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 4, devices: [7]}]}}\n"
LOOKS = 10
"""Of the watcher of the inventory, half a second apart; others look as often or when told."""


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


def written(node: ProcessNode, api: ApiServer) -> list[str]:
    """Every file, folder and write to the API server so far; to read a file changes none.

    Not the library that has the simulated GPUs in it, since its readers write there, too. What is
    set on GPUs is logged.
    """
    found = [f"{one.verb} {one.plural} {one.name}" for one in api.log if one.verb in WRITES]
    for folder, below, names in os.walk(node.root):
        below[:] = [name for name in below if name != "usr"]
        for path in (folder, *(f"{folder}/{name}" for name in names if not name.endswith(".log"))):
            with suppress(FileNotFoundError):
                stat = os.lstat(path)
                found.append(f"{path} {stat.st_mode} {stat.st_ino} {stat.st_mtime_ns}")
    return found


def settled(node: ProcessNode, api: ApiServer) -> list[str] | None:
    before = written(node, api)
    time.sleep(2)
    return before if written(node, api) == before else None


def partition(api: ApiServer, gpu: str) -> str | None:
    """The smallest MIG device that is offered of a GPU."""
    devices = (one["spec"].get("devices", ()) for one in api.objects(SLICES))
    names = (device["name"] for each in devices for device in each)
    return next((name for name in names if name.startswith(f"{gpu}-mig-1g")), None)


@pytest.mark.usefixtures("supervisor")
def test_looks_that_find_nothing_changed_write_nothing(
    node: ProcessNode, machine: Machine, api: ApiServer
) -> None:
    shares = node.root / "shares.yaml"
    shares.write_text(SHARES)
    node.driver.env |= {"SHARE_CONFIG": str(shares), "MIG": "on-demand"}
    node.driver.start()
    share = "gpu-7-single-share-0-of-4"
    node.wait_device(share)
    mig = eventually(lambda: partition(api, "gpu-3"), "partitions")
    claims = [
        node.allocate("whole", "gpu-0"),
        node.allocate("sliced", "gpu-1", configs=[make.config(sharing=LONG)]),
        node.allocate("mps", "gpu-2", configs=[make.config(sharing=HALF)]),
        node.allocate("mig", mig),
        node.allocate("share", share),
    ]
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        for claim in claims:
            assert kubelet.prepare(claim)[claim.uid].error == ""
    before = eventually(lambda: settled(node, api), "nothing to be written")
    lines = len(node.driver.events())
    looked(machine, LOOKS)
    assert written(node, api) == before
    assert node.driver.events()[lines:] == []
    machine.remove_gpu(next(gpu.uuid for gpu in machine.gpus if gpu.minor == 6))
    eventually(lambda: "gpu-6" not in node.devices(), "the missing GPU to be noticed")
