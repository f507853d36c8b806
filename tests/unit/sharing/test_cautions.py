"""What may end memory limits is told of GPUs whose tenants are limited so, and of no others."""

from dataclasses import dataclass
from typing import cast

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.shares import ShareStrategy
from dra_driver.sharing.memory_groups import MemoryGroups
from dra_driver.sharing.pod_limits import PodLimits
from dra_driver.sharing.share_memory import ShareMemory
from dra_driver.sharing.steps import Backend, MemoryPart

ON, OFF, UNKNOWN = (make.gpu(0, is_persistent=mode) for mode in (True, False, None))


@dataclass
class Pods:
    """Pods that can be limited, or not."""

    reason: str | None = None

    def why_not(self, gpu: GpuUuid) -> str | None:
        return self.reason

    def limit(self, pod: str, gpu: GpuUuid, size: int) -> None:
        raise AssertionError("nobody is limited here")

    def unlimit(self, pod: str, gpu: GpuUuid) -> None:
        raise AssertionError("nobody is limited here")

    def holds(self, pod: str, gpu: GpuUuid, size: int) -> bool:
        raise AssertionError("nobody is limited here")

    def refuse_others(self, gpu: GpuUuid) -> None:
        raise AssertionError("nobody is limited here")

    def admit_others(self, gpu: GpuUuid) -> None:
        raise AssertionError("nobody is limited here")


def memory(pods: Pods, *present: MemoryPart) -> ShareMemory:
    return ShareMemory(MemoryGroups(cast("PodLimits", pods), lambda _: present, is_wanted=True))


def test_without_persistence_mode_limits_may_end() -> None:
    found = memory(Pods()).caution(OFF)
    assert found is not None
    assert found.startswith("persistence mode is off")
    assert found.endswith("run nvidia-persistenced on the node")
    assert memory(Pods()).caution(ON) is None
    assert memory(Pods()).caution(UNKNOWN) is None


@pytest.mark.parametrize(
    ("present", "is_told"), [(Backend.CONTROL_GROUPS, True), (Backend.MPS, False)]
)
def test_what_counts_is_what_the_tenants_are_limited_by(present: Backend, is_told: bool) -> None:
    part = MemoryPart(by=present)
    pods = Pods(reason="no more" if is_told else None)
    assert (memory(pods, part).caution(OFF) is not None) is is_told


def test_where_control_groups_limit_nobody_nothing_is_told() -> None:
    assert memory(Pods(reason="an old driver")).caution(OFF) is None


def test_it_is_logged_once_until_it_has_changed() -> None:
    told = memory(Pods())
    with capture_logs() as lines:
        for gpu in (OFF, OFF, ON, OFF):
            told.caution(gpu)
    assert [line["event"] for line in lines] == ["memory limits can be lost"] * 2
    assert lines[0]["log_level"] == "warning"


def test_what_limits_the_tenants_of_a_gpu_is_said_once() -> None:
    found = memory(Pods(reason="no control groups"))
    with capture_logs() as logs:
        (choice, again) = (
            found.choose(ON, make.place(ON), ShareStrategy.TIME_SLICING) for _ in range(2)
        )
    assert choice == again
    (said,) = logs
    assert said["event"] == "memory enforcement chosen"
    assert (said["gpu"], said["limited_by"]) == (ON.uuid, "nothing")
    assert said["why"] == choice.why == "no control groups; time-slicing divides no memory"
