"""When something that is wrong with a GPU begins to count, passes, and comes back."""

import pytest

import make
from dra_driver.devices.health import findings
from dra_driver.devices.health.debounce import (
    GpuCondition,
    GpuConditions,
    after_absence,
    after_look,
    in_force,
    with_finding,
)
from dra_driver.devices.health.findings import Cause, examined, of_xid, out_of_reach
from dra_driver.devices.model import InstanceId, SickGpu, Vitals

SETTLE = 60
WELL = Vitals(recovery_action=0, rows_pending=False, rows_failed=False, uncorrected=0, slowdown=0)
OLD_AND_WELL = Vitals(rows_pending=False, rows_failed=False, uncorrected=0, slowdown=0)
"""What a driver says that knows of no recovery action."""
LOST = SickGpu(index=0, reason="lost", is_lost=True)


def look(
    conditions: GpuConditions, vitals: Vitals, now: int, instances: set[int] | None = None
) -> GpuConditions:
    return after_look(conditions, examined(vitals), instances, now, SETTLE)


def lose(conditions: GpuConditions, now: int) -> GpuConditions:
    return after_look(conditions, out_of_reach(LOST), None, now, SETTLE)


def xid(
    conditions: GpuConditions, number: int, now: int, instance: InstanceId | None = None
) -> GpuConditions:
    finding = of_xid(number)
    assert finding is not None
    return with_finding(conditions, finding, instance, now, SETTLE)


def values(conditions: GpuConditions) -> list[str]:
    return [one.finding.value or one.finding.cause for one in in_force(conditions)]


def test_a_finding_counts_at_once_and_ends_after_a_good_minute() -> None:
    sick = look((), Vitals(recovery_action=1), 1000)
    assert values(sick) == ["gpu-reset"]
    assert in_force(sick)[0].since == 1000
    for now in (1030, 1060):
        sick = look(sick, WELL, now)
        assert values(sick) == ["gpu-reset"]
    assert values(look(sick, WELL, 1090)) == []


@pytest.mark.parametrize("hours", [-9, 2])
def test_it_ends_after_a_good_minute_despite_a_changed_clock(hours: int) -> None:
    sick = look((), Vitals(recovery_action=1), 1000)
    sick = look(sick, WELL, 1010)
    moved = 1010 + hours * 3600
    if hours < 0:
        sick = look(sick, WELL, moved)
        assert (values(sick), in_force(sick)[0].since) == (["gpu-reset"], 1000)
    passed = look(sick, WELL, moved + SETTLE)
    assert values(passed) == []
    assert values(look(passed, Vitals(recovery_action=1), moved + SETTLE)) == ["gpu-reset"]


def test_it_lasts_once_it_has_for_a_minute_although_the_clock_is_set_back() -> None:
    hot = Vitals(slowdown=0x40)
    sick = look(look((), hot, 100_000), hot, 1000)
    assert values(sick) == []
    assert values(look(sick, hot, 1000 + SETTLE)) != []


def test_a_condition_of_which_only_the_beginning_is_known_is_in_force_and_new() -> None:
    one = GpuCondition(finding=findings.ROWS_FAILED, since=1000)
    assert in_force([one]) == (one,)
    assert (one.instance, one.absent_since, one.was_away) == (None, None, False)


def test_a_recurring_finding_needs_a_full_minute_each_time() -> None:
    sick: GpuConditions = ()
    for began in (0, 1000, 2000):
        sick = look(look(sick, Vitals(recovery_action=1), began), WELL, began + 30)
        assert in_force(sick)[0].since == began
        sick = look(sick, WELL, began + 90)
        assert sick == ()


def test_a_bad_scan_restarts_the_minute_not_the_condition() -> None:
    sick = look((), Vitals(recovery_action=1), 1000)
    sick = look(sick, WELL, 1030)
    sick = look(sick, Vitals(recovery_action=1), 1060)
    sick = look(look(sick, WELL, 1090), WELL, 1120)
    assert values(sick) == ["gpu-reset"]
    assert in_force(sick)[0].since == 1000
    assert values(look(sick, WELL, 1150)) == []


def test_a_scan_without_a_fact_does_not_change_its_condition() -> None:
    sick = look((), Vitals(rows_pending=True, rows_failed=False), 1000)
    for now in range(1030, 2000, 30):
        sick = look(sick, Vitals(recovery_action=0), now)  # as on a GPU with MIG devices
    assert values(sick) == ["pending"]


def test_a_scan_without_the_fact_restarts_its_minute() -> None:
    sick = look((), Vitals(rows_pending=True, rows_failed=False), 1000)
    for vitals, now in ((WELL, 1030), (Vitals(recovery_action=0), 1060), (WELL, 1090)):
        sick = look(sick, vitals, now)
    assert values(sick) != []
    assert values(look(sick, WELL, 1150)) == []


def test_a_slowdown_counts_only_once_it_has_lasted() -> None:
    hot = Vitals(slowdown=0x40)
    slow = look((), hot, 1000)
    assert values(slow) == []
    slow = look(slow, hot, 1030)
    assert values(slow) == []
    slow = look(slow, hot, 1060)
    assert values(slow) == ["thermal"]
    assert in_force(slow)[0].since == 1000


def test_a_short_slowdown_leaves_no_trace() -> None:
    assert look(look((), Vitals(slowdown=0x40), 1000), WELL, 1030) == ()


def test_an_xid_ends_when_the_card_needs_no_recovery_action() -> None:
    sick = xid((), 62, 1000)
    sick = look(sick, Vitals(recovery_action=1), 1001)
    assert values(sick) == ["62", "gpu-reset"]
    sick = look(sick, WELL, 1500)
    assert values(sick) == ["62", "gpu-reset"]
    assert values(look(sick, WELL, 1560)) == []


def test_an_xid_stays_on_drivers_without_recovery_actions() -> None:
    sick = xid((), 62, 1000)
    for now in range(1030, 100_000, 30):
        sick = look(sick, OLD_AND_WELL, now)
    assert values(sick) == ["62"]


def test_an_xid_that_passes_by_itself_does_so_on_every_driver() -> None:
    sick = look(xid((), 92, 1000), OLD_AND_WELL, 1030)
    assert values(sick) == ["92"]
    assert values(look(sick, OLD_AND_WELL, 1090)) == []


def test_a_gpu_that_was_away_and_answers_again_has_been_reset() -> None:
    sick = lose(xid((), 79, 1000), 1001)
    assert values(sick) == ["79", Cause.LOST]
    sick = look(sick, OLD_AND_WELL, 1030)
    assert values(sick) == ["79", Cause.LOST]
    assert values(look(sick, OLD_AND_WELL, 1090)) == []


def test_a_gpu_that_was_taken_out_and_put_back_has_been_reset() -> None:
    sick = after_absence(xid((), 62, 1000))
    sick = look(sick, OLD_AND_WELL, 1030)
    assert values(look(sick, OLD_AND_WELL, 1090)) == []


def test_the_same_xid_after_the_gpu_is_back_is_a_new_one() -> None:
    sick = xid(lose(xid((), 62, 1000), 1001), 62, 1020)
    for now in range(1030, 5000, 30):
        sick = look(sick, OLD_AND_WELL, now)
    assert "62" in values(sick)


def test_the_gravest_comes_first_then_the_oldest() -> None:
    sick = xid(xid(xid((), 92, 1), 48, 2), 62, 3)
    assert values(xid(sick, 79, 4)) == ["79", "48", "62", "92"]


def test_the_current_reason_for_no_answer_stays() -> None:
    silent = after_look(
        (), out_of_reach(SickGpu(index=0, reason="", is_silent=True)), None, 0, SETTLE
    )
    sick = silent
    for now in range(30, 200, 30):
        sick = lose(sick, now)
    assert values(sick) == [Cause.LOST]


def test_an_instances_condition_ends_with_it() -> None:
    mine = InstanceId(gpu_instance=3, compute_instance=0)
    sick = xid((), 62, 1000, mine)
    sick = look(sick, OLD_AND_WELL, 1030, {3, 4})
    assert [one.instance for one in in_force(sick)] == [mine]
    assert look(sick, OLD_AND_WELL, 1060, {4}) == ()


def test_a_look_that_cannot_list_instances_ends_none() -> None:
    sick = xid((), 62, 1000, InstanceId(gpu_instance=3))
    assert values(look(sick, OLD_AND_WELL, 1030, None)) == ["62"]


def test_the_same_xid_on_two_instances_is_two_conditions() -> None:
    sick = xid(xid((), 62, 1, InstanceId(gpu_instance=3)), 62, 2, InstanceId(gpu_instance=4))
    assert values(sick) == ["62", "62"]


def test_a_clock_that_was_set_back_ends_nothing_early() -> None:
    sick = look(look((), Vitals(recovery_action=1), 1000), WELL, 1030)
    assert values(look(sick, WELL, 500)) == ["gpu-reset"]


def test_every_finding_of_a_look_can_pass() -> None:
    for finding in make.findings():
        if finding.cause in findings.POLLED:
            assert finding.cause not in examined(make.vitals()).unanswered
