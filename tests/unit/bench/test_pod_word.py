"""What the API says of a pod, in a sentence; and what a tenant's line says, or is."""

import pytest

from dra_driver.bench import lines
from dra_driver.bench.gathering import Gathered, case_of
from dra_driver.bench.pod_word import ended_seconds, why_not_running
from dra_driver.bench.strategies import ALONE
from dra_driver.errors import DeviceError


def ended(code: int) -> dict[str, object]:
    state = {
        "exitCode": code,
        "startedAt": "2026-11-22T12:00:00Z",
        "finishedAt": "2026-11-22T12:00:50Z",
    }
    return {"status": {"containerStatuses": [{"state": {"terminated": state}}]}}


def test_a_command_is_timed_from_its_containers_start_to_its_end() -> None:
    result = ended_seconds(0, ended(0)).result
    assert result is not None
    assert (result.seconds, result.throughput) == (50.0, 0.02)
    assert ended_seconds(0, ended(3)).failure == "its exit status was 3"
    assert "had not ended" in ended_seconds(0, {"status": {"phase": "Running"}}).failure


def test_the_last_warning_says_why_a_pod_does_not_run() -> None:
    message = "0/1 nodes are available: cannot allocate all claims"
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    pod = {"status": {"phase": "Pending", "conditions": [condition]}}
    assert why_not_running(pod, {"items": []}) == message
    events = {"items": [{"note": "first"}, {"note": "Failed to prepare: gpu-3 is lost"}]}
    assert why_not_running(pod, events) == "Failed to prepare: gpu-3 is lost"
    assert why_not_running({}, {}) == "it is not known"


def test_lines_of_others_are_passed_over_and_wrong_ones_of_ours_are_errors() -> None:
    said = lines.Waiting(at=1.5)
    assert lines.heard(lines.line(said)) == said
    assert lines.heard("CUDA says hello") is None
    with pytest.raises(DeviceError, match="of another version"):
        lines.heard('{"bench":1,"event":"done","began":"now"}')


def test_who_says_that_it_worked_on_a_simulated_gpu_is_not_believed() -> None:
    ready = lines.Ready(at=1.0, is_simulated=True)
    done = lines.Done(began=1.0, seconds=1.0, steps=5, units=5.0, unit="x")
    case = case_of(ALONE, [Gathered(ready=ready, done=done)], is_simulated=False)
    assert (case.state, case.tenants) == ("passed", ())
    silent = case_of(ALONE, [Gathered(ready=ready)], is_simulated=False)
    assert (silent.state, silent.reason) == ("failed", "it said nothing in time")
