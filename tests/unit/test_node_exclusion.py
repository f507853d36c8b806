"""Which of the GPUs that are left out stay, because something of them is in use or may be."""

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.state.ledger import Ledger
from dra_driver.node.gpus import NodeExclusion
from dra_driver.sharing.steps import TimeSlice

GPU, OTHER = make.gpu(0), make.gpu(1)
SETTING = TimeSlice(devices=(make.device(GPU),))

Change = Callable[[Path, Ledger], object]


def left_out_by(setting: str, directory: Path) -> NodeExclusion:
    return NodeExclusion(setting, Ledger(directory, boot_id="boot-1"))


def kept(directory: Path, change: Change) -> list[int]:
    """The indices of the GPUs that stay after a change of what is on disk."""
    change(directory, Ledger(directory, boot_id="boot-1"))
    found = left_out_by("0,1", directory).leave_out(make.inventory(GPU, OTHER))
    assert [one.index for one in found.excluded] == [0, 1]
    stay = [gpu.index for gpu in found.gpus]
    assert [one.index for one in found.excluded if one.is_in_use] == stay
    return stay


def unreadable(directory: Path, path: str) -> None:
    (directory / path).parent.mkdir(parents=True, exist_ok=True)
    (directory / path).symlink_to((directory / path).name)  # to itself


@pytest.mark.parametrize(
    "change",
    [
        lambda _, ledger: ledger.write(make.record(GPU)),
        lambda _, ledger: ledger.write(make.record(GPU, state=RecordState.RELEASED)),
        lambda _, ledger: ledger.write(make.record(steps=(SETTING,))),
    ],
    ids=["held", "released", "with a step"],
)
def test_a_gpu_in_use_stays(tmp_path: Path, change: Change) -> None:
    assert kept(tmp_path, change) == [0]


def test_all_stay_while_a_record_cannot_be_read(tmp_path: Path) -> None:
    assert kept(tmp_path, lambda *_: unreadable(tmp_path, "claims/uid.json")) == [0, 1]


def test_a_gpu_that_stays_is_still_not_to_be_published(tmp_path: Path) -> None:
    reasons = left_out_by("1", tmp_path).reasons(make.inventory(GPU, OTHER))
    assert reasons == {OTHER.uuid: 'it is left out by "1" of --exclude-gpus'}


def test_excluded_gpus_are_logged_once(tmp_path: Path) -> None:
    exclusion = left_out_by("1,7", tmp_path)
    with capture_logs() as logs:
        for _ in range(3):
            exclusion.leave_out(make.inventory(GPU, OTHER))
    assert [line["event"] for line in logs] == ["gpu left out", "exclusion without effect"]
