"""Runs programs, with errors that say what failed."""

import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]

T = TypeVar("T")


class TestbedError(Exception):
    """Something outside the driver failed; the text says what."""

    __test__ = False  # keeps pytest from taking it for a test


def run(
    command: Sequence[str | Path],
    *,
    timeout: float = 120,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
) -> str:
    """Run a program and return its standard output.

    Raises TestbedError if it failed, is missing or took longer than `timeout` seconds, with its
    output.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            check=False,
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise TestbedError(f"{words[0]} is missing") from error
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"no end within {timeout:.0f} s: {shlex.join(words)}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-3000:]
        raise TestbedError(f"status {done.returncode} of {shlex.join(words)}:\n{said}")
    return done.stdout


def stream(command: Sequence[str | Path], tell: Callable[[str], None], *, timeout: float) -> None:
    """Run a program and report each line when it prints it.

    Raises TestbedError if it failed or took longer than `timeout` seconds, with its last output.
    """
    words = [str(word) for word in command]
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY
    ) as process:
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            for line in process.stdout or ():
                last.append(line)
                tell(line.rstrip())
        except BaseException:
            process.terminate()  # otherwise the end of the block would wait for it
            raise
        finally:
            timer.cancel()
    if process.returncode:
        said = "".join(last).strip()
        raise TestbedError(f"status {process.returncode} of {shlex.join(words)}:\n{said}")


def wait_until(
    look: Callable[[], T | None], what: str, *, timeout: float, interval: float = 0.25
) -> T:
    """Call `look` until it returns something true, and return that.

    Raises TestbedError if nothing true came within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() >= end:
            raise TestbedError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(interval)
