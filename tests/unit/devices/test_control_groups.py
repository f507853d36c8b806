"""Where the hierarchy of cgroup v2 is, and who counts GPU memory there."""

from pathlib import Path

import pytest

from dra_driver.devices import control_groups
from dra_driver.devices.control_groups import find_hierarchy, kernel_counts_gpus


def hierarchy(folder: Path, *, is_part: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "cgroup.controllers").touch()
    if is_part:
        (folder / "cgroup.events").touch()
    return folder


def mountinfo(folder: Path, *lines: str) -> Path:
    path = folder / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def line(mount: Path, kind: str = "cgroup2") -> str:
    escaped = str(mount).replace(" ", "\\040")
    return f"30 23 0:26 / {escaped} rw,nosuid shared:4 master:1 - {kind} cgroup rw"


def test_the_mount_is_found_whatever_its_name(tmp_path: Path) -> None:
    place = hierarchy(tmp_path / "a folder")
    mounts = mountinfo(tmp_path, line(tmp_path / "memory", "cgroup"), line(place))
    assert find_hierarchy(None, mounts) == place


def test_the_whole_hierarchy_is_preferred_to_a_containers_part(tmp_path: Path) -> None:
    part = hierarchy(tmp_path / "part", is_part=True)
    whole = hierarchy(tmp_path / "whole")
    assert find_hierarchy(None, mountinfo(tmp_path, line(part), line(whole))) == whole
    assert find_hierarchy(None, mountinfo(tmp_path, line(part))) == part


def test_the_usual_place_is_preferred_to_what_a_driver_root_brings_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "sys/fs/cgroup"
    monkeypatch.setattr(control_groups, "USUAL", usual)
    brought = hierarchy(tmp_path / "driver-root/sys/fs/cgroup")
    unified = hierarchy(usual / "unified")
    assert find_hierarchy(None, mountinfo(tmp_path, line(brought), line(unified))) == unified
    (unified / "cgroup.events").touch()
    assert find_hierarchy(None, mountinfo(tmp_path, line(brought), line(unified))) == brought


@pytest.mark.parametrize("place", ["", "unified"])
def test_a_setting_may_name_version_2_or_the_folder_it_is_in(tmp_path: Path, place: str) -> None:
    root = hierarchy(tmp_path / "host" / place)
    assert find_hierarchy(tmp_path / "host", mountinfo(tmp_path)) == root


@pytest.mark.parametrize("text", ["", "rubbish", "- cgroup2", "30 23 - cgroup2 x"])
def test_without_version_2_there_is_none(tmp_path: Path, text: str) -> None:
    assert find_hierarchy(None, mountinfo(tmp_path, text)) is None
    assert find_hierarchy(None, tmp_path / "absent") is None
    assert find_hierarchy(tmp_path, mountinfo(tmp_path)) is None


def test_the_kernel_counts_where_it_has_a_region_of_the_gpus(tmp_path: Path) -> None:
    assert not kernel_counts_gpus(tmp_path)
    capacity = tmp_path / "dmem.capacity"
    capacity.write_text("drm/0000:03:00.0/vram0 8514437120\n")
    assert not kernel_counts_gpus(tmp_path)
    capacity.write_text("nvidia/00000000:01:00.0/vidmem 85899345920\n")
    assert kernel_counts_gpus(tmp_path)
