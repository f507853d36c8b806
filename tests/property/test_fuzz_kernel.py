"""What /proc and /sys say, however it is broken: a sane answer, or an error of ours.

Much of it is written by others than the kernel: any process chooses its own name and environment,
and anyone who may mount chooses the names of mount points.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fuzz
import make
from dra_driver.cdi.devices import mig_edits
from dra_driver.cdi.model import Edits
from dra_driver.cdi.nodes import character_major, node_edits
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.devices.device import mig_of
from dra_driver.devices.model import PciAddress
from dra_driver.devices.pci import numa_node, pcie_root
from dra_driver.errors import DriverError
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from sampling import examples

ADDRESS = PciAddress("0000:17:00.0")
NO_FIXTURE_CHECK = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("dev", "proc/driver/nvidia", "proc/sys/kernel/random", "sys/bus/pci/devices"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def roots_of(root: Path) -> Roots:
    return find_roots(
        driver_root=root, dev_root=root, proc_root=root / "proc", sys_root=root / "sys"
    )


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


lines = st.lists(st.binary(max_size=20), max_size=4).map(b"\n".join)
devices = fuzz.broken(
    b"Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n511 nvidia-uvm\n226 drm\n\n"
    b"Block devices:\n259 blkext\n"
)


@given(content=devices | lines)
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK)
@example(b"Character devices:\n195 nvidia\xff\n")
@example(b"9" * 5000 + b" nvidia\n")
def test_the_list_of_devices_may_be_anything(root: Path, content: bytes) -> None:
    write(root / "proc/devices", content)
    major = character_major(root / "proc", "nvidia")
    assert major is None or major >= 0
    write(root / "dev/nvidia0", b"")
    found = fuzz.ours(lambda: node_edits(roots_of(root), "nvidia0"))
    assert found is None or isinstance(found, Edits | DriverError)


ACCESS = b"DeviceFileMinor: 30\nDeviceFileMode: 0444\nDeviceFileModify: 1\n"
MINORS = b"config 1\nmonitor 2\ngpu0/gi1/access 30\ngpu0/gi1/ci0/access 31\n"


@given(access=fuzz.broken(ACCESS) | lines, minors=fuzz.broken(MINORS) | lines)
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK)
@example(b"DeviceFileMinor: 0899\n", b"")
@example(b"DeviceFileMinor: " + b"7" * 5000, b"")
@example(b"\xff", b"gpu0/gi1/access \xff\n")
@example(b"", b"gpu0/gi1/access " + b"9" * 5000 + b"\n")
def test_the_capabilities_of_mig_devices_may_be_anything(
    root: Path, access: bytes, minors: bytes
) -> None:
    ids = mig_of(make.mig_device(0)).instance
    assert ids is not None
    capabilities = root / "proc/driver/nvidia/capabilities"
    shutil.rmtree(capabilities, ignore_errors=True)
    write(root / "proc/devices", b"Character devices:\n195 nvidia\n235 nvidia-caps\n")
    write(root / "proc/driver/nvidia-caps/mig-minors", minors)
    write(capabilities / "gpu0/mig/gi1/access", access)
    write(capabilities / "gpu0/mig/gi1/ci0/access", access)
    write(root / "dev/nvidia0", b"")
    found = fuzz.ours(lambda: mig_edits(make.gpu(0), ids, roots_of(root), has_graphics=False))
    if isinstance(found, Edits):
        assert all(node.minor is not None and node.minor < 10**9 for node in found.device_nodes)
    else:
        assert isinstance(found, DriverError)


@given(link=st.binary(min_size=1, max_size=60).filter(lambda text: b"\0" not in text), node=lines)
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK)
@example(b"../../../devices/pci0000:15/0000:15:01.0/0000:17:00.0", b"\xff\n")
@example(b"../../../devices/pci0000:15/0000:17:00.0", b"9" * 5000)
def test_the_tree_of_pci_devices_may_be_anything(root: Path, link: bytes, node: bytes) -> None:
    device = root / "sys/bus/pci/devices" / ADDRESS
    if device.is_symlink():
        device.unlink()
    shutil.rmtree(device, ignore_errors=True)
    device.symlink_to(os.fsdecode(link))
    found = pcie_root(root / "sys", ADDRESS)
    assert found is None or found.startswith("pci")
    device.unlink()
    write(device / "numa_node", node)
    number = numa_node(root / "sys", ADDRESS)
    assert number is None or number >= 0


names = st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name)


@pytest.fixture
def renamed() -> Iterator[Callable[[bytes], None]]:
    """Give this process another name, as any process may, and its own one in the end."""
    path = Path("/proc/self/comm")
    own = path.read_bytes()
    yield lambda name: path.write_bytes(name) and None
    path.write_bytes(own)


@given(name=names)
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK, max_examples=examples(30))
@example(b"\xff\xfe")
@example(b") R 1 (")
@example(b"a\nb")
@example(b"nvidia-cuda-mps")
def test_a_process_of_any_name_does_not_disturb_the_search(
    renamed: Callable[[bytes], None], tmp_path: Path, name: bytes
) -> None:
    renamed(name)
    assert processes.marked(tmp_path) == []
    found = processes.daemon_at(os.getpid())
    assert found is not None
    assert found.pid == os.getpid()
    assert processes.is_alive(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@given(name=names.filter(lambda name: b"/" not in name and name not in {b".", b".."}))
@settings(deadline=None, suppress_health_check=NO_FIXTURE_CHECK, max_examples=examples(30))
@example(b"\xff")
@example(b"a b\tc\nd")
@example(b"\\040")
@example("\u2028\x0b\x0c\x1c\x85".encode())
def test_a_mount_point_of_any_name_is_counted_as_one(
    tmp_path_factory: pytest.TempPathFactory, name: bytes
) -> None:
    folder = tmp_path_factory.mktemp("mounts")
    source, target, other = folder / "source", folder / os.fsdecode(name), folder / "__other"
    for path in (source, other, folder / "hidden"):
        path.mkdir(exist_ok=True)

    def count() -> tuple[int, int, int]:
        return mounts.layers(target), mounts.layers(other), mounts.layers(source)

    bound = {target: source, other: source}
    counted = mounts.in_private_mounts(bound, count, without=folder / "hidden")
    assert counted[:2] == (1, 1)
    assert mounts.layers(target) == 0
