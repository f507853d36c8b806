"""SONAMEs from real and from damaged files."""

from pathlib import Path

import pytest

import driver_tree
from dra_driver.devices.driver_root.elf import read_soname


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_soname_is_read_in_every_class_and_byte_order(
    tmp_path: Path, bits: int, order: str
) -> None:
    library = tmp_path / "library"
    library.write_bytes(driver_tree.elf("libcuda.so.1", bits=bits, order=order))

    assert read_soname(library) == "libcuda.so.1"


@pytest.mark.parametrize("soname", [None, "", "../etc/passwd", "a/b"])
def test_a_library_without_a_soname_that_is_a_file_name_has_none(
    tmp_path: Path, soname: str | None
) -> None:
    library = tmp_path / "library"
    library.write_bytes(driver_tree.elf(soname))

    assert read_soname(library) is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text\n" * 100, b"\x7fELF" + b"\xff" * 200])
def test_a_file_that_is_not_a_library_has_no_soname(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)

    assert read_soname(file) is None


def test_a_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_soname(tmp_path / "absent")
