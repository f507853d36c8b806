"""The supervisor's lock."""

from pathlib import Path

from dra_driver.mps.lock import SupervisorLock, running_supervisor


def test_who_holds_the_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = SupervisorLock(path), SupervisorLock(path)
    assert running_supervisor(path) is None
    assert first.take("first")
    assert running_supervisor(path) == "first"
    assert not second.take("second")
    first.release()
    assert running_supervisor(path) is None
    assert second.take("second")
    assert running_supervisor(path) == "second"
    second.release()
