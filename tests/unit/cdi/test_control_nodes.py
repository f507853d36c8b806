"""The nodes that every container with a GPU gets: had in any case, or an error that says how."""

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.cdi.model import DeviceNode
from dra_driver.cdi.nodes import NodeMaker, control_edits
from dra_driver.cdi.roots import Roots
from dra_driver.errors import DeviceError


def control(root: Path, make: NodeMaker | None = None) -> dict[str, DeviceNode]:
    """The control nodes of a driver root, by path in the container."""
    roots = Roots(
        driver=root, driver_on_host="/", dev=root / "dev", dev_on_host="/dev", proc=root / "proc"
    )
    return {node.path: node for node in control_edits(roots, make).device_nodes}


def unload(root: Path, name: str) -> None:
    """The kernel module of a node is not loaded, so there is no node of it."""
    (root / "dev" / name).unlink()
    driver = name.removesuffix("ctl")
    devices = (root / "proc/devices").read_text().splitlines(keepends=True)
    left = [line for line in devices if line.split()[-1] != driver]
    (root / "proc/devices").write_text("".join(left))


def test_optional_nodes_are_given_when_they_are_there(driver_root: Path) -> None:
    assert set(control(driver_root)) == {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    (driver_root / "dev/nvidia-modeset").touch()
    (driver_root / "dev/nvidia-uvm-tools").touch()

    assert {"/dev/nvidia-modeset", "/dev/nvidia-uvm-tools"} < set(control(driver_root))


def test_only_an_optional_node_that_is_not_a_device_is_omitted(driver_root: Path) -> None:
    (driver_root / "dev/nvidia-modeset").mkdir()
    with capture_logs() as lines:
        nodes = control(driver_root)

    assert set(nodes) == {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    [line] = lines
    assert (line["event"], line["node"]) == ("device node left out", "/dev/nvidia-modeset")
    assert line["log_level"] == "warning"


def test_a_required_node_must_be_a_device(driver_root: Path) -> None:
    (driver_root / "dev/nvidia-uvm").unlink()
    (driver_root / "dev/nvidia-uvm").mkdir()

    with pytest.raises(DeviceError, match="nvidia-uvm is not a character device"):
        control(driver_root)


def test_a_missing_uvm_node_is_made(driver_root: Path) -> None:
    unload(driver_root, "nvidia-uvm")
    devices = (driver_root / "proc/devices").read_text()

    def make() -> None:
        (driver_root / "proc/devices").write_text(f"{devices}509 nvidia-uvm\n")
        for name in ("nvidia-uvm", "nvidia-uvm-tools"):
            (driver_root / "dev" / name).touch(mode=0o666)

    nodes = control(driver_root, make)
    assert (nodes["/dev/nvidia-uvm"].major, nodes["/dev/nvidia-uvm"].minor) == (509, 0)
    assert "/dev/nvidia-uvm-tools" in nodes


@pytest.mark.parametrize(("name", "numbers"), [("nvidiactl", (195, 255)), ("nvidia-uvm", (510, 0))])
def test_a_loaded_module_needs_no_node_on_the_host(
    driver_root: Path, name: str, numbers: tuple[int, int]
) -> None:
    (driver_root / "dev" / name).unlink()
    node = control(driver_root, lambda: "the folder is read-only")[f"/dev/{name}"]

    assert (node.major, node.minor) == numbers
    assert (node.file_mode, node.host_path) == (0o666, None)


@pytest.mark.parametrize(
    ("make", "said"),
    [(None, "runs; run"), (lambda: "it hangs", "and it could not be made (it hangs); run")],
)
def test_without_uvm_the_error_says_how_to_make_it(
    driver_root: Path, make: NodeMaker | None, said: str
) -> None:
    unload(driver_root, "nvidia-uvm")

    with pytest.raises(DeviceError) as caught:
        control(driver_root, make)
    assert "device node /dev/nvidia-uvm is missing" in str(caught.value)
    assert f"{said} `nvidia-modprobe -c 0 -u` on the node" in str(caught.value)


def test_without_the_kernel_driver_the_error_says_to_load_it(driver_root: Path) -> None:
    shutil.rmtree(driver_root / "dev")
    (driver_root / "proc/devices").write_text("Character devices:\n1 mem\n")

    with pytest.raises(DeviceError, match=r"/dev/nvidiactl is missing.*modprobe nvidia"):
        control(driver_root)
