"""Which processes in pods have a device open: by its number, in the procfs of this machine."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import make
from dra_driver.cdi.roots import Roots
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.reconcile.still_running import StillRunning
from dra_driver.devices.holders import device_number, has_open
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.node.still_running import still_running
from worlds.kubelet_pods import serving_pods

UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
DEVICE = Path("/dev/full")


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a device open, by a path that says nothing."""
    with DEVICE.open() as file:
        process = subprocess.Popen(["sleep", "99999"], stdin=file)
    yield process
    process.kill()
    process.wait()


def test_a_device_is_known_by_its_number_whatever_its_node_is_called(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    process = Path(f"/proc/{holder.pid}")
    link = tmp_path / "nvidia0"
    link.symlink_to(DEVICE)
    number = device_number(link)
    assert number == DEVICE.stat().st_rdev
    assert has_open(process, number)
    assert not has_open(process, os.makedev(195, 77))
    (tmp_path / "plain").touch()
    assert device_number(tmp_path / "plain") is device_number(tmp_path / "none") is None


def test_files_on_a_file_server_are_not_opened(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    (process / "fd/0").symlink_to(DEVICE)
    (process / "fdinfo/0").write_text("pos:\t0\nflags:\t0100002\nmnt_id:\t28\n")
    for kind, is_seen in (("nfs4", False), ("fuse.sshfs", False), ("tmpfs", True)):
        (process / "mountinfo").write_text(f"28 1 0:6 / /dev rw shared:2 - {kind} dev rw\n")
        assert has_open(process, DEVICE.stat().st_rdev) is is_seen


def test_a_pods_process_with_the_gpu_open_keeps_a_claim_that_is_gone(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    record = seen_from(tmp_path, holder)
    with serving_pods(tmp_path / "plugins", {}):
        why = asked(tmp_path).why(record, (), time.time() - 60)
        assert why == f"sleep (PID {holder.pid}) of pod UID {UID} has {record.held_gpus[0]} open"
        assert asked(tmp_path).why(record, (), time.time() + 60) is None


def seen_from(root: Path, holder: subprocess.Popen[bytes]) -> ClaimRecord:
    """Make a node on which the process is one of a pod; return the record of a claim of its GPU."""
    (root / "cgroup/kubepods").mkdir(parents=True)
    (root / "cgroup/cgroup.controllers").touch()
    (root / "dev").mkdir()
    (root / "dev/nvidia0").symlink_to(DEVICE)
    process = root / f"proc/{holder.pid}"
    process.mkdir(parents=True)
    (root / "proc/self").symlink_to("1")
    for name in ("fd", "fdinfo", "mountinfo", "stat"):
        (process / name).symlink_to(f"/proc/{holder.pid}/{name}")
    (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{'ab' * 32}\n")
    return make.record(make.gpu(0))


def asked(root: Path) -> StillRunning:
    roots = Roots(
        driver=root, driver_on_host="/", dev=root / "dev", dev_on_host="/dev", proc=root / "proc"
    )
    return still_running(
        PodResources(root / "plugins", [root]),
        roots=roots,
        cgroup_root=root / "cgroup",
        inventory=lambda: make.inventory(make.gpu(0)),
    )
