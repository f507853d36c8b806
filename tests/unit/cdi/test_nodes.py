"""Device nodes as edits. Real nodes need root; /dev/null stands for one."""

import os
from pathlib import Path

import pytest

import make
from dra_driver.cdi.devices import gpu_edits
from dra_driver.cdi.model import DeviceNode
from dra_driver.cdi.nodes import node_edits
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.errors import DeviceError


def roots_at(root: Path, *, on_host: str | None = None) -> Roots:
    return Roots(
        driver=root,
        driver_on_host=str(root),
        dev=root / "dev",
        dev_on_host=on_host or str(root / "dev"),
        proc=root / "proc",
        sys=root / "sys",
    )


def add_drm(root: Path, address: str, *names: str) -> None:
    (root / "dev/dri/by-path").mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / "sys/bus/pci/devices" / address / "drm" / name).mkdir(parents=True)
        node = root / "dev/dri" / name
        node.touch()
        node.chmod(0o660)
        kind = "render" if name.startswith("render") else "card"
        (root / f"dev/dri/by-path/pci-{address}-{kind}").symlink_to(f"../{name}")


def nodes_of(edits: object) -> list[str]:
    return [node.path for node in edits.device_nodes]  # type: ignore[attr-defined]


def test_a_real_node_is_written_with_type_numbers_and_mode() -> None:
    roots = find_roots(driver_root=Path("/"), dev_root=Path("/"))
    status = Path("/dev/null").stat()
    edits = node_edits(roots, "null")

    assert edits is not None
    assert edits.device_nodes == (
        DeviceNode(path="/dev/null", major=1, minor=3, file_mode=status.st_mode & 0o7777),
    )
    assert edits.additional_gids == ()


def test_a_node_that_is_elsewhere_on_the_host_says_where(driver_root: Path) -> None:
    edits = node_edits(roots_at(driver_root), "nvidia1")

    assert edits is not None
    [node] = edits.device_nodes
    assert (node.path, node.host_path) == ("/dev/nvidia1", f"{driver_root}/dev/nvidia1")


def test_a_node_with_the_same_path_on_the_host_has_no_host_path(driver_root: Path) -> None:
    edits = node_edits(roots_at(driver_root, on_host="/dev"), "nvidia1")

    assert edits is not None
    assert edits.device_nodes[0].host_path is None


@pytest.mark.parametrize(
    ("name", "major", "minor"),
    [("nvidia1", 195, 1), ("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0)],
)
def test_a_plain_file_stands_for_a_node_with_the_kernels_numbers(
    driver_root: Path, name: str, major: int, minor: int
) -> None:
    edits = node_edits(roots_at(driver_root), name)

    assert edits is not None
    assert (edits.device_nodes[0].major, edits.device_nodes[0].minor) == (major, minor)


def test_a_plain_file_without_known_numbers_is_refused(driver_root: Path) -> None:
    (driver_root / "dev/other").touch()
    (driver_root / "proc/devices").write_text("Block devices:\n195 nvidia\n")

    for name in ("other", "nvidia0"):
        with pytest.raises(DeviceError, match="is not a character device"):
            node_edits(roots_at(driver_root), name)


def test_a_folder_is_not_a_node(driver_root: Path) -> None:
    (driver_root / "dev/nvidia7").mkdir()

    with pytest.raises(DeviceError, match="is not a character device"):
        node_edits(roots_at(driver_root), "nvidia7")


def test_an_absent_node_gives_none(driver_root: Path) -> None:
    assert node_edits(roots_at(driver_root), "nvidia-modeset") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_a_node_for_a_group_only_brings_the_group_along(driver_root: Path) -> None:
    node = driver_root / "dev/nvidia0"
    os.chown(node, 0, 44)
    open_to_all = node_edits(roots_at(driver_root), "nvidia0")
    node.chmod(0o660)
    for_the_group = node_edits(roots_at(driver_root), "nvidia0")

    assert open_to_all is not None
    assert open_to_all.additional_gids == ()
    assert for_the_group is not None
    assert for_the_group.additional_gids == (44,)
    assert for_the_group.device_nodes[0].gid == 44


def test_a_gpu_has_its_own_node_and_no_other_gpus(driver_root: Path) -> None:
    assert nodes_of(gpu_edits(make.gpu(1), roots_at(driver_root))) == ["/dev/nvidia1"]


def test_a_gpu_without_node_is_an_error_that_names_it(driver_root: Path) -> None:
    with pytest.raises(DeviceError, match="is missing") as caught:
        gpu_edits(make.gpu(5), roots_at(driver_root))

    assert f"{driver_root}/dev/nvidia5" in str(caught.value)
    assert make.gpu(5).uuid in str(caught.value)


def test_drm_nodes_are_those_of_the_gpus_address(driver_root: Path) -> None:
    address = make.gpu(0).pci_address
    add_drm(driver_root, address, "card1", "renderD128")
    add_drm(driver_root, make.gpu(1).pci_address, "card2", "renderD129")
    (driver_root / "sys/bus/pci/devices" / address / "drm/controlD64").mkdir()

    edits = gpu_edits(make.gpu(0), roots_at(driver_root))
    own = [path for path in nodes_of(edits) if "by-path" not in path]
    assert own == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]


def test_by_path_names_are_the_same_nodes_again(driver_root: Path) -> None:
    address = make.gpu(0).pci_address
    add_drm(driver_root, address, "card1", "renderD128")

    edits = gpu_edits(make.gpu(0), roots_at(driver_root))
    by_path = {node.path: node for node in edits.device_nodes if "by-path" in node.path}
    card = by_path[f"/dev/dri/by-path/pci-{address}-card"]
    assert (card.host_path, card.major, card.minor) == (f"{driver_root}/dev/dri/card1", 226, 1)
    assert len(by_path) == 2
    assert edits.hooks == ()
