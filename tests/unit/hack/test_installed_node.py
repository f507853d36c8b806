"""What the testbed says of a driver that was installed by the chart."""

from copy import deepcopy

import pytest
from testbed.api import Object
from testbed.driver import logged
from testbed.installed_node import is_current

READY = {
    "metadata": {"generation": 2},
    "status": {
        "observedGeneration": 2,
        "desiredNumberScheduled": 1,
        "updatedNumberScheduled": 1,
        "numberReady": 1,
        "numberAvailable": 1,
    },
}


def with_status(**changes: int) -> Object:
    daemons: Object = deepcopy(READY)
    daemons["status"] |= changes
    return daemons


def test_a_daemon_set_is_current_once_all_its_pods_are_new_and_ready() -> None:
    assert is_current(with_status())


@pytest.mark.parametrize(
    "changes",
    [
        {"observedGeneration": 1},
        {"desiredNumberScheduled": 0, "updatedNumberScheduled": 0, "numberReady": 0},
        {"updatedNumberScheduled": 0},
        {"numberReady": 0},
        {"numberAvailable": 0},
    ],
)
def test_a_daemon_set_is_not_current_before(changes: dict[str, int]) -> None:
    assert not is_current(with_status(**changes))


def test_a_daemon_set_that_nobody_has_looked_at_is_not_current() -> None:
    assert not is_current({"metadata": {"generation": 1}})


def test_of_a_log_only_whole_lines_of_facts_count() -> None:
    log = b'text\n{"event": "a", "claim": 1}\n{"event": "b"}\n{"event": "a"'
    assert logged(log, "a") == [{"event": "a", "claim": 1}]
    assert [line["event"] for line in logged(log)] == ["a", "b"]
