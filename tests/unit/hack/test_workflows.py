"""What holds for each workflow: rights and time are few, and scripts run what is there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workflows

REPOSITORY = workflows.REPOSITORY
JOBS = dict(workflows.jobs())

each_workflow = pytest.mark.parametrize(
    "path", sorted(workflows.WORKFLOWS.iterdir()), ids=lambda path: path.stem
)
each_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())


@each_workflow
def test_actions_are_pinned_to_commits_beside_their_version(path: Path) -> None:
    used = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE)
    assert len(used) >= 4
    for name in used:
        if not name.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", name), name


def test_an_action_has_one_version_everywhere() -> None:
    text = "".join(path.read_text() for path in workflows.WORKFLOWS.iterdir())
    found = set(re.findall(r"uses: ([\w/-]+)(@.*)", text))
    assert len(found) == len({name for name, _ in found})


@each_workflow
def test_rights_are_given_job_by_job(path: Path) -> None:
    found = workflows.workflow(path.stem)
    assert found["permissions"] in ({}, {"contents": "read"})
    assert "pull_request_target" not in found[True]  # YAML 1.1 reads `on` as a boolean
    assert found["concurrency"]["group"]


@each_workflow
def test_a_command_that_fails_in_a_pipe_fails_its_step(path: Path) -> None:
    assert workflows.workflow(path.stem)["defaults"] == {"run": {"shell": "bash"}}


@each_job
def test_no_job_runs_for_hours_or_keeps_the_checkouts_token(job: dict[str, Any]) -> None:
    if "uses" not in job:
        assert 0 < job["timeout-minutes"] <= 120
    for step in workflows.steps(job):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


@each_job
def test_what_a_person_chose_is_never_part_of_a_script(job: dict[str, Any]) -> None:
    # Expressions are replaced before a shell reads them: a tag's name could be a command.
    assert [script for script in workflows.scripts(job) if "${{" in script] == []


@each_job
def test_scripts_are_sound(job: dict[str, Any], tmp_path: Path) -> None:
    program = REPOSITORY / ".venv" / "bin" / "shellcheck"
    found = program if program.exists() else Path(sys.executable).with_name("shellcheck")
    for number, script in enumerate(workflows.scripts(job)):
        path = tmp_path / f"{number}.sh"
        path.write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}")
        done = subprocess.run([found, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, shlex.join(os.fspath(word) for word in done.args) + done.stdout


def test_what_scripts_call_of_this_repository_is_there() -> None:
    text = "\n".join(script for job in JOBS.values() for script in workflows.scripts(job))
    text = text.replace("\\\n", " ")
    tasks = re.findall(r"\bmake ([a-z].*)", text)
    assert {"check", "unit", "e2e", "setup"} <= set(tasks)
    for task in tasks:
        subprocess.run(
            ["make", "--dry-run", *task.split()],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    commands = re.findall(r"\.venv/bin/python (?:\.\./)?(hack/\w+) ([a-z]+)", text)
    assert len(commands) >= 4
    for path, verb in commands:
        listed = subprocess.run(
            [sys.executable, REPOSITORY / path, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.search(rf"^\s+{verb}\b", listed, re.MULTILINE), f"{path} {verb}"
    for path in re.findall(r"(?:--requirement |\s)((?:hack|manifests)/[\w/.]+)", text):
        assert (REPOSITORY / path).exists(), path
