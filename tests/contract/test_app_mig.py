"""The whole driver as a process, where somebody has a GPU open that is to be divided."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer
from testbed.holder import holding
from testbed.kubelet import KubeletClient

from dra_driver.cli import main
from worlds.process import SLICES, ProcessNode, eventually

FIRST, SECOND = "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gb-19-5"


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[ProcessNode]:
    node = ProcessNode(tmp_path, api)
    node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    eventually(lambda: len(parts(node)) == 8 * 25, "all partitions")
    yield node
    node.driver.kill()


def parts(node: ProcessNode) -> list[str]:
    """The partitions that are published."""
    return [
        device["name"]
        for one in node.api.objects(SLICES)
        for device in one["spec"].get("devices", ())
        if "-mig-" in device["name"]
    ]


def wait_parts_of_gpu_0(node: ProcessNode, *names: str) -> None:
    """Wait until exactly these partitions of GPU 0 are published, and all others' as ever."""

    def are_there() -> bool:
        found = parts(node)
        mine = tuple(name for name in found if name.startswith("gpu-0-"))
        return mine == names and len(found) == 7 * 25 + len(names)

    eventually(are_there, f"of GPU 0 only {names} to be published")


def inspected(node: ProcessNode, capsys: pytest.CaptureFixture[str]) -> str:
    root = node.place.driver_root
    flags = {
        "nvidia-driver-root": root,
        "container-driver-root": root,
        "sys-root": root / "sys",
        "proc-root": root / "proc",
        "kubelet-plugins-directory-path": node.place.plugins,
        "mig": "on-demand",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


def test_partitions_of_a_gpu_that_others_have_open_are_withdrawn_until_they_let_go(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = node.allocate("held", FIRST)
    errors: list[str] = []
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        with holding(node.place.driver_root, 0) as pid:
            pod = threading.Thread(
                target=lambda: errors.append(kubelet.prepare(claim, timeout=12)["uid-held"].error)
            )
            pod.start()
            words = f"dcgm-exporter (PID {pid})"
            assert words in node.driver.wait_log("mig partitions withdrawn")["reason"]
            wait_parts_of_gpu_0(node, FIRST)
            assert len(node.devices()) == 8
            shown = inspected(node, capsys)
            assert "GPU 0: no MIG devices are offered on it for now: GPU-" in shown
            assert words in shown
            assert "would publish 184 devices" in shown
            pod.join()
            assert words in errors[0]
            assert kubelet.unprepare(claim)["uid-held"].error == ""
            wait_parts_of_gpu_0(node)
        line = node.driver.wait_log("mig partitions offered again")
        assert line["why"] == "nobody has it open any more"
        eventually(lambda: len(parts(node)) == 8 * 25, "all parts to be back")
        assert "for now" not in inspected(node, capsys)
        assert kubelet.prepare(node.allocate("next", SECOND))["uid-next"].error == ""


def test_a_restarted_driver_offers_everything_again(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    with KubeletClient(node.place.registry) as kubelet, holding(node.place.driver_root, 0):
        kubelet.register()
        assert kubelet.prepare(node.allocate("held", FIRST), timeout=9)["uid-held"].error
        wait_parts_of_gpu_0(node, FIRST)
        node.driver.kill()
        node.driver.start()
        eventually(lambda: len(parts(node)) == 8 * 25, "all parts to be back")
        assert "for now" not in inspected(node, capsys)
