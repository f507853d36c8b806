"""The workflow that publishes a release runs what this repository has, with no right too many."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from image.recipe import ARCHITECTURES, NAME

REPOSITORY = Path(__file__).resolve().parents[3]
WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yaml"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return found


@pytest.fixture(scope="module")
def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    (job,) = workflow["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def scripts(steps: list[dict[str, Any]]) -> list[str]:
    return [step["run"] for step in steps if "run" in step]


def test_only_a_versions_tag_starts_it(workflow: dict[Any, Any]) -> None:
    # YAML 1.1 reads `on` as a boolean.
    assert workflow[True] == {"push": {"tags": ["v*"]}}


def test_actions_are_pinned_to_full_versions(steps: list[dict[str, Any]]) -> None:
    used = [step["uses"] for step in steps if "uses" in step]
    assert len(used) >= 4
    for one in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})", one), one


def test_rights_are_given_one_by_one(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "write", "packages": "write", "id-token": "write"}


def test_what_a_person_chose_is_never_part_of_a_script(steps: list[dict[str, Any]]) -> None:
    # Expressions are replaced before a shell reads them: a tag's name could be a command.
    assert [script for script in scripts(steps) if "${{" in script] == []


def test_everything_is_checked_before_anything_is_published(steps: list[dict[str, Any]]) -> None:
    text = "\n".join(scripts(steps))
    checks = ("hack/release check", "pip-audit ", "hack/image check")
    published = ("skopeo copy", "cosign sign", "helm push", "gh release create")
    for one in (*checks, *published):
        assert one in text, one
    assert max(text.index(check) for check in checks) < min(text.index(one) for one in published)


def test_files_and_commands_of_this_repository_are_there(steps: list[dict[str, Any]]) -> None:
    text = "\n".join(scripts(steps)).replace("\\\n", " ")
    commands = re.findall(r"\.venv/bin/python (hack/\w+) ([a-z]+)", text)
    assert len(commands) >= 4
    for path, verb in commands:
        listed = subprocess.run(
            [sys.executable, REPOSITORY / path, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.search(rf"^\s+{verb}\b", listed, re.MULTILINE), f"{path} {verb}"
    (requirement,) = re.findall(r"--requirement (\S+)", text)
    assert (REPOSITORY / requirement).is_file()


def test_both_architectures_are_built_and_their_bills_are_attested(
    steps: list[dict[str, Any]],
) -> None:
    text = "\n".join(scripts(steps))
    assert ",".join(f"linux/{arch}" for arch in ARCHITECTURES) in text
    (loop,) = re.findall(r"for arch in (.*); do", text)
    assert tuple(loop.split()) == ARCHITECTURES
    assert f"assets/{NAME}-$VERSION-$arch.cdx.json" in text


def test_its_scripts_are_sound(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    program = REPOSITORY / ".venv" / "bin" / "shellcheck"
    found = program if program.exists() else Path(sys.executable).with_name("shellcheck")
    for number, script in enumerate(scripts(steps)):
        path = tmp_path / f"{number}.sh"
        path.write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}")
        done = subprocess.run([found, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, shlex.join(os.fspath(one) for one in done.args) + done.stdout


def test_all_images_are_built_from_one_digest_of_the_base(
    steps: list[dict[str, Any]], tmp_path: Path
) -> None:
    (script,) = (one for one in scripts(steps) if "docker buildx build" in one)
    docker, calls = tmp_path / "docker", tmp_path / "calls"
    docker.write_text(
        '#!/bin/sh\necho "$@" >>"$CALLS"\n[ "$3" != inspect ] || echo sha256:0a1b\nexit 0\n'
    )
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    subprocess.run(
        ("bash", "-eo", "pipefail", "-c", script),
        cwd=REPOSITORY,
        env=env | {"VERSION": "1.0.0", "GITHUB_SHA": "c0ffee"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    asked, *built = calls.read_text().splitlines()
    (tag,) = re.findall(r"^ARG BASE=(\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert f"inspect {tag} " in asked
    assert len(built) == 2
    assert all(f"--build-arg BASE={tag}@sha256:0a1b " in one for one in built)
