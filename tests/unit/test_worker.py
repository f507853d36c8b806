"""A thread starts, is woken and ends, and a lasting reason is logged once."""

import threading

from dra_driver.host.worker import LogOnce, Worker

LONG = 30.0


class Looking(Worker):
    """Looks, and waits for more than a test may take."""

    def __init__(self) -> None:
        super().__init__("looking")
        self.looks = threading.Semaphore(0)
        self.goes_on = threading.Semaphore(0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.looks.release()
            self.goes_on.acquire()
            self._wait(100 * LONG)


def test_a_ring_during_a_look_causes_another() -> None:
    worker = Looking()
    worker.start()
    assert worker.looks.acquire(timeout=LONG)
    worker.ring()
    worker.goes_on.release()
    assert worker.looks.acquire(timeout=LONG)
    worker.goes_on.release()
    assert not worker.looks.acquire(timeout=0.05)
    assert worker.stop(LONG)


def test_stop_tells_whether_the_thread_has_ended() -> None:
    worker = Looking()
    assert worker.stop(0)
    worker = Looking()
    worker.start()
    assert worker.looks.acquire(timeout=LONG)
    assert not worker.stop(0)
    worker.goes_on.release()
    assert worker.stop(LONG)
    assert worker.stop(0)


def test_reasons_of_removed_things_are_forgotten() -> None:
    once = LogOnce()
    assert once.is_new("full", "here")
    assert once.is_new("full", "gone")
    once.keep({"here"})
    assert not once.is_new("full", "here")
    assert once.is_new("full", "gone")
