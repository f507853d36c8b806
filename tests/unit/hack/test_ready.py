"""Nothing is compiled, downloaded or installed within a test: hack/ready.py does it before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ready
from image.builder import Builder
from image.errors import ImageError
from image.recipe import Recipe, own_architecture
from testbed.cluster import COMMAND

TESTS = ready.REPOSITORY / "tests"
TEST_OF_VALE = (
    "tests/contract/test_style.py::test_nothing_is_wrong_with_plain_english_nor_with_code"
)


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
        ("contract/claims/test_metadata_readers.py", ["metadata"]),
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


@pytest.mark.parametrize("group", ["vale", "helm", "judge", "metadata", "cdi", "kubernetes"])
def test_within_a_test_no_program_is_fetched_or_compiled(bare: dict[str, str], group: str) -> None:
    command = (sys.executable, COMMAND, "fetch", group)
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{group} is not in {bare['HOME']}/" in done.stderr
    assert "hack/ready.py makes it ready" in done.stderr


def test_within_a_test_no_image_is_built(bare: dict[str, str], tmp_path: Path) -> None:
    builder = Builder(cache=tmp_path, say=lambda _: None, environment=bare)
    with pytest.raises(ImageError, match=r"`hack/ready\.py image` builds it"):
        builder.archive(Recipe(target="driver", arch=own_architecture()))


def test_a_test_whose_need_is_not_ready_fails_at_once_and_says_what_makes_it_ready(
    bare: dict[str, str],
) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST_OF_VALE)
    done = subprocess.run(
        command, cwd=ready.REPOSITORY, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "vale is not ready: run `.venv/bin/python hack/ready.py vale`" in done.stdout
    assert not (Path(bare["HOME"]) / ".cache" / "go-build").exists()


def test_what_cannot_be_had_is_told_and_the_rest_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def fail() -> None:
        raise ready.NotToBeHadError("no network")

    needs = {
        "first": ready.Need(make=fail, words="first"),
        "second": ready.Need(make=lambda: made.append("second"), words="second"),
        "third": ready.Need(make=lambda: made.append("third"), words="third"),
    }
    monkeypatch.setattr(ready, "NEEDS", needs)
    assert ready.main(["--but", "third"]) == 0
    said = capsys.readouterr()
    assert made == ["second"]
    assert said.out == "first\n"
    assert said.err == "ready: first cannot be had: no network\n"
    with pytest.raises(SystemExit):
        ready.main(["fourth"])
