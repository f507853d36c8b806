"""What the API says of a pod, in a sentence; and what a tenant's line says, or is."""

import time
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from bench_reports import ALONE, strategy
from dra_driver.bench import lines
from dra_driver.bench.gathering import Gathered, case_of
from dra_driver.bench.model import Case, Result, Tenant
from dra_driver.bench.pods.case_pods import CasePods
from dra_driver.bench.pods.pod_status import ended_seconds, termination_message
from dra_driver.bench.strategies import Sharing
from dra_driver.errors import InvalidError, SetupError
from dra_driver.kube.client import KubeClient


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
    assert "did not end" in ended_seconds(0, {"status": {"phase": "Running"}}).failure


def test_a_commands_result_is_complete_or_refused() -> None:
    left = ended(0)
    assert termination_message(left) == ""
    state = left["status"]["containerStatuses"][0]["state"]["terminated"]  # type: ignore[index]
    state["message"] = '{"p50_ms": 1}\n'
    assert termination_message(left) == '{"p50_ms": 1}\n'
    state["message"] = "x" * 4096
    with pytest.raises(SetupError, match="4096 bytes or more"):
        termination_message(left)


def test_commands_are_judged_like_our_own_works() -> None:
    two = strategy(Sharing.TIME_SLICING, 2)
    ready = lines.Ready(at=1.0)
    done = lines.Done(began=1.0, seconds=1.0, steps=5, units=5.0, unit="x")
    worked, ended, broken = (
        Gathered(ready=ready, done=done),
        Tenant(number=1, result=Result(throughput=0.5, unit="runs", seconds=2.0, exit_status=0)),
        Tenant(number=1, failure="its exit status was 3"),
    )
    case = case_of(two, [worked, ended], is_simulated=False)
    assert [tenant.result and tenant.result.throughput for tenant in case.tenants] == [5.0, 0.5]
    lame = case_of(two, [worked, broken], is_simulated=False)
    assert (lame.state, lame.tenants[1].failure) == ("measured", "its exit status was 3")
    assert case_of(two, [worked, ended], is_simulated=True) == Case(strategy=two, state="passed")
    played = case_of(two, [worked, broken], is_simulated=True)
    reason = "the command failed: its exit status was 3"
    assert (played.state, played.reason, played.tenants) == ("failed", reason, ())


def test_results_from_a_simulated_gpu_are_rejected() -> None:
    ready = lines.Ready(at=1.0, is_simulated=True)
    done = lines.Done(began=1.0, seconds=1.0, steps=5, units=5.0, unit="x")
    case = case_of(ALONE, [Gathered(ready=ready, done=done)], is_simulated=False)
    assert (case.state, case.tenants) == ("passed", ())
    silent = case_of(ALONE, [Gathered(ready=ready)], is_simulated=False)
    said = "it was ready, but still ran long after its time was over"
    assert (silent.state, silent.reason) == ("failed", said)
    assert case_of(ALONE, [Gathered()], is_simulated=False).reason == "it was not ready in time"
    killed = Gathered(ready=ready, exit_status=-9, words="the last line")
    reason = case_of(ALONE, [killed], is_simulated=False).reason
    assert reason == "it was killed by SIGKILL: the last line"


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize("seconds", [0, 30])  # the registry may be away for a moment
def test_a_missing_image_is_not_waited_for(reason: str, seconds: int) -> None:
    state = {"waiting": {"reason": reason, "message": "bench:x: not found"}}
    pod = {"status": {"containerStatuses": [{"state": state}]}}

    def log(*_: object, **__: object) -> NoReturn:
        raise InvalidError("container is waiting to start", status=400)

    client = SimpleNamespace(send=log, get=lambda *_, **__: pod)
    pods = CasePods(cast("KubeClient", client), "run", [False])
    pods.launched[0] = time.monotonic() - seconds
    failed = pods.look().heard[0].failed
    is_told = seconds > 0 or reason == "InvalidImageName"
    assert pods.are_settled is is_told
    said = f"its image cannot be pulled: {reason}: bench:x: not found"
    assert (failed and failed.reason) == (said if is_told else None)
