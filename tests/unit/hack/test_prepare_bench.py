"""The prepare benchmark: what is measured between steps, and what is made of the numbers."""

import itertools
import os
import subprocess
import sys
import time

from bench.timings import at_once, cpu_seconds


def test_what_a_meter_counts_is_told_per_call_and_by_step() -> None:
    """Each reading adds one: two steps of two callers in five rounds have it read eleven times."""
    readings = itertools.count()
    steps = [[lambda: None, lambda: None]] * 2

    taken = at_once(steps, 5, meter=lambda: float(next(readings)))

    assert taken.used == [0.5, 0.5]
    assert [len(times) for times in taken.times] == [10, 10]
    assert next(readings) == 11


def test_the_cpu_time_of_another_process_is_that_of_all_its_threads() -> None:
    program = (
        "import threading, time\n"
        "def work():\n"
        "    while time.thread_time() < 0.1: pass\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start(); thread.join()\n"
        "print(time.process_time(), flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = float(process.stdout.readline())
        seen = cpu_seconds(process.pid)
        process.stdin.close()
    assert seen >= told >= 0.1

    before = time.process_time()
    assert before <= cpu_seconds(os.getpid()) <= time.process_time()
