"""Two views of the same folders: this process's and the container runtime's."""

from pathlib import Path

import pytest

from dra_driver.cdi.roots import find_roots
from dra_driver.errors import SetupError


def test_on_the_host_both_views_are_one(tmp_path: Path) -> None:
    roots = find_roots(driver_root=tmp_path)

    assert roots.driver == tmp_path
    assert roots.driver_file_on_host("/usr/bin/nvidia-smi") == f"{tmp_path}/usr/bin/nvidia-smi"


def test_in_a_container_specs_name_the_hosts_paths(tmp_path: Path) -> None:
    roots = find_roots(driver_root=Path("/"), container_driver_root=tmp_path)

    assert roots.driver == tmp_path
    assert roots.driver_file_on_host("/usr/bin/nvidia-smi") == "/usr/bin/nvidia-smi"


def test_a_driver_container_with_nodes_of_its_own_gives_them(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    roots = find_roots(driver_root=Path("/run/nvidia/driver"), container_driver_root=tmp_path)

    assert roots.dev == tmp_path / "dev"
    assert roots.node_on_host("nvidia0") == "/run/nvidia/driver/dev/nvidia0"


def test_a_driver_container_without_nodes_leaves_them_to_the_host(tmp_path: Path) -> None:
    roots = find_roots(driver_root=Path("/run/nvidia/driver"), container_driver_root=tmp_path)

    assert roots.dev == Path("/dev")
    assert roots.node_on_host("nvidia0") == "/dev/nvidia0"


def test_a_dev_root_can_be_chosen(tmp_path: Path) -> None:
    roots = find_roots(driver_root=Path("/"), container_driver_root=tmp_path, dev_root=Path("/"))
    other = find_roots(driver_root=tmp_path, dev_root=Path("/other"))

    assert (roots.dev, roots.dev_on_host) == (tmp_path / "dev", "/dev")
    assert (other.dev, other.dev_on_host) == (Path("/other/dev"), "/other/dev")


def test_a_chosen_dev_root_may_be_seen_elsewhere(tmp_path: Path) -> None:
    given = {"container_driver_root": tmp_path, "container_dev_root": Path("/host")}
    roots = find_roots(driver_root=Path("/run/nvidia/driver"), dev_root=Path("/"), **given)
    unsaid = find_roots(driver_root=Path("/run/nvidia/driver"), **given)

    assert (roots.dev, roots.dev_on_host) == (Path("/host/dev"), "/dev")
    assert roots.own_dev() is None
    assert (unsaid.dev, unsaid.dev_on_host) == (Path("/dev"), "/dev")


def test_a_view_that_was_given_and_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not a folder"):
        find_roots(driver_root=Path("/"), container_driver_root=tmp_path / "absent")


def test_nodes_that_come_with_a_driver_container_are_found_when_they_are_there(
    tmp_path: Path,
) -> None:
    roots = find_roots(driver_root=Path("/run/nvidia/driver"), container_driver_root=tmp_path)
    assert roots.now() == roots
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    assert roots.now().dev == tmp_path / "dev"
    assert roots.now().node_on_host("nvidia0") == "/run/nvidia/driver/dev/nvidia0"
    (tmp_path / "dev/nvidiactl").unlink()
    assert roots.now() == roots


def test_a_chosen_dev_root_stays(tmp_path: Path) -> None:
    roots = find_roots(driver_root=tmp_path, dev_root=Path("/other"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    assert roots.now() == roots
