"""Completion of command lines: in shells, and in kubectl."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver import cli
from dra_driver.admin import completion, program

PYTHON = Path(sys.executable)


def completed(monkeypatch: pytest.MonkeyPatch, line: str) -> int:
    """What a shell's script asks for."""
    monkeypatch.setenv(cli.COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return cli.main([])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dra-driver st", ["plain,status"]),
        ("dra-driver status --ou", ["plain,--output"]),
        ("dra-driver status --output ", ["plain,table", "plain,wide", "plain,json", "plain,yaml"]),
        ("dra-driver simulate fault --roo", ["plain,--root"]),
        ("dra-driver validate pod.y", ["file,pod.y"]),
        ("dra-driver nothing --", [""]),
    ],
)
def test_possible_next_words_are_known(
    line: str, found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(monkeypatch, line) == 0
    assert capsys.readouterr().out.splitlines() == found


def test_bash_completes_a_line_with_its_script(tmp_path: Path) -> None:
    script = tmp_path / "dra-driver"
    script.write_text(f'#!/bin/sh\nexec {PYTHON} -m dra_driver "$@"\n')
    script.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    line = (
        f"PATH={tmp_path}:$PATH; source <(dra-driver completion bash); COMP_WORDS=(dra-driver exp)"
        '; COMP_CWORD=1; _dra_driver_completion dra-driver; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout == "explain\n", done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ex"], ["explain\tsay why a pod or claim does not fit, and what to change", ":4"]),
        (["kub"], [":4"]),
        (["status", "--output", "j"], ["json\t", ":4"]),
        (["validate", "pod"], [":0"]),
    ],
)
def test_kubectl_completes_next_words(
    words: list[str],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-gpu", *words])
    assert completion.kubectl_complete() == 0
    assert capsys.readouterr().out.splitlines() == said


def test_kubectl_gpu_has_what_needs_no_node_and_means_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.kubectl_words(["status", "-o", "wide"]) == ["status", "--cluster", "-o", "wide"]
    assert program.kubectl_words(["explain", "pod/train"]) == ["explain", "pod/train"]
    for name, run in (
        ("usage", "runs on a node: kubectl exec --namespace dra-driver POD -- dra-driver usage"),
        ("bench", "is not a command of kubectl gpu: run dra-driver bench"),
    ):
        monkeypatch.setattr(sys, "argv", ["kubectl-gpu", name])
        assert program.kubectl() == 2
        assert capsys.readouterr().err == f"error: {name} {run}\n"
