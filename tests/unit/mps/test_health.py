"""What a daemon says of its servers, and when it has been ill for too long."""

from collections.abc import Sequence

import pytest

from clock import Clock
from dra_driver.mps.daemon.health import Liveness, server_fault, server_states
from dra_driver.mps.domain import Daemon

ONE, OTHER = Daemon(pid=1, start_ticks=1), Daemon(pid=2, start_ticks=2)


@pytest.mark.parametrize(
    ("servers", "statuses", "at_fault"),
    [
        (["100.0"], {}, None),
        (["Server not found", "100.0"], {}, None),
        (["41"], {"41": ["ACTIVE"]}, None),
        (["41"], {"41": ["INITIALIZING"]}, None),
        (["41"], {"41": []}, None),
        (["41"], {"41": ["FAULT"]}, "41"),
        (["41", " 42 "], {"41": ["ACTIVE"], "42": [" FAULT"]}, "42"),
    ],
)
def test_a_server_in_fault_is_found(
    servers: list[str], statuses: dict[str, list[str]], at_fault: str | None
) -> None:
    def ask(commands: Sequence[str]) -> list[str]:
        command = commands[0]
        name, _, pid = command.partition(" ")
        return servers if name == "get_server_list" else statuses[pid]

    said = server_fault(server_states(ask))
    assert bool(said) == (at_fault is not None)
    assert at_fault is None or f"the MPS server (PID {at_fault}) is in state FAULT" in said


def test_ill_health_lasts_until_recovery_or_a_new_daemon() -> None:
    clock = Clock()
    liveness = Liveness(clock, replace_after=60.0)
    assert not liveness.must_replace()
    assert not liveness.note(ONE, "it does not answer")
    clock.now += 59
    assert liveness.note(ONE, "its server is in FAULT")
    assert not liveness.must_replace()
    clock.now += 1
    assert liveness.must_replace()
    assert liveness.reason == "its server is in FAULT"
    assert not liveness.note(OTHER, "it does not answer")
    assert not liveness.must_replace()
    clock.now += 60
    assert liveness.must_replace()
    assert liveness.note(OTHER, "")
    assert not liveness.must_replace()
    assert not liveness.note(OTHER, "it does not answer")


def test_with_replacement_off_no_daemon_is_replaced() -> None:
    clock = Clock()
    liveness = Liveness(clock, replace_after=0.0)
    liveness.note(ONE, "its server is in FAULT")
    clock.now += 10**9
    assert not liveness.must_replace()
    assert liveness.reason == "its server is in FAULT"
