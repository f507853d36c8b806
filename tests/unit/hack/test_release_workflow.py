"""The workflow that publishes: what builds has no rights, and what has rights builds nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import workflows

REPOSITORY = workflows.REPOSITORY
RELEASE = workflows.workflow("release")
BUILD, PUBLISH = RELEASE["jobs"]["build"], RELEASE["jobs"]["publish"]
BUILDING = "\n".join(workflows.scripts(BUILD))
PUBLISHING = "\n".join(workflows.scripts(PUBLISH))


def test_only_a_versions_tag_starts_it() -> None:
    # YAML 1.1 reads `on` as a boolean.
    assert RELEASE[True] == {"push": {"tags": ["v*"]}}


def test_nothing_is_published_before_ci_and_the_build_have_passed() -> None:
    assert PUBLISH["needs"] == ["ci", "build"]
    for check in ("hack/release check", "pip-audit ", "hack/image check"):
        assert check in BUILDING, check
    for act in ("skopeo copy", "cosign sign", "helm push", "gh release create"):
        assert act in PUBLISHING, act
        assert act not in BUILDING, act


def test_rights_are_given_to_what_publishes_alone() -> None:
    assert RELEASE["permissions"] == {}
    rights = {name: job["permissions"] for name, job in RELEASE["jobs"].items()}
    write = ("contents", "packages", "id-token", "attestations")
    assert rights == {
        "ci": {"contents": "read"},
        "build": {"contents": "read"},
        "publish": dict.fromkeys(write, "write"),
    }
    assert "secrets." not in str(BUILD)


def test_what_has_rights_runs_nothing_of_the_repository_and_no_action_but_githubs() -> None:
    used = [step["uses"] for step in workflows.steps(PUBLISH) if "uses" in step]
    assert [name.split("@")[0] for name in used] == ["actions/download-artifact", "actions/attest"]
    assert not re.search(r"\b(hack|make|python|pip|git)\b", PUBLISHING)


def test_the_build_takes_nothing_from_a_cache() -> None:
    used = [step for step in workflows.steps(BUILD) if "uses" in step]
    assert not any("/cache@" in step["uses"] for step in used)
    (buildx,) = (step for step in used if "buildx" in step["uses"])
    assert buildx["with"] == {"cache-binary": False}
    assert not any("cache" in step.get("with", {}) for step in used)


def build_in(folder: Path) -> dict[str, str]:
    """Run the step that lists what was built; return what the job that publishes is told."""
    for name in ("image.tar", "assets/install.yaml"):
        (folder / "dist" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "dist" / name).write_text(name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho notes\n")
    python.chmod(0o755)
    script = workflows.script(BUILD, "SHA256SUMS")
    env = os.environ | {"GITHUB_OUTPUT": str(folder / "output")}
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=folder / "dist", env=env, check=True
    )
    name, value = (folder / "output").read_text().strip().split("=")
    return {name: value}


def is_taken(folder: Path, told: dict[str, str]) -> bool:
    script = workflows.script(PUBLISH, "SHA256SUMS")
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder / "dist",
        env=os.environ | told,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def test_what_was_built_is_taken(tmp_path: Path) -> None:
    assert is_taken(tmp_path, build_in(tmp_path))


@pytest.mark.parametrize("name", ["image.tar", "assets/install.yaml", "notes.md", "SHA256SUMS"])
def test_a_file_that_changed_on_the_way_is_not_published(tmp_path: Path, name: str) -> None:
    told = build_in(tmp_path)
    with (tmp_path / "dist" / name).open("a") as file:
        file.write("more")
    assert not is_taken(tmp_path, told)


def test_cosign_is_the_one_with_a_known_digest() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", RELEASE["env"]["COSIGN_SHA256"])
    script = workflows.script(PUBLISH, "cosign-linux-amd64")
    assert script.index("sha256sum --check") < script.index("install ")
