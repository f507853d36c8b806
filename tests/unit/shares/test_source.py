"""A file that is being written is read when it has stayed the same, and not before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.kube.events import Events
from dra_driver.kube.outbox import Outbox
from dra_driver.kube.own_node import OwnNode
from dra_driver.shares.notes import KeptConfig, kept
from dra_driver.shares.source import ShareConfigs, ShareConfigState

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


def made_for(
    path: Path | None,
    changes: list[None],
    meanwhile: Meanwhile,
    default: str = "",
    keeps: Path | None = None,
) -> ShareConfigs:
    """Share configs of a Node without labels, on no thread."""
    made = ShareConfigs(
        path,
        default=default,
        node=OwnNode(None, "n1", clock=lambda: 0.0, random=lambda: 0.5),  # type: ignore[arg-type]
        events=Events(None, Outbox(), controller="c", node="n1"),  # type: ignore[arg-type]
        on_change=lambda: changes.append(None),
        kept=keeps,
    )
    made._stop = meanwhile  # type: ignore[assignment]
    return made


@pytest.fixture
def configs(file: Path, changes: list[None], meanwhile: Meanwhile) -> ShareConfigs:
    made = made_for(file, changes, meanwhile)
    made._look_once(file, "")
    assert (made.current().is_known, len(changes)) == (True, 1)
    return made


def count(configs: ShareConfigs) -> int:
    config = configs.current().config
    return 0 if config is None else len(config.resources)


def test_half_a_file_is_not_used(file: Path, configs: ShareConfigs, meanwhile: Meanwhile) -> None:
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


def test_a_special_file_is_a_problem_and_not_waited_for(file: Path, configs: ShareConfigs) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")
    configs._look_once(file, "")
    assert configs.current().problem == f"{file} cannot be read: it is not a plain file"


def test_before_the_first_look_the_state_is_unknown_with_a_reason(
    file: Path, changes: list[None], meanwhile: Meanwhile
) -> None:
    one = made_for(file, changes, meanwhile)
    assert one.current() == ShareConfigState(
        config=None, origin="", problem="the share config has not been read yet", is_known=False
    )
    assert not one.is_valid()
    assert not one.wait_until_looked(0)


def test_a_look_ends_waits_and_reports_changes(
    file: Path, configs: ShareConfigs, changes: list[None]
) -> None:
    assert configs.wait_until_looked(0)
    assert configs.current().origin == f"file {file}"
    configs._look_once(file, "")
    assert len(changes) == 1


def test_a_folder_without_a_config_for_this_node_shares_nothing_and_that_is_kept(
    tmp_path: Path, changes: list[None], meanwhile: Meanwhile
) -> None:
    folder, keeps = tmp_path / "configs", tmp_path / "kept.json"
    folder.mkdir()
    one = made_for(folder, changes, meanwhile, keeps=keeps)
    one._look_once(folder, "")
    why = f"no config of folder {folder}: it is empty"
    state = one.current()
    assert (state.origin, state.problem, state.is_known) == (why, None, True)
    assert count(one) == 0
    assert kept(keeps) == KeptConfig(data=b"", origin=why)


def test_a_file_that_cannot_be_read_twice_is_one_problem_and_not_waited_for_again(
    file: Path, configs: ShareConfigs, meanwhile: Meanwhile
) -> None:
    file.unlink()
    file.mkdir()
    waits: list[None] = []
    meanwhile.do = lambda: waits.append(None)
    for _ in range(3):
        configs._look_once(file, "")
    assert len(waits) == 1
    assert configs.current().problem == (
        f"{file} was a file when the driver started and is a folder now: restart the driver"
    )
