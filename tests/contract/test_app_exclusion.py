"""The whole driver as a process, where some GPUs are none of its own."""

import math
import subprocess

import pytest
from testbed.driver import DRIVER
from testbed.kubelet import KubeletClient

from dra_driver.cli import main
from dra_driver.devices.exclusion import LABEL
from worlds.process import ProcessNode, eventually, process_node

OTHERS = ["gpu-0", "gpu-1", "gpu-3"]

node = process_node("t4x4", RESCAN_INTERVAL="1")


def start(node: ProcessNode, exclude: str = "") -> None:
    node.driver.env["EXCLUDE_GPUS"] = exclude
    node.driver.start()


def wait_published(node: ProcessNode, *names: str) -> None:
    eventually(lambda: sorted(node.devices()) == sorted(names), f"{names} to be published")


def set_label(node: ProcessNode, value: str | None) -> None:
    node.label({} if value is None else {LABEL: value})


def shown(node: ProcessNode, command: str, capsys: pytest.CaptureFixture[str]) -> str:
    root = node.place.driver_root
    flags = {
        "proc-root": root / "proc",
        "kubelet-plugins-directory-path": node.place.plugins,
    }
    if command != "status":
        flags |= {
            "nvidia-driver-root": root,
            "container-driver-root": root,
            "sys-root": root / "sys",
        }
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += ["--scope=node"] if command == "doctor" else []
    main([command, *words])
    return capsys.readouterr().out


def test_a_gpu_that_the_setting_names_is_never_published_and_that_is_said_everywhere(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    start(node, "2,P100")
    wait_published(node, *OTHERS)

    line = node.driver.wait_log("gpu left out")["gpu"]
    assert line.startswith("GPU 2 (Tesla T4, GPU-")
    assert line.endswith('it is left out by "2" of --exclude-gpus')
    warning = '"P100" of --exclude-gpus excludes nothing: this node has 4 GPUs (Tesla T4)'
    assert node.driver.wait_log("exclusion without effect")["reason"].startswith(warning)
    status, doctor = shown(node, "status", capsys), " ".join(shown(node, "doctor", capsys).split())
    assert f"GPUs that are left out:\n  {line}\n" in status
    assert f"exclusions without effect:\n  {warning}" in status
    assert line.partition(": it is")[0] in doctor
    assert warning in doctor


def test_a_list_that_makes_no_sense_ends_the_start_with_the_reason(node: ProcessNode) -> None:
    env = node.driver.env | {"EXCLUDE_GPUS": "0,MIG-1"}
    done = subprocess.run(
        [DRIVER, "kubelet-plugin"], env=env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "'MIG-1' is a MIG device: name its GPU, which is then excluded as a whole" in done.stderr


def test_the_label_of_the_node_is_followed_without_a_restart(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    start(node)
    wait_published(node, *OTHERS, "gpu-2")
    set_label(node, "2")
    wait_published(node, *OTHERS)
    assert f'"2" of label {LABEL}' in shown(node, "inspect", capsys)
    set_label(node, None)
    wait_published(node, *OTHERS, "gpu-2")
    assert node.driver.wait_log("gpu no longer left out")["gpu"].startswith("GPU 2 (")
    assert "left out" not in shown(node, "inspect", capsys)


def test_a_claim_that_has_the_gpu_keeps_it_until_it_ends_and_no_other_gets_it(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    start(node)
    wait_published(node, *OTHERS, "gpu-2")
    first, late = node.allocate("first", "gpu-2"), node.allocate("late", "gpu-2")
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        (device,) = kubelet.prepare(first)["uid-first"].devices
        set_label(node, "2")
        wait_published(node, *OTHERS)
        eventually(
            lambda: "; a claim that already has it keeps it" in shown(node, "status", capsys),
            "status to say that it is in use",
        )
        assert list(kubelet.prepare(first)["uid-first"].devices) == [device]
        refused = 'device "gpu-2" is no longer offered: it is left out by "2" of label'
        assert refused in kubelet.prepare(late)["uid-late"].error
        assert kubelet.unprepare(first)["uid-first"].error == ""
        eventually(
            lambda: "a claim has it" not in shown(node, "status", capsys), "the GPU to be let go of"
        )
        assert "left out by" in kubelet.prepare(late)["uid-late"].error
    assert node.place.cdi_files() == []


def test_what_the_label_left_out_stays_so_while_the_api_server_is_away(node: ProcessNode) -> None:
    set_label(node, "2")
    start(node)
    wait_published(node, *OTHERS)
    node.driver.stop()
    node.api.fail(status=503, times=math.inf)
    node.driver.start()
    line = node.driver.wait_log("gpu left out")["gpu"]
    assert line.endswith(f'"2" of label {LABEL}')
