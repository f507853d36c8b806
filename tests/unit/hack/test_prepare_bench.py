"""The prepare benchmark: what is measured between steps, and what is made of the numbers."""

import itertools
import os
import subprocess
import sys
import time

from bench.prepare.report import compared, in_short, lines
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


def test_a_run_is_told_as_a_table() -> None:
    times = {
        "prepare": {"p50_ms": 4.0, "p99_ms": 8.0},
        "prepare_again": {"p50_ms": 1.0, "p99_ms": 2.0},
        "unprepare": {"p50_ms": 1.5, "p99_ms": 3.0},
    }
    cpu = {"prepare": 0.003, "prepare_again": 0.001, "unprepare": 0.0015}

    short = in_short(times, cpu)

    assert short == {
        "again_to_first": 0.25,
        "driver_cpu_ms": {
            "prepare": 3.0,
            "prepare_again": 1.0,
            "unprepare": 1.5,
            "prepare_and_unprepare": 4.5,
        },
    }
    result = {
        "cases": [
            {
                "config": "exclusive",
                "callers": 1,
                "prepared": 0,
                **times,
                **short,
                "yardsticks": {"floor_ms": 2.0},
            }
        ],
        "after_100_in_a_row": {"p50_ms": 7.0, "p99_ms": 9.0},
        "start_to_registered_s": {"p50": 0.3, "worst": 0.4, "cpu": 0.25},
        "resident_memory_mib": {"idle": 60.0, "peak": 70.0},
    }
    head, row, start, in_a_row, memory = lines(result)
    assert head.split("  ")[0] == "config"
    assert row.split() == [
        *("exclusive", "1", "0", "4.00", "/", "8.00", "2.00", "1.00", "0.25", "1.50"),
        *("3.00", "1.00", "1.50", "4.50"),
    ]
    assert start == "start to registered: 0.3 s, of it CPU time 0.25 s"
    assert in_a_row == "a prepare after 100 in a row: 7.0 ms, 9.0 at most"
    assert memory == "resident memory: 60.0 MiB idle, 70.0 MiB at most"

    slower = result | {"after_100_in_a_row": {"p50_ms": 21.0, "p99_ms": 22.0}}
    compared_rows = list(compared({"one": [result], "other": [slower, slower, result]}))
    assert compared_rows[0].split() == ["one", "other"]
    (queue,) = (row for row in compared_rows if row.startswith("after 100 in a row"))
    assert queue.split("  ")[-1].strip() == "21 (3)"  # the median of its turns, and its ratio
