"""The supervisor's lock."""

from pathlib import Path

from dra_driver.host.ofd_lock import NamedLock, holder_of


def test_who_holds_the_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = NamedLock(path), NamedLock(path)
    assert holder_of(path) is None
    assert first.take("first")
    assert holder_of(path) == "first"
    assert not second.take("second")
    first.release()
    assert holder_of(path) is None
    assert second.take("second")
    assert holder_of(path) == "second"
    second.release()
