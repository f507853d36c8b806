"""Links followed as in a chroot."""

from pathlib import Path

import pytest

from dra_driver.devices.driver_root import rooted


def link(root: Path, path: str, target: str) -> None:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


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


def test_matches_are_sorted_and_keep_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    for name in ("b.so", "a.so", "c.txt", "é.so"):
        (tmp_path / "usr/lib" / name).touch()
    link(tmp_path, "/lib", "usr/lib")

    assert list(rooted.matches(tmp_path, "/lib", "*.so")) == ["/usr/lib/a.so", "/usr/lib/b.so"]


@pytest.mark.parametrize("folder", ["/absent", "/file"])
def test_a_file_has_no_matches(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()

    assert list(rooted.matches(tmp_path, folder, "*")) == []
