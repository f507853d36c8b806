"""The files of a simulated driver root, and how it is made and removed."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from dra_driver.simulator import driver_root, userspace
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.machine import Machine


def test_ldconfig_accepts_the_library_folder(machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "ld.so.cache"
    done = subprocess.run(
        ["/sbin/ldconfig", "-f", "/dev/null", "-C", str(cache), str(machine.library_folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-C", str(cache), "-p"], capture_output=True, text=True, check=True
    )
    assert "libnvidia-simulator.so.1" in listed.stdout
    # ldconfig put a link libnvidia-simulator.so.1 there; the library still finds the state.
    assert machine.state_file.name.endswith(machine.description.driver_version)


def test_device_nodes_have_the_drivers_numbers(machine: Machine) -> None:
    if machine.description.nodes.kind is not NodeKind.DEVICE:
        pytest.skip(machine.description.nodes.note)
    for name, major, minor in (
        ("nvidia5", 195, 5),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm-tools", machine.description.nodes.uvm_major, 1),
    ):
        status = (machine.dev_root / "dev" / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (major, minor)
        assert stat.S_IMODE(status.st_mode) == 0o666
    devices = (machine.proc_root / "devices").read_text()
    assert f"\n{machine.description.nodes.uvm_major} nvidia-uvm\n" in devices


def test_a_folder_with_other_files_is_neither_filled_nor_removed(tmp_path: Path) -> None:
    root = tmp_path / "precious"
    root.mkdir()
    (root / "thesis.txt").touch()
    with pytest.raises(SetupError, match="is not a simulated machine"):
        Machine.create(root, "t4x4")
    with pytest.raises(SetupError, match="nothing was removed"):
        driver_root.down(root)
    assert [path.name for path in root.iterdir()] == ["thesis.txt"]


@pytest.mark.usefixtures("needs_root")
def test_down_refuses_while_something_is_mounted_below(machine: Machine) -> None:
    place = machine.driver_root / "run"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("cannot mount here")
    try:
        with pytest.raises(SetupError, match="is mounted below"):
            machine.destroy()
    finally:
        subprocess.run(["umount", str(place)], check=True)
    machine.destroy()


def test_an_unreachable_archive_is_reported_and_stand_ins_are_used(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("this machine has no apt-get")
    apt, cache = tmp_path / "apt", tmp_path / "cache"
    apt.mkdir()
    (apt / "sources.list").write_text("deb http://127.0.0.1:9/debian bookworm main\n")
    said: list[str] = []
    with pytest.raises(SetupError, match=r"apt-get failed.*127\.0\.0\.1"):
        userspace.real(cache, os.environ, said.append, apt)
    assert len(said) == 1
    assert not list(cache.glob("userspace-*"))
    instead = userspace.stand_ins(cache, os.environ, "535.261.03", "no network")
    assert not instead.real
    assert instead.note == "stand-ins: no network"
