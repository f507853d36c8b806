"""Which of several drivers of this name on a node publishes, by the files that they leave."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.kubelet.rivals import FOLDER, Rivals


@contextmanager
def listening(path: Path) -> Iterator[Rivals]:
    """A driver that listens at a path."""
    driver = Rivals(path)
    driver.appear()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield driver
    path.unlink()


def test_the_registration_time_is_monotonic(tmp_path: Path) -> None:
    driver = Rivals(tmp_path / "dra.sock")
    driver.appear()
    driver.registered()
    since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert 0 <= since_boot - int((tmp_path / FOLDER / "dra.sock").read_text()) < 60 * 10**9


def test_a_driver_that_ends_leaves_the_file_of_the_one_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    former = Rivals(path)
    former.appear()
    with listening(path):
        former.leave()
        assert [one.name for one in (tmp_path / FOLDER).iterdir()] == [path.name]
    former.leave()
    assert [*(tmp_path / FOLDER).iterdir()] == []
