"""Where libraries are searched, and in which order."""

from pathlib import Path

import pytest

from dra_driver.devices.driver_root.libraries import locate
from dra_driver.devices.nvml.library import find_library
from dra_driver.errors import DeviceError
from driver_layouts import I386, LAYOUTS, RUNNING, X86_64, Layout, version_in, write_cache


def add(root: Path, path: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def test_known_folders_are_searched_in_order_and_each_file_counts_once(tmp_path: Path) -> None:
    add(tmp_path, "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    add(tmp_path, "/usr/lib64/libcuda.so.1")
    (tmp_path / "lib64").symlink_to("usr/lib64")

    assert locate(tmp_path, "libcuda.so.*") == (
        "/usr/lib64/libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    )


def test_the_loaders_cache_is_asked_when_no_folder_has_the_library(tmp_path: Path) -> None:
    add(tmp_path, "/opt/nvidia/libcuda.so.1")
    add(tmp_path, "/opt/nvidia32/libcuda.so.1")
    write_cache(
        tmp_path,
        ("libcuda.so.1", "/opt/nvidia32/libcuda.so.1", I386),
        ("libcuda.so.1", "/opt/nvidia/libcuda.so.1", X86_64),
        ("libother.so.1", "/opt/nvidia/libother.so.1", X86_64),
        before=b"ld.so-1.7.0\0",
    )

    assert locate(tmp_path, "libcuda.so.*") == ("/opt/nvidia/libcuda.so.1",)


def test_the_loaders_cache_is_not_asked_when_a_folder_has_it(tmp_path: Path) -> None:
    add(tmp_path, "/usr/lib64/libcuda.so.1")
    add(tmp_path, "/opt/nvidia/libcuda.so.1")
    write_cache(tmp_path, ("libcuda.so.1", "/opt/nvidia/libcuda.so.1", X86_64))

    assert locate(tmp_path, "libcuda.so.1") == ("/usr/lib64/libcuda.so.1",)


def test_a_cache_entry_whose_file_has_gone_is_passed_over(tmp_path: Path) -> None:
    write_cache(tmp_path, ("libcuda.so.1", "/opt/nvidia/libcuda.so.1", X86_64))

    assert locate(tmp_path, "libcuda.so.1") == ()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"glibc-ld.so.cache1.1\xff\xff\xff\xff"])
def test_a_damaged_cache_has_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(content)

    assert locate(tmp_path, "*") == ()


def test_the_cache_knows_a_file_by_every_name_on_the_way_to_it(tmp_path: Path) -> None:
    add(tmp_path, "/store/libcuda.so.550.54.15")
    folder = tmp_path / "opt/nvidia"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.550")
    (folder / "libcuda.so.550").symlink_to("/store/libcuda.so.550.54.15")
    write_cache(tmp_path, ("libcuda.so.1", "/opt/nvidia/libcuda.so.1", X86_64))

    for pattern in ("libcuda.so.1", "libcuda.so.550", "libcuda.so.*.*"):
        assert locate(tmp_path, pattern) == ("/store/libcuda.so.550.54.15",)
    assert locate(tmp_path, "libcuda.so.9") == ()


def test_a_truncated_cache_has_what_is_left(tmp_path: Path) -> None:
    add(tmp_path, "/opt/libcuda.so.1")
    write_cache(tmp_path, ("libcuda.so.1", "/opt/libcuda.so.1", X86_64))
    cache = tmp_path / "etc/ld.so.cache"
    cache.write_bytes(cache.read_bytes()[:60])

    assert locate(tmp_path, "libcuda.so.1") == ()


def test_the_nvml_library_is_found_in_a_driver_container(tmp_path: Path) -> None:
    add(tmp_path, "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")

    assert find_library(tmp_path) == (
        tmp_path / "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"
    )


def test_the_running_drivers_nvml_library_goes_before_one_that_was_left_behind(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "usr/lib64"
    for version in ("535.104.05", "550.54.15"):
        add(tmp_path, f"/usr/lib64/libnvidia-ml.so.{version}")
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.104.05")

    assert find_library(tmp_path) == folder / "libnvidia-ml.so.535.104.05"
    assert find_library(tmp_path, "550.54.15") == folder / "libnvidia-ml.so.550.54.15"
    with pytest.raises(DeviceError) as caught:
        find_library(tmp_path, "560.1.2")
    text = str(caught.value)
    assert "libnvidia-ml.so.560.1.2 of the running GPU driver 560.1.2 is not under" in text
    assert "which has /usr/lib64/libnvidia-ml.so.535.104.05; complete the driver's upgrade" in text


def test_a_link_that_leads_out_of_the_folders_is_the_library_of_the_version_it_leads_to(
    tmp_path: Path,
) -> None:
    path = "/usr/lib/x86_64-linux-gnu/nvidia/tesla-570/libnvidia-ml.so.570.148.08"
    add(tmp_path, path)
    link = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    link.symlink_to(path)  # an absolute one, inside the root

    assert locate(tmp_path, "libnvidia-ml.so.570.148.08") == (path,)
    assert find_library(tmp_path, "570.148.08") == tmp_path / path.lstrip("/")
    with pytest.raises(DeviceError, match=r"which has .*libnvidia-ml\.so\.570\.148\.08"):
        find_library(tmp_path, "570.133.20")


def test_an_nvml_library_whose_name_says_no_version_is_taken(tmp_path: Path) -> None:
    add(tmp_path, "/usr/lib64/libnvidia-ml.so.1")

    assert find_library(tmp_path, "560.1.2") == tmp_path / "usr/lib64/libnvidia-ml.so.1"


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_on_each_layout_it_is_the_running_drivers(tmp_path: Path, layout: Layout) -> None:
    layout.build(tmp_path)

    assert version_in(find_library(tmp_path, RUNNING)) == RUNNING


def test_a_missing_nvml_library_says_where_it_was_looked_for_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        find_library(tmp_path)

    text = str(caught.value)
    assert f"libnvidia-ml.so.1 not found under {tmp_path}" in text
    assert "/usr/lib64" in text
    assert "--nvidia-driver-root" in text


def test_an_unreadable_root_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="File name too long"):
        find_library(tmp_path / ("x" * 300))
