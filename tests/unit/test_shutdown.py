"""What ends a process that runs until it is told to stop."""

import os
import queue
import signal
import threading
from collections.abc import Iterator

import pytest

from dra_driver.host.process import THREAD_DIED, Shutdown, ShutdownReason


@pytest.fixture
def shutdown() -> Iterator[Shutdown]:
    """One that watches for everything; afterwards the process is as it was."""
    watched = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in watched}
    hook = threading.excepthook
    shutdown = Shutdown()
    shutdown.watch_signals()
    shutdown.watch_threads()
    yield shutdown
    threading.excepthook = hook
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.close(shutdown._woken)  # which the program keeps until its end
    os.close(shutdown._wake)


def die(name: str) -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name=name)
    thread.start()
    thread.join()


def test_a_thread_that_dies_ends_the_process(shutdown: Shutdown) -> None:
    die("inventory")
    assert shutdown.wait(10) == THREAD_DIED
    assert THREAD_DIED.exit_status == 1


def test_the_thread_that_died_is_named_in_the_log(
    shutdown: Shutdown, capsys: pytest.CaptureFixture[str]
) -> None:
    die("inventory")
    said = "".join(capsys.readouterr())
    assert "thread died" in said
    assert "inventory" in said
    assert "ZeroDivisionError" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(shutdown: Shutdown, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert shutdown.wait(10) == ShutdownReason(text=number.name, exit_status=0)


def test_the_first_reason_counts(shutdown: Shutdown) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    die("inventory")
    assert shutdown.wait(10).exit_status == 0


def test_without_a_reason_it_goes_on(shutdown: Shutdown) -> None:
    with pytest.raises(queue.Empty):
        shutdown.wait(0.01)


def test_no_signal_is_lost_while_the_main_thread_falls_asleep(shutdown: Shutdown) -> None:
    # One in a hundred comes in that moment, when the main thread has let go of the interpreter.
    for _ in range(500):
        is_waiting = threading.Event()

        def send(about_to: threading.Event = is_waiting) -> None:
            while not about_to.is_set():
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        sender = threading.Thread(target=send)
        sender.start()
        is_waiting.set()
        assert shutdown.wait(20).text == "SIGTERM"
        sender.join()
