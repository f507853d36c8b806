"""The switch of a PCI function's driver where the kernel refuses, or never comes back."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.devices.model import PciAddress
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.errors import DeviceError, TransientError
from dra_driver.host.children import ends_within
from worlds.pci import PciTree

GPU = PciAddress("0000:10:00.0")
PATIENCE = 20.0


class Node:
    """A GPU on a bus whose files do nothing by themselves."""

    def __init__(self, root: Path) -> None:
        self.tree = PciTree(root)
        self.folder = self.tree.add(GPU, group=7)
        self.bus = PciBus(root)

    def to_vfio(self, seconds: float = PATIENCE) -> None:
        self.bus.switch(GPU, "vfio-pci", override="vfio-pci", seconds=seconds)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_where_nothing_is_to_be_done_nothing_is_written(node: Node) -> None:
    (node.folder / "driver_override").chmod(0)
    before = (node.folder / "driver_override").stat().st_mtime_ns
    node.bus.switch(GPU, "nvidia", override="", seconds=PATIENCE)
    assert (node.folder / "driver_override").stat().st_mtime_ns == before


def test_a_refusal_is_told_with_what_refused(node: Node) -> None:
    with pytest.raises(DeviceError, match=r"driver of 0000:10:00.0 cannot .*unbind: No such file"):
        node.to_vfio()


def test_what_has_no_effect_is_an_error(node: Node) -> None:
    for path in ("nvidia/unbind", "vfio-pci/bind"):
        (node.tree.root / "bus/pci/drivers" / path).touch()
    with pytest.raises(DeviceError, match="bound to nvidia after it was given to vfio-pci"):
        node.to_vfio()
    assert (node.folder / "driver_override").read_text() == "vfio-pci"
    assert (node.tree.root / "bus/pci/drivers/vfio-pci/bind").read_text() == GPU


def test_a_writer_that_was_killed_is_told_as_such(node: Node) -> None:
    os.mkfifo(node.tree.root / "bus/pci/drivers/nvidia/unbind")
    with ThreadPoolExecutor(1) as pool:
        switch = pool.submit(node.to_vfio)
        while not node.bus.hanging():
            pass
        node.bus._hanging[GPU].kill()
        with pytest.raises(DeviceError, match=r"cannot be changed: the process .* status -9; see"):
            switch.result()


def test_a_writer_that_another_thread_has_seen_end_has_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ends_within(process, PATIENCE)


def test_a_kernel_that_hangs_is_left_and_not_asked_twice(node: Node) -> None:
    unbind = node.tree.root / "bus/pci/drivers/nvidia/unbind"
    os.mkfifo(unbind)
    (node.tree.root / "bus/pci/drivers/vfio-pci/bind").touch()
    with pytest.raises(
        TransientError, match=r"kernel does not let go .*process (\d+) hangs"
    ) as one:
        node.to_vfio(seconds=0.2)
    with pytest.raises(TransientError) as other:
        node.to_vfio(seconds=PATIENCE)
    assert str(other.value) == str(one.value)  # the same process

    assert node.bus.hanging() == {GPU}

    def come_back() -> None:
        with unbind.open() as pipe:
            assert pipe.read() == GPU

    kernel = threading.Thread(target=come_back)
    kernel.start()
    kernel.join(PATIENCE)
    node.tree.bind(GPU, "vfio-pci")
    ended = threading.Event()
    while node.bus.hanging():
        ended.wait(0.01)
    node.to_vfio()
