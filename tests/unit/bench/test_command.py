"""The command line: reports are drawn from files; what cannot be is said before anything runs."""

from pathlib import Path

import pytest

from bench_reports import cases, report, sweep
from dra_driver import cli
from dra_driver.bench.model import write_report

PNG = b"\x89PNG\r\n\x1a\n"


def test_reports_are_drawn_below_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    few = (cases()[0], cases()[-1])
    write_report(report(cases=few), one)
    write_report(report(where="processes", sweep=sweep(), cases=few), other)
    files = [str(one), str(other)]
    assert cli.main(["bench", "report", *files, "--name", str(tmp_path / "both")]) == 0
    text = (tmp_path / "both.html").read_text()
    assert text.count("<svg") == 2
    assert "pods with claims" in text
    assert "processes of this machine" in text
    for name in ("both.png", "both-2.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    out = capsys.readouterr().out
    # Two tables of each, and one of both beside each other.
    lines = [line for line in out.splitlines() if line.startswith("7 by MIG 1g.10gb ")]
    assert len(lines) == 5
    assert "20 %: 5 by MPS with 20 %: 41 ms, holds" in out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["report"], 2, "FILE is missing"),
        (["report", "/absent.json"], 1, "/absent.json cannot be read"),
        (["pods"], 2, "--image"),
        (
            ["pods", "--image=x", "--pull-secret=secret"],
            2,
            "must be the NAMESPACE/NAME of a Secret",
        ),
        (["processes", "--scenario=light-beside-heavi"], 1, 'did you mean "light-beside-heavy"?'),
        (["processes", "--name", "/absent/bench"], 1, "/absent is not writable"),
        (["processes", "--name", "."], 1, "name the files, too"),
        (["processes", "--nvidia-driver-root", "/absent"], 1, "libnvidia-ml.so.1 not found"),
    ],
)
def test_impossible_options_are_reported(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == status
    assert said in capsys.readouterr().err
