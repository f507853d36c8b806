"""Time-slices by the real nvidia-smi and compute modes by NVML, on simulated GPUs."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import ConfigError, DeviceError
from dra_driver.sharing import nvidia_smi
from worlds.api import ClaimApi
from worlds.configs import HALF, LONG
from worlds.node import MakeNode, Node

EXCLUSIVE_PROCESS = 3
MEDIUM = 2


def sharing(interval: str | None = None) -> dict[str, Any]:
    if interval is None:
        return {"strategy": "TimeSlicing"}
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def smi_runs(node: Node, script: str) -> Path:
    """Put a script in the place of nvidia-smi, which notes that it ran; `$REAL` is the real one."""
    program = node.machine.nvidia_smi
    real = program.with_name("nvidia-smi.real")
    if not real.exists():
        program.rename(real)
    runs = node.root / "runs"
    program.unlink(missing_ok=True)
    program.write_text(f'#!/bin/sh\nREAL={real}\necho "$@" >> {runs}\n{script}\n')
    program.chmod(0o755)
    return runs


@pytest.mark.parametrize(("interval", "number"), [("Short", 1), ("Medium", 2), ("Long", 3)])
def test_an_interval_is_set_and_reset(node: Node, interval: str, number: int) -> None:
    ref = node.claim_gpus({"a": sharing(interval), "b": sharing(interval), "c": None})
    node.driver.prepare(ref)
    assert node.time_slices() == {0: number, 1: number}
    node.driver.unprepare(ref)
    assert node.left() == []


@pytest.mark.parametrize("again", ["the same claim", "another claim"])
def test_a_time_slice_of_a_claim_whose_record_is_lost_does_not_stay(node: Node, again: str) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    (record,) = node.root.rglob("plugin/claims/*.json")
    record.write_text("damaged")
    node.restart()
    if again == "another claim":
        node.driver.api.claims.clear()
        ref = node.claim_gpus({"a": LONG}, name="next")
    node.driver.prepare(ref)
    assert node.time_slices() == {0: 3}
    node.driver.unprepare(ref)
    assert node.time_slices() == {}


def test_the_compute_mode_is_default_while_shared(node: Node) -> None:
    node.set_compute_mode(0, EXCLUSIVE_PROCESS)
    node.set_compute_mode(1, EXCLUSIVE_PROCESS)
    ref = node.claim_gpus({"a": LONG, "b": None})
    node.driver.prepare(ref)
    assert node.compute_modes() == {1: EXCLUSIVE_PROCESS}
    node.driver.unprepare(ref)
    assert node.compute_modes() == {0: EXCLUSIVE_PROCESS, 1: EXCLUSIVE_PROCESS}
    assert node.time_slices() == {}


def test_containers_do_not_see_time_slicing(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    assert node.driver.env(ref, "gpu-0") == {}
    assert node.driver.mounts(ref, "gpu-0") == {}


@pytest.mark.parametrize("config", [sharing(), sharing("Default")])
def test_a_gpu_that_has_the_default_interval_keeps_it(node: Node, config: dict[str, Any]) -> None:
    runs = smi_runs(node, 'exec "$REAL" "$@"')
    ref = node.claim_gpus({"a": config})
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert runs.read_text() == f"compute-policy -i {node.uuid(0)} -l\n"


@pytest.mark.parametrize("interval", ["Default", "Short", "Medium", "Long"])
def test_the_time_slice_of_an_admin_is_restored(node: Node, interval: str) -> None:
    admins = {number: number for number in range(1, 4)}
    for minor in range(4):
        node.set_time_slice(minor, minor)
    ref = node.claim_gpus(dict.fromkeys("abcd", sharing(interval)))
    node.driver.prepare(ref)
    number = ["Default", "Short", "Medium", "Long"].index(interval)
    assert node.time_slices() == (dict.fromkeys(range(4), number) if number else {})
    node.driver.unprepare(ref)
    assert node.time_slices() == admins
    node.driver.prepare(ref)
    node.restart()
    node.driver.unprepare(ref)
    assert node.time_slices() == admins


def test_nvidia_smi_is_run_only_to_set_what_is_to_change_from_claim_to_claim(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    runs = smi_runs(node, 'exec "$REAL" "$@"')
    for interval in ("Long", "Short", None):
        ref = node.claim_gpus({"a": sharing(interval)}, name=f"next-{interval}")
        node.driver.prepare(ref)
        node.driver.unprepare(ref)
    numbers = [line.rpartition("-timeslice=")[2] for line in runs.read_text().splitlines()]
    assert numbers == ["3", "0", "1", "0"]
    assert node.left() == []


def test_a_time_slice_that_was_set_a_while_ago_is_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    node.set_time_slice(0, MEDIUM)
    monkeypatch.setattr(nvidia_smi, "RECENT_SECONDS", 0.0)
    node.driver.prepare(ref)
    assert node.time_slices() == {0: 3}
    node.driver.unprepare(ref)
    assert node.time_slices() == {0: MEDIUM}


@pytest.mark.parametrize("changed", [0, MEDIUM])
def test_a_claims_time_slice_stands_although_somebody_changed_it_a_moment_ago(
    node: Node, changed: int
) -> None:
    node.set_time_slice(0, 3)
    ref = node.claim_gpus({"a": sharing("Short")})
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    node.set_time_slice(0, changed)
    ref = node.claim_gpus({"a": LONG}, name="after")
    node.driver.prepare(ref)
    assert node.time_slices() == {0: 3}
    node.driver.unprepare(ref)
    assert node.time_slices() == ({0: changed} if changed else {})


def test_the_time_slice_of_an_admin_outlasts_resets_that_fail(node: Node) -> None:
    node.set_time_slice(0, MEDIUM)
    for name, interval, number in (("first", "Long", 3), ("second", "Short", 1)):
        ref = node.claim_gpus({"a": sharing(interval)}, name=name)
        node.driver.prepare(ref)
        node.machine.fail_call("nvidia-smi:set-timeslice", 999)
        node.driver.unprepare(ref)
        assert node.time_slices() == {0: number}
        assert [strategy for strategy, _ in node.driver.cleanups(ref)] == ["TimeSlicing"]
        node.machine.clear_faults()
        if name == "first":  # the second claim cannot clean up after it
            node.machine.fail_call("nvidia-smi:set-timeslice", 999, times=1)
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.time_slices() == {0: MEDIUM}
    assert node.driver.left() == []


@pytest.mark.parametrize("said", ["exit 1", "echo '| 0 Timeslice Eternal |'"])
def test_an_unreadable_time_slice_is_logged_and_becomes_default(node: Node, said: str) -> None:
    node.set_time_slice(0, MEDIUM)
    smi_runs(node, f'case "$*" in *-l) {said};; *) exec "$REAL" "$@";; esac')
    with capture_logs() as logs:
        for _ in range(2):
            ref = node.claim_gpus({"a": LONG})
            node.driver.prepare(ref)
            assert node.time_slices() == {0: 3}
            node.driver.unprepare(ref)
            assert node.time_slices() == {}
    warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warnings == ["time-slice not read, taken for the default"]


def test_a_repeated_prepare_sets_nothing(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    runs = smi_runs(node, 'exec "$REAL" "$@"')
    node.driver.prepare(ref)
    assert not node.driver.reconciler(ReconcileTiming()).mend()
    assert not runs.exists()


def test_nvidia_smi_gets_a_clean_environment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "none")
    smi_runs(node, f'env > {node.root}/env; exec "$REAL" "$@"')
    node.driver.prepare(node.claim_gpus({"a": LONG}))
    names = {line.partition("=")[0] for line in (node.root / "env").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "LD_PRELOAD", "PWD", "SHLVL", "_"}
    assert node.time_slices() == {0: 3}


def test_a_card_without_time_slices_is_refused_and_nothing_is_left(make_node: MakeNode) -> None:
    node = make_node("mixed")
    (card,) = [gpu for gpu in node.inventory.gpus if gpu.product_name == "Tesla P4"]
    for mode in (0, EXCLUSIVE_PROCESS):
        node.set_compute_mode(card.minor, mode)
        ref = node.claim_gpus({"a": LONG}, first=card.minor)
        with pytest.raises(ConfigError) as caught:
            node.driver.prepare(ref)
        assert str(caught.value) == (
            f"time-slice interval Long cannot be set on gpu-{card.minor} (Tesla P4, {card.uuid}): "
            "Not Supported; use interval Default, or select a GPU that can: "
            "device.attributes['gpu.nvidia.com'].cudaComputeCapability"
            ".compareTo(semver('7.0.0')) >= 0"
        )
        assert node.compute_modes() == ({card.minor: mode} if mode else {})
        assert node.driver.cleanups(ref) == []
        assert node.driver.left() == []


def test_a_card_without_time_slices_has_the_default_one(make_node: MakeNode) -> None:
    node = make_node("mixed")
    (card,) = [gpu for gpu in node.inventory.gpus if gpu.product_name == "Tesla P4"]
    ref = node.claim_gpus({"a": sharing()}, first=card.minor)
    node.driver.prepare(ref)
    node.driver.unprepare(ref)
    assert node.left() == []


def test_a_card_without_time_slices_is_refused_before_anything_is_changed(
    make_node: MakeNode,
) -> None:
    node = make_node("mixed")
    names = {gpu.minor: gpu.product_name for gpu in node.inventory.gpus}
    assert (names[1], names[2]) == ("NVIDIA L4", "Tesla P4")
    node.set_compute_mode(1, EXCLUSIVE_PROCESS)
    runs = smi_runs(node, 'exec "$REAL" "$@"')
    for beside in (LONG, HALF):
        ref = node.claim_gpus({"a": beside, "b": LONG}, first=1)
        with pytest.raises(ConfigError, match=r"Long cannot be set on gpu-2 .*: Not Supported"):
            node.driver.prepare(ref)
        assert node.left() == ["compute mode of gpu-1"]
        assert not list(node.mps.files.desired_folder.glob("*"))
    assert {line.split()[-1] for line in runs.read_text().splitlines()} == {
        "-l",
        "--set-timeslice=0",
    }


def test_one_gpu_that_refuses_takes_back_the_others(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG, "b": LONG, "c": LONG})
    node.driver.prepare(ref)  # all three are known to have time-slices from here on
    node.driver.unprepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999, uuid=node.uuid(1), times=1)
    with pytest.raises(DeviceError, match=r"cannot set the time-slice of GPU-.*Unknown Error"):
        node.driver.prepare(ref)
    assert node.left() == []
    node.driver.prepare(ref)
    assert node.time_slices() == {0: 3, 1: 3, 2: 3}


def test_a_reset_that_fails_does_not_block_unprepare_and_is_retried(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG, "b": LONG})
    node.driver.prepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999, uuid=node.uuid(0), times=2)
    node.driver.unprepare(ref)
    assert node.time_slices() == {0: 3}
    ((strategy, reason),) = node.driver.cleanups(ref)
    assert strategy == "TimeSlicing"
    assert "Unknown Error" in reason
    assert node.driver.claims.release.count_pending() == {"TimeSlicing": 1}
    assert not node.driver.specs.exists(ref.uid)

    reconciler = node.driver.reconciler(ReconcileTiming())
    assert reconciler.mend() == {ref.uid}
    assert node.driver.failed_undos == ["TimeSlicing", "TimeSlicing"]
    assert reconciler.mend() == set()
    assert node.left() == []


def test_the_next_claim_of_the_gpu_retries_pending_cleanup(node: Node) -> None:
    node.set_compute_mode(0, EXCLUSIVE_PROCESS)
    ref = node.claim_gpus({"a": LONG, "b": LONG})
    node.driver.prepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999, times=2)
    node.driver.unprepare(ref)
    assert [strategy for strategy, _ in node.driver.cleanups(ref)] == ["TimeSlicing", "TimeSlicing"]
    assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
    other = node.claim_gpus({"a": None}, name="other")
    node.driver.prepare(other)
    assert node.time_slices() == {1: 3}
    assert len(node.driver.cleanups(ref)) == 1
    node.driver.unprepare(other)
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.compute_modes() == {0: EXCLUSIVE_PROCESS}
    assert node.time_slices() == {}
    assert node.driver.left() == []


def test_a_failed_cleanup_does_not_block_the_next_claim(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999)
    node.driver.unprepare(ref)
    other = node.claim_gpus({"a": None}, name="other")
    node.driver.prepare(other)
    assert len(node.driver.cleanups(ref)) == 1
    node.machine.clear_faults()
    assert node.driver.reconciler(ReconcileTiming()).mend() == {ref.uid}, (
        "the GPU is another claim's now"
    )
    assert node.time_slices() == {0: 3}
    node.driver.unprepare(other)
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_a_claim_prepared_again_keeps_its_pending_cleanup(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.machine.fail_call("nvidia-smi:set-timeslice", 999, times=2)
    node.driver.unprepare(ref)
    node.driver.api.claims.clear()
    again = node.claim_gpus({"a": None})
    assert again == ref
    node.driver.prepare(again)
    record = node.driver.claims.ledger.read(ref.uid)
    assert record is not None
    assert record.state is RecordState.PREPARED
    assert len(record.pending) == 1
    node.driver.unprepare(again)
    assert node.left() == []


def test_a_lost_gpu_does_not_block_unprepare(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.machine.lose_gpu(node.uuid(0))
    node.driver.unprepare(ref)
    ((_, reason),) = node.driver.cleanups(ref)
    assert "GPU is lost" in reason
    node.machine.reboot("boot-2")
    node.restart(api=ClaimApi())
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    assert node.left() == []


def test_an_nvidia_smi_that_has_moved_is_found_again(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    program = node.machine.nvidia_smi
    elsewhere = node.machine.driver_root / "usr/sbin" / program.name
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    program.rename(elsewhere)
    node.driver.unprepare(ref)
    assert node.left() == []


def test_after_a_reboot_nothing_is_reset(node: Node) -> None:
    ref = node.claim_gpus({"a": LONG})
    node.driver.prepare(ref)
    node.machine.reboot("boot-2")
    runs = smi_runs(node, 'exec "$REAL" "$@"')
    node.restart()
    assert node.driver.reconciler(ReconcileTiming()).mend() == set()
    node.driver.unprepare(ref)
    assert not runs.exists()
    assert node.left() == []
