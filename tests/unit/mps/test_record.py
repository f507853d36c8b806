"""The supervisor's record of a domain."""

from pathlib import Path

import pytest

from dra_driver.mps.domain import Daemon
from dra_driver.mps.supervisor.lifecycle import DomainRecord, read_record, write_record


def test_a_record_holds_until_the_next_boot(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = DomainRecord(
        boot_id="one", modes_found={"GPU-1": 2}, daemon=Daemon(pid=7, start_ticks=8), restarts=3
    )
    assert read_record(path, "one") is None
    write_record(path, record)
    assert read_record(path, "one") == record
    assert read_record(path, "two") == DomainRecord(boot_id="two", restarts=3)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b'{"version":3}\n'])
def test_a_damaged_record_is_recognised(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(damage)
    record = read_record(path, "one")
    assert record is not None
    assert record.is_damaged
