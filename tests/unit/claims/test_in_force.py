"""The divisions in force, as files."""

import os
from pathlib import Path

import pytest

import make
from dra_driver.claims.state.in_force import FILE, DivisionsInForce
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import Placement
from dra_driver.devices.shares import Division, ShareStrategy

GPU = GpuPart(gpu=make.gpu(0).uuid)
MIG = GpuPart(gpu=make.gpu(1).uuid, placement=Placement(start=2, size=1))


def division(count: int, strategy: ShareStrategy = ShareStrategy.MPS) -> Division:
    together = (make.gpu(0).uuid, make.gpu(1).uuid)
    return Division(
        count=count,
        strategy=strategy,
        served_as="nvidia.com/gpu",
        combines=True,
        free_compute=True,
        together=together,
    )


def test_they_outlive_the_driver(tmp_path: Path) -> None:
    wanted = {GPU: division(4), MIG: division(2, ShareStrategy.TIME_SLICING)}
    directory = tmp_path / "plugins" / "gpu.nvidia.com"
    DivisionsInForce(directory).change(wanted)
    assert DivisionsInForce(directory).current() == wanted
    assert (directory / FILE).stat().st_mode & 0o777 == 0o600


def test_a_division_that_ended_is_forgotten_and_others_stay(tmp_path: Path) -> None:
    found = DivisionsInForce(tmp_path)
    found.change({GPU: division(4), MIG: division(2)})
    found.change({GPU: None})
    assert found.current() == {MIG: division(2)} == DivisionsInForce(tmp_path).current()


def test_what_another_driver_of_the_node_has_written_is_read(tmp_path: Path) -> None:
    one, other = DivisionsInForce(tmp_path), DivisionsInForce(tmp_path)
    one.change({GPU: division(4)})
    assert other.current() == {GPU: division(4)}
    other.change({MIG: division(2)})
    assert one.current() == {GPU: division(4), MIG: division(2)}


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"version":2,"sha256":""}'])
def test_a_damaged_file_is_as_none_and_is_written_anew(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    found = DivisionsInForce(tmp_path)
    assert found.current() == {}
    found.change({GPU: division(4)})
    assert DivisionsInForce(tmp_path).current() == {GPU: division(4)}


def test_on_a_disk_that_cannot_be_written_they_hold_as_long_as_the_driver(tmp_path: Path) -> None:
    place = tmp_path / "directory"
    place.write_text("in the way")
    found = DivisionsInForce(place)
    found.change({GPU: division(4)})
    assert found.current() == {GPU: division(4)}
    place.unlink()
    found.change({GPU: division(4)})
    assert DivisionsInForce(place).current() == {GPU: division(4)}


def test_they_hold_too_where_the_disk_fails_after_they_were_written_once(tmp_path: Path) -> None:
    place = tmp_path / "directory"
    found = DivisionsInForce(place)
    found.change({GPU: division(4)})
    place.rename(tmp_path / "lost")
    place.write_text("in the way")
    found.change({GPU: division(2)})
    assert found.current() == {GPU: division(2)}


def test_a_file_that_looks_as_before_is_not_read_again(tmp_path: Path) -> None:
    DivisionsInForce(tmp_path).change({GPU: division(4)})
    found = DivisionsInForce(tmp_path)
    assert found.current() == {GPU: division(4)}
    path = tmp_path / FILE
    seen = path.stat()
    path.write_bytes(b"?" * seen.st_size)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert found.current() == {GPU: division(4)}
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    assert found.current() == {}
