"""Where the programs of a driver root are found."""

from pathlib import Path

import pytest

from dra_driver.devices.driver_root.programs import (
    MPS_CONTROL,
    NVIDIA_SMI,
    SEARCHED,
    Program,
    find_program,
)


def add(root: Path, path: str, mode: int = 0o755) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    file.chmod(mode)
    return file


@pytest.mark.parametrize("folder", SEARCHED.split(", "))
def test_a_program_is_found_in_every_folder_that_is_named(tmp_path: Path, folder: str) -> None:
    file = add(tmp_path, f"{folder}/{NVIDIA_SMI}")
    assert find_program(tmp_path, NVIDIA_SMI) == Program(
        folder=folder, source=f"{folder}/{NVIDIA_SMI}", path=file
    )


def test_the_program_that_a_shell_would_run_is_found(tmp_path: Path) -> None:
    for folder in ("/usr/lib/nvidia/current", "/usr/bin", "/usr/local/bin"):
        add(tmp_path, f"{folder}/{MPS_CONTROL}")
    program = find_program(tmp_path, MPS_CONTROL)
    assert program is not None
    assert program.folder == "/usr/local/bin"


def test_a_script_that_starts_the_program_elsewhere_comes_last(tmp_path: Path) -> None:
    script = add(tmp_path, f"/usr/bin/{NVIDIA_SMI}")
    script.write_text("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n")
    found = find_program(tmp_path, NVIDIA_SMI)
    assert found is not None
    assert found.path == script
    program = add(tmp_path, f"/usr/local/nvidia/bin/{NVIDIA_SMI}")
    program.write_bytes(b"\x7fELF")
    found = find_program(tmp_path, NVIDIA_SMI)
    assert found is not None
    assert found.path == program


def test_an_absolute_link_leads_inside_the_root(tmp_path: Path) -> None:
    file = add(tmp_path, f"/usr/lib/nvidia/current/{NVIDIA_SMI}")
    link = tmp_path / "usr/bin" / NVIDIA_SMI
    link.parent.mkdir()
    link.symlink_to(f"/usr/lib/nvidia/current/{NVIDIA_SMI}")
    assert find_program(tmp_path, NVIDIA_SMI) == Program(
        folder="/usr/bin", source=f"/usr/lib/nvidia/current/{NVIDIA_SMI}", path=file
    )


def test_files_that_nobody_may_run_are_skipped(tmp_path: Path) -> None:
    add(tmp_path, f"/usr/bin/{NVIDIA_SMI}", mode=0o644)
    (tmp_path / "usr/local/bin" / NVIDIA_SMI).mkdir(parents=True)
    assert find_program(tmp_path, NVIDIA_SMI) is None
