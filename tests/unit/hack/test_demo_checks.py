"""What the demo runner makes of what they saw."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

HACK = Path(__file__).resolve().parents[3] / "hack"
sys.path.append(str(HACK / "demo"))

import demos  # noqa: E402
from testbed.commands import TestbedError, run, wait_until  # noqa: E402
from testbed.leftovers import end_process, write_pid_file  # noqa: E402
from testbed.machine import GpuSettings  # noqa: E402
from testbed.pods import parse_gpu_list  # noqa: E402

A, B = "GPU-00000000-0000-4000-8000-00000000000a", "GPU-00000000-0000-4000-8000-00000000000b"

USUAL = GpuSettings(compute_mode="Default", time_slice="Default")

DEMO = demos.Demo(
    name="example",
    manifest=Path("demo.yaml"),
    namespace="example",
    gpus={"pod1/ctr": 1, "pod2/ctr": 1},
)


def test_the_list_of_gpus_gives_uuids_in_order() -> None:
    text = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {A})\nGPU 1: Tesla T4 (UUID: {B})\n"
    assert parse_gpu_list(text) == (A, B)


def test_a_container_without_gpus_has_none() -> None:
    assert parse_gpu_list("No devices found.\n") == ()


def test_what_is_no_list_of_gpus_is_an_error_that_shows_it() -> None:
    with pytest.raises(TestbedError, match="Mismatch in versions"):
        parse_gpu_list("Mismatch in versions between nvidia-smi and NVML.")


def test_a_demo_that_saw_what_it_should_has_no_complaints() -> None:
    assert demos.complaints(DEMO, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (B,)})) == []


def test_a_missing_gpu_is_complained_of() -> None:
    (complaint,) = demos.complaints(DEMO, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": ()}))
    assert complaint == "pod2/ctr sees 0 GPUs instead of 1"


def test_equal_groups_must_see_the_same() -> None:
    demo = demos.Demo(
        name=DEMO.name,
        manifest=DEMO.manifest,
        namespace=DEMO.namespace,
        gpus=DEMO.gpus,
        equal=(("pod1/ctr", "pod2/ctr"),),
    )
    assert demos.complaints(demo, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (A,)})) == []
    assert demos.complaints(demo, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (B,)}))


def test_disjoint_groups_must_not_overlap() -> None:
    demo = demos.Demo(
        name=DEMO.name,
        manifest=DEMO.manifest,
        namespace=DEMO.namespace,
        gpus=DEMO.gpus,
        disjoint=(("pod1/ctr", "pod2/ctr"),),
    )
    assert demos.complaints(demo, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (B,)})) == []
    (complaint,) = demos.complaints(demo, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (A,)}))
    assert A in complaint


def sharing(**expected: Any) -> demos.Demo:
    return demos.Demo(
        name="sharing", manifest=Path(), namespace="sharing", gpus={"pod/ctr": 1}, **expected
    )


def found(**facts: Any) -> demos.Found:
    return demos.Found(gpus={"pod/ctr": (A,)}, **facts)


def test_a_variable_must_have_its_value() -> None:
    demo = sharing(env={"pod/ctr": {"NAME": "value", "OTHER": None}})
    assert demos.complaints(demo, found(env={"pod/ctr": {"NAME": "value"}})) == []
    (wrong,) = demos.complaints(demo, found(env={"pod/ctr": {"NAME": "x"}}))
    assert wrong == "pod/ctr has NAME=x instead of value"
    (there,) = demos.complaints(demo, found(env={"pod/ctr": {"NAME": "value", "OTHER": ""}}))
    assert there == "pod/ctr has OTHER= instead of None"


def test_a_missing_mount_is_complained_of() -> None:
    demo = sharing(mounts={"pod/ctr": ("/dev/shm",)})
    assert demos.complaints(demo, found(mounts={"pod/ctr": {"/dev/shm": "tmpfs"}})) == []
    assert demos.complaints(demo, found(mounts={"pod/ctr": {"/": "overlay"}}))


def test_gpus_must_be_set_as_expected() -> None:
    demo = sharing(node={"pod/ctr": USUAL})
    assert demos.complaints(demo, found(node={A: USUAL})) == []
    other = GpuSettings(compute_mode="Default", time_slice="Long")
    (complaint,) = demos.complaints(demo, found(node={A: other}))
    assert "time_slice='Long'" in complaint


def test_the_daemon_must_answer_as_expected() -> None:
    demo = sharing(mps={"pod/ctr": {"get limit": "10G"}})
    assert demos.complaints(demo, found(mps={"pod/ctr": {"get limit": "10G"}})) == []
    assert demos.complaints(demo, found(mps={"pod/ctr": {"get limit": "5G"}}))


def test_an_unknown_demo_names_those_that_are() -> None:
    with pytest.raises(TestbedError, match="whole-gpu"):
        demos.load("no-such-demo")


def test_a_failed_program_says_what_it_said() -> None:
    with pytest.raises(TestbedError, match="not today"):
        run(("sh", "-c", "echo not today >&2; exit 3"))


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(TestbedError, match="for a sign"):
        wait_until(lambda: None, "a sign", timeout=0)


def test_a_process_id_that_was_given_away_is_left_alone(tmp_path: Path) -> None:
    noted = tmp_path / "driver.pid"
    write_pid_file(noted, os.getpid())
    pid, started = noted.read_text().split()
    noted.write_text(f"{pid} {int(started) - 1}\n")
    end_process(noted)  # or this test would end here
    assert not noted.exists()
