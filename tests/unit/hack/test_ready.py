"""Nothing is compiled, downloaded or installed within a test: hack/ready.py does it before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ready
from testbed.cluster import COMMAND

TESTS = ready.REPOSITORY / "tests"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home."""
    left_out = ("XDG_CACHE_HOME", "KUBE_BIN_DIR", "TESTS_WITHOUT", "E2E_REQUIRED")
    found = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**found, "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("path", "needs"),
    [
        ("contract/test_style.py", ["vale"]),
        ("contract/test_alerts.py", ["promtool", "helm"]),
        ("contract/test_chart.py", ["helm"]),
        ("e2e/test_explain_judge.py", ["userspace", "judge", "cluster"]),
        ("e2e/test_crio.py", ["userspace", "cluster", "crio"]),
        ("neighbours/test_kueue.py", ["userspace", "cluster", "kueue"]),
        ("cluster/test_crio.py", []),
        ("neighbours/test_autoscalers.py", ["judge", "autoscaler", "karpenter"]),
        ("unit/cdi/test_store.py", []),
        ("", list(ready.NEEDS)),
    ],
)
def test_a_tests_files_tell_what_they_need(path: str, needs: list[str]) -> None:
    assert list(ready.needed([TESTS / path])) == needs


@pytest.mark.parametrize("group", ["vale", "kubernetes"])
def test_within_a_test_no_program_is_fetched_or_compiled(bare: dict[str, str], group: str) -> None:
    command = (sys.executable, COMMAND, "fetch", group)
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{group} is not in {bare['HOME']}/" in done.stderr
    assert "hack/ready.py makes it ready" in done.stderr
