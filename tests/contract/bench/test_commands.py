"""Commands of the user's own: held until a common moment, timed from it, their latencies read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench_processes import command, runner
from bench_reports import strategy
from dra_driver.bench import commands, lines
from dra_driver.bench.strategies import Sharing
from dra_driver.bench.tenant.supervised import uptime
from dra_driver.bench.workload import LatencyForm

OURS = (sys.executable, "-m", "dra_driver.bench.tenant.supervised", "--start")
LINE = '{"p50_ms": 4, "p99_ms": 9, "count": 1000}'


def held(by: str, start: Path, *words: str) -> tuple[str, ...]:
    if by == "sh":
        return commands.held_by_sh(str(start), words)
    return (*OURS, str(start), *words)


@pytest.mark.parametrize("by", ["sh", "ours"])
def test_commands_begin_at_the_same_moment_and_say_how_long_they_took(
    by: str, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    start.touch()  # as the kubelet shows an annotation that is not there yet
    words = held(by, start, "sh", "-c", "read up _ </proc/uptime; printf $up; sleep 0.2; exit 3")
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/pipe"}
    running = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    for one in running:
        assert one.stdout is not None
        ready = next(said for line in one.stdout if (said := lines.heard(line.strip())))
        assert isinstance(ready, lines.Ready)
        assert ready.mps == "/pipe"
        assert ready.at <= uptime() + 0.01
    moment = round(uptime() + 0.5, 3)
    (tmp_path / "new").write_text(f"{moment:.3f}")
    (tmp_path / "new").rename(start)
    for one in running:
        said, _ = one.communicate(timeout=30)
        own, ended = said.split()[0], lines.heard(said.split()[-1])
        assert one.returncode == 3
        assert float(own) >= moment - 0.01
        assert isinstance(ended, lines.Ended)
        assert ended.began == pytest.approx(moment + ended.late_seconds, abs=0.002)
        assert 0.19 <= ended.seconds < 20


@pytest.mark.parametrize(
    ("script", "form", "metric"),
    [
        (f"echo '{LINE}'", "json", ""),
        (f"echo '{LINE}' >{{latencies}}; echo '{{\"p50_ms\": 0}}'", "json", ""),
        (
            'printf \'a_ms{quantile="0.5"} 4\\na_ms{quantile="0.99"} 9\\na_ms_count 1000\\n\'',
            "prometheus",
            "a_ms",
        ),
    ],
)
def test_latencies_are_read_from_the_output_or_a_file_of_each_tenants_own(
    script: str, form: str, metric: str, tmp_path: Path
) -> None:
    work = command(
        "sh", "-c", f"sleep 0.5; {script}", latencies=LatencyForm(form), latency_metric=metric
    )
    case = runner(tmp_path).run(strategy(Sharing.TIME_SLICING, 2, work), 1)
    assert case.state == "measured", case.reason
    for tenant in case.tenants:
        assert tenant.result is not None
        assert tenant.result.latency is not None
        assert (tenant.result.latency.p50_ms, tenant.result.latency.p99_ms) == (4, 9)
        assert tenant.result.throughput == pytest.approx(1000 / tenant.result.seconds)
        assert tenant.result.unit == "requests"
        assert tenant.result.seconds >= 0.5


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo hello", "its latencies cannot be read: there is no line of JSON"),
        ("echo '{\"p50_ms\": 1}'", "p99_ms: Field required: '{\"p50_ms\": 1}'"),
        ("true {latencies}", "it has not written its latencies to {latencies}: No such file"),
    ],
)
def test_a_command_without_reported_latencies_has_no_result(
    script: str, why: str, tmp_path: Path
) -> None:
    work = command("sh", "-c", script, latencies="json")
    case = runner(tmp_path).run(strategy(Sharing.ALONE, work=work), 1)
    assert case.state == "failed"
    assert why in case.reason
