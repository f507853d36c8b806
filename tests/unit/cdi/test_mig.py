"""What a container gets for a MIG device: the parent's node and two capabilities, no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.edits_cache import NodeEdits
from dra_driver.cdi.model import Edits
from dra_driver.cdi.roots import Roots
from dra_driver.devices.device import NodeDevice
from dra_driver.devices.model import MigDevice
from dra_driver.errors import DeviceError, TransientError

GPU = make.gpu(3)
DEVICE = make.mig_device(3, "1g.10gb", 6)  # GPU instance 7, compute instance 0
GRAPHICS = replace(DEVICE, profile=replace(DEVICE.profile, id=47, name="1g.24gb+gfx"))


def mig_edits(found: MigDevice, roots: Roots) -> Edits:
    """What a container gets for a MIG device that is on the GPU."""
    gpu = replace(GPU, mig=make.mig(found))
    node = NodeEdits(common=Edits(), roots=roots)
    return node.device(NodeDevice(gpu=gpu, device=make.device(found)))


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    dev, proc = tmp_path / "dev", tmp_path / "proc"
    (dev / "dri").mkdir(parents=True)
    for name in ("nvidia3", "dri/card1"):
        (dev / name).touch()
    drm = tmp_path / "sys/bus/pci/devices" / GPU.pci_address / "drm/card1"
    drm.mkdir(parents=True)
    proc.mkdir()
    (proc / "devices").write_text(
        "Character devices:\n195 nvidia\n226 drm\n237 nvidia-caps\n\nBlock devices:\n"
    )
    return Roots(
        driver=tmp_path,
        driver_on_host="/",
        dev=dev,
        dev_on_host="/dev",
        proc=proc,
        sys=tmp_path / "sys",
    )


Write = Callable[[str, int, int], None]


@pytest.fixture
def capability(roots: Roots) -> Write:
    def write(name: str, minor: int, mode: int) -> None:
        path = roots.proc / "driver/nvidia/capabilities" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")

    return write


@pytest.fixture
def made(capability: Write) -> MigDevice:
    capability("gpu3/mig/gi7/access", 84, 0o444)
    capability("gpu3/mig/gi7/ci0/access", 85, 0o440)
    return DEVICE


def test_the_parent_and_both_capabilities_are_given(roots: Roots, made: MigDevice) -> None:
    nodes = mig_edits(made, roots).device_nodes

    assert [node.path for node in nodes] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ]


def test_capabilities_have_type_and_numbers_so_that_the_host_needs_no_node(
    roots: Roots, made: MigDevice
) -> None:
    _, instance, compute = mig_edits(made, roots).device_nodes

    assert (instance.major, instance.minor) == (237, 84)
    assert (compute.major, compute.minor) == (237, 85)
    assert (instance.file_mode, compute.file_mode) == (0o444, 0o440)
    assert instance.host_path is None


def test_nodes_elsewhere_on_the_host_are_named(roots: Roots, made: MigDevice) -> None:
    elsewhere = replace(roots, dev_on_host="/run/nvidia/dev")
    node = mig_edits(made, elsewhere).device_nodes[1]

    assert node.path == "/dev/nvidia-caps/nvidia-cap84"
    assert node.host_path == "/run/nvidia/dev/nvidia-caps/nvidia-cap84"


def test_graphics_nodes_are_given_to_graphics_profiles_alone(roots: Roots, made: MigDevice) -> None:
    plain = {node.path for node in mig_edits(made, roots).device_nodes}
    graphics = {node.path for node in mig_edits(GRAPHICS, roots).device_nodes}

    assert graphics - plain == {"/dev/dri/card1"}


def test_the_table_of_minor_numbers_serves_while_the_instances_files_are_not_there(
    roots: Roots,
) -> None:
    table = roots.proc / "driver/nvidia-caps/mig-minors"
    table.parent.mkdir(parents=True)
    table.write_text(
        "config 1\nmonitor 2\ngpu3/gi7/access 84\ngpu3/gi7/ci0/access 85\nodd line x\n"
    )
    nodes = mig_edits(DEVICE, roots).device_nodes

    assert [(node.minor, node.file_mode) for node in nodes[1:]] == [(84, 0o444), (85, 0o444)]


def test_a_capability_that_is_not_there_may_come(roots: Roots, capability: Write) -> None:
    capability("gpu3/mig/gi7/access", 84, 0o444)
    with pytest.raises(TransientError, match="gpu3/mig/gi7/ci0/access"):
        mig_edits(DEVICE, roots)


def test_a_kernel_driver_without_capabilities_is_named(roots: Roots, made: MigDevice) -> None:
    (roots.proc / "devices").write_text("Character devices:\n195 nvidia\n")
    with pytest.raises(DeviceError, match="has no nvidia-caps"):
        mig_edits(made, roots)


def test_a_missing_parent_is_reported(roots: Roots, made: MigDevice) -> None:
    (roots.dev / "nvidia3").unlink()
    with pytest.raises(DeviceError, match=r"/dev/nvidia3 of GPU .* is missing"):
        mig_edits(made, roots)
