"""A file that is being written is read when it has stayed the same, and not before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.kube.own_node import OwnNode
from dra_driver.shares.source import ShareConfigEvents, ShareConfigs

WHOLE = "sharing: {mps: {resources: [{name: gpu, replicas: 2}, {name: mig-1g.5gb, replicas: 3}]}}"
HALF = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"


class Meanwhile:
    """Stands for the wait between two looks: does something, and is over."""

    def __init__(self) -> None:
        self.do: Callable[[], object] = lambda: None

    def wait(self, timeout: float) -> bool:
        self.do()
        return False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    file.write_text("version: v1\n")
    return file


@pytest.fixture
def changes() -> list[None]:
    return []


@pytest.fixture
def meanwhile() -> Meanwhile:
    return Meanwhile()


@pytest.fixture
def configs(file: Path, changes: list[None], meanwhile: Meanwhile) -> ShareConfigs:
    nobody = OwnNode(None, "n1", clock=lambda: 0.0, random=lambda: 0.5)  # type: ignore[arg-type]
    made = ShareConfigs(
        file,
        default="",
        labels=nobody,
        events=ShareConfigEvents(None, "n1"),  # type: ignore[arg-type]
        on_change=lambda: changes.append(None),
    )
    made._stop = meanwhile  # type: ignore[assignment]
    made._look_once(file, "")
    assert (made.current().is_known, len(changes)) == (True, 1)
    return made


def count(configs: ShareConfigs) -> int:
    config = configs.current().config
    return 0 if config is None else len(config.resources)


def test_half_a_file_is_not_taken(file: Path, configs: ShareConfigs, meanwhile: Meanwhile) -> None:
    file.write_text(HALF)
    meanwhile.do = lambda: file.write_text(WHOLE)
    configs._look_once(file, "")
    assert count(configs) == 0
    configs._look_once(file, "")
    assert count(configs) == 2


def test_a_file_that_is_away_for_a_moment_is_no_problem(
    file: Path, configs: ShareConfigs, meanwhile: Meanwhile, changes: list[None]
) -> None:
    file.unlink()
    meanwhile.do = lambda: file.write_text("version: v1\n")
    configs._look_once(file, "")
    configs._look_once(file, "")
    assert configs.current().problem is None
    assert len(changes) == 1


def test_a_file_that_stays_away_is_a_problem_told_once(
    file: Path, configs: ShareConfigs, changes: list[None]
) -> None:
    file.unlink()
    for _ in range(3):
        configs._look_once(file, "")
    assert configs.current().problem == (
        f"there is no {file}: put it there, or have the driver started without it"
    )
    assert len(changes) == 2


def test_what_is_no_plain_file_is_a_problem_and_not_waited_for(
    file: Path, configs: ShareConfigs
) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")
    configs._look_once(file, "")
    assert configs.current().problem == f"{file} cannot be read: it is not a plain file"
