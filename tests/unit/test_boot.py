from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from dra_driver.host.process import read_boot_id


def test_the_boot_id_is_the_kernels(tmp_path: Path) -> None:
    file = tmp_path / "sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("6a1f\n")
    assert read_boot_id(tmp_path) == "6a1f"


def test_a_proc_root_without_boot_id_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"{tmp_path}.*--proc-root"):
        read_boot_id(tmp_path)
