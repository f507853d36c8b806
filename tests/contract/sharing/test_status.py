"""`dra-driver status` beside a driver that has prepared claims."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dra_driver.devices.names import DRIVER_NAME
from worlds.configs import REQUESTS
from worlds.node import Node


@pytest.fixture
def status(node: Node) -> Callable[[str], str]:
    plugins = node.root / "plugins"
    plugins.mkdir()
    (plugins / DRIVER_NAME).symlink_to(node.driver.plugin)
    node.driver.plugin.joinpath("mps").symlink_to(node.mps.files.root)

    def run(output: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(plugins),
            "PROC_ROOT": str(node.machine.proc_root),
        }
        return subprocess.run(
            [sys.executable, "-m", "dra_driver", "status", f"--output={output}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return run


def test_it_shows_a_time_sliced_and_an_mps_gpu(node: Node, status: Callable[[str], str]) -> None:
    with node.mps.supervised():
        ref = node.claim_gpus(REQUESTS["both"])
        node.driver.prepare(ref)
        found: dict[str, Any] = json.loads(status("json"))
        (claim,) = found["claims"]
        assert claim["mpsDomain"]["activeThreadPercentage"] == 50.0
        assert claim["mpsDomain"]["pinnedMemoryMiB"] == {node.uuid(1): 10240}
        assert found["mps"] == {"supervisorRuns": True, "domainsWithoutClaim": []}
        text = status("table")
        assert "interval Long" in text
        assert "50 % of threads, 10240 MiB  ready, PID " in text
        node.driver.unprepare(ref)
        assert status("table") == "no claim is prepared on this node\n"


def test_it_shows_time_slicing_without_effect_on_mig_devices(
    node: Node, status: Callable[[str], str]
) -> None:
    ref = node.claim_migs(2, sharing={"strategy": "TimeSlicing"})
    node.driver.prepare(ref)
    (row,) = [line for line in status("table").splitlines() if "-mig-" in line]
    assert row.split("  ")[-3:] == ["TimeSlicing", "no effect on MIG devices", "prepared"]
    assert node.time_slices() == {}
    node.driver.unprepare(ref)
    assert node.migs() == []
    assert node.left() == []
    assert status("table") == "no claim is prepared on this node\n"


def test_it_shows_pending_cleanup(node: Node, status: Callable[[str], str]) -> None:
    ref = node.claim_gpus(REQUESTS["time-slicing"])
    node.driver.prepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999)
    node.driver.unprepare(ref)
    assert f"  default/claim: TimeSlicing on {node.uuid(0)}: nvidia-smi cannot" in status("table")
