"""What the testbed finds of a driver on disk, while the driver works there."""

import os
from pathlib import Path
from typing import Any

import pytest
from testbed.driver import DRIVER_NAME, Place


def test_a_folder_that_goes_while_it_is_looked_through_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.below(tmp_path, tmp_path, tmp_path, node="n")
    root = place.plugins / DRIVER_NAME / "device-metadata"
    for claim in ("gone", "there"):
        (root / claim).mkdir(parents=True)
        (root / claim / "gpu.json").touch()
    look = os.scandir

    def late(folder: Any) -> Any:
        if Path(folder).name == "gone":
            Path(folder).rename(tmp_path / "elsewhere")
        return look(folder)

    monkeypatch.setattr(os, "scandir", late)
    assert "there/gpu.json" in place.metadata_files()
