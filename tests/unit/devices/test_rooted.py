"""Links followed as in a chroot."""

from pathlib import Path

import pytest

from dra_driver.devices.driver_root import rooted


def link(root: Path, path: str, target: str) -> None:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


def test_a_plain_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()

    assert rooted.resolve(tmp_path, "/usr//./") == "/usr"
    assert rooted.resolve(tmp_path, "/") == "/"


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert rooted.resolve(tmp_path, "/absent") is None
    assert rooted.resolve(tmp_path, "/file/below") is None


def test_an_absolute_link_starts_again_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").touch()
    link(tmp_path, "/usr/lib/link", "/etc/passwd")

    assert rooted.resolve(tmp_path, "/usr/lib/link") == "/etc/passwd"
    assert rooted.outside(tmp_path, "/etc/passwd") == tmp_path / "etc/passwd"


def test_a_relative_link_is_followed_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/file").touch()
    link(tmp_path, "/lib64", "usr/lib64")
    link(tmp_path, "/usr/lib64/link", "file")

    assert rooted.resolve(tmp_path, "/lib64/link") == "/usr/lib64/file"


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "secret").touch()
    root.mkdir()
    link(root, "/link", "../../../secret")

    assert rooted.resolve(root, "/link") is None
    assert rooted.resolve(root, "/../../secret") is None


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    link(tmp_path, "/a", "b")
    link(tmp_path, "/b", "a")

    assert rooted.resolve(tmp_path, "/a") is None


def test_a_dangling_link_leads_nowhere(tmp_path: Path) -> None:
    link(tmp_path, "/a", "absent")

    assert rooted.resolve(tmp_path, "/a") is None


def test_matches_are_sorted_and_keep_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    for name in ("b.so", "a.so", "c.txt", "é.so"):
        (tmp_path / "usr/lib" / name).touch()
    link(tmp_path, "/lib", "usr/lib")

    assert list(rooted.matches(tmp_path, "/lib", "*.so")) == ["/usr/lib/a.so", "/usr/lib/b.so"]


@pytest.mark.parametrize("folder", ["/absent", "/file"])
def test_what_is_no_folder_has_nothing(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()

    assert list(rooted.matches(tmp_path, folder, "*")) == []
