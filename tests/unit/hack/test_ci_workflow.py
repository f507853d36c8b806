"""CI runs all checks and tests, on each version that the project names, and says what failed."""

import re
import tomllib

from cluster.versions import DEFAULT_MINOR, GO_MOD_FILES

import workflows

REPOSITORY = workflows.REPOSITORY
CI = workflows.workflow("ci")
JOBS = CI["jobs"]


def test_it_runs_for_pull_requests_main_and_releases() -> None:
    # YAML 1.1 reads `on` as a boolean.
    assert CI[True] == {"pull_request": None, "push": {"branches": ["main"]}, "workflow_call": None}
    assert workflows.workflow("release")["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yaml"


def test_kubernetes_is_each_version_from_which_a_feature_is_on() -> None:
    page = (REPOSITORY / "docs" / "compatibility.md").read_text()
    table = page.split("## What each feature needs")[1].split("\n\n")[2]
    named = set(re.findall(r"^\|[^|]*\| (1\.\d+)", table, re.MULTILINE))
    matrix = JOBS["e2e"]["strategy"]["matrix"]["kubernetes"]
    assert set(matrix) == named
    assert matrix[-1] == DEFAULT_MINOR
    assert named <= GO_MOD_FILES.keys()


def test_python_is_the_oldest_that_is_taken_and_that_of_the_image() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    (image,) = set(re.findall(r"\bpython(3\.\d+)-venv", (REPOSITORY / "Dockerfile").read_text()))
    matrix = JOBS["unit"]["strategy"]["matrix"]
    assert matrix["python"] == [oldest, image]
    assert matrix["include"] == [{"python": image, "runner": "ubuntu-24.04-arm"}]
    assert f":{oldest}-" in JOBS["e2e"]["container"]["image"]


def test_each_part_of_the_tests_and_all_checks_run() -> None:
    assert "make check" in workflows.scripts(JOBS["check"])
    assert "make unit" in workflows.scripts(JOBS["unit"])
    assert "make e2e" in workflows.scripts(JOBS["e2e"])
    assert JOBS["e2e"]["env"]["E2E_REQUIRED"] == "1"  # they are not left out without a word
