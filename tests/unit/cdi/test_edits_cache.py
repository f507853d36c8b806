"""What containers get in common, with and without the hook program, and how long it is kept."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import driver_tree
import make
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Edits
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.errors import DeviceError

VERSION = "550.54.15"
FOLDER = "/usr/lib/x86_64-linux-gnu"
ALIASES = "/usr/local/nvidia/lib64"


def content(
    root: Path,
    *,
    hook_path: str = "",
    clock: Callable[[], float] = lambda: 0.0,
    nvml_version: Callable[[], str | None] = lambda: None,
) -> EditsCache:
    roots = Roots(
        driver=root,
        driver_on_host="/host",
        dev=root / "dev",
        dev_on_host="/dev",
        proc=root / "proc",
        sys=root / "sys",
    )
    return EditsCache(
        roots, hook_path=hook_path, kernel_release="6.8.0", clock=clock, nvml_version=nvml_version
    )


def mounts(edits: Edits) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_nvidias_older_runtime_is_disabled(driver_root: Path) -> None:
    assert content(driver_root).look().common.env == (
        f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}",
        "NVIDIA_VISIBLE_DEVICES=void",
    )


def test_control_nodes_that_exist_are_given(driver_root: Path) -> None:
    nodes = content(driver_root).look().common.device_nodes

    assert [node.path for node in nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_with_the_hook_program_files_stand_at_their_place_and_hooks_do_the_rest(
    driver_root: Path,
) -> None:
    edits = content(driver_root, hook_path="/opt/nvidia-cdi-hook").look().common

    cuda, ml = (f"{FOLDER}/{stem}.so.{VERSION}" for stem in ("libcuda", "libnvidia-ml"))
    assert mounts(edits) == {
        cuda: f"/host{cuda}",
        f"{FOLDER}/libcuda.so.1": f"/host{cuda}",
        f"{FOLDER}/libcuda.so": f"/host{cuda}",
        ml: f"/host{ml}",
        f"{FOLDER}/libnvidia-ml.so.1": f"/host{ml}",
        "/usr/bin/nvidia-smi": "/host/usr/bin/nvidia-smi",
    }
    assert [hook.args[1] for hook in edits.hooks] == [
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    compat, cache, _ = edits.hooks
    assert compat.args[2:] == (f"--host-driver-version={VERSION}",)
    assert cache.args[2:] == ("--folder", FOLDER)


def test_links_where_no_loader_searches_are_made_by_the_hook_program(driver_root: Path) -> None:
    folder = driver_root / FOLDER[1:]
    (folder / "nvidia/current").mkdir(parents=True)
    for path in list(folder.glob("lib*")):
        path.rename(folder / "nvidia/current" / path.name)
    links = content(driver_root, hook_path="/opt/nvidia-cdi-hook").look().common.hooks[0]

    assert links.args[1:4] == (
        "create-symlinks",
        "--link",
        f"libcuda.so.1::{FOLDER}/nvidia/current/libcuda.so",
    )


@pytest.mark.parametrize("hook_path", ["", "/opt/nvidia-cdi-hook"])
def test_a_link_that_mesa_has_too_is_never_a_mount_in_its_place(
    driver_root: Path, hook_path: str
) -> None:
    glx = driver_root / FOLDER[1:] / f"libGLX_nvidia.so.{VERSION}"
    glx.write_bytes(driver_tree.elf("libGLX_nvidia.so.0"))
    edits = content(driver_root, hook_path=hook_path).look().common

    assert f"{FOLDER}/libGLX_indirect.so.0" not in mounts(edits)
    made = [arg for hook in edits.hooks for arg in hook.args if "libGLX_indirect" in arg]
    link = f"libGLX_nvidia.so.{VERSION}::{FOLDER}/libGLX_indirect.so.0"
    assert made == ([link] if hook_path else [])


def test_hookless_libraries_also_stand_where_cuda_images_search(driver_root: Path) -> None:
    edits = content(driver_root).look().common
    cuda = f"/host{FOLDER}/libcuda.so.{VERSION}"

    assert edits.hooks == ()
    for path in (
        f"{FOLDER}/libcuda.so.{VERSION}",
        f"{ALIASES}/libcuda.so.1",
        f"{ALIASES}/libcuda.so",
        f"{FOLDER}/libcuda.so.1",
        f"{FOLDER}/libcuda.so",
    ):
        assert mounts(edits)[path] == cuda


def test_hookless_files_other_than_libraries_keep_their_name(driver_root: Path) -> None:
    name = f"libnvidia-simulator.so.{VERSION}"
    (driver_root / FOLDER[1:] / name).write_bytes(b"state")
    edits = content(driver_root).look().common

    assert mounts(edits)[f"{ALIASES}/{name}"] == f"/host{FOLDER}/{name}"


def test_hookless_links_outside_the_library_folders_are_mounts_of_their_own(
    driver_root: Path,
) -> None:
    allocator = driver_root / f"{FOLDER[1:]}/libnvidia-allocator.so.{VERSION}"
    allocator.write_bytes(driver_tree.elf("libnvidia-allocator.so.1"))
    edits = content(driver_root).look().common

    target = f"/host{FOLDER}/libnvidia-allocator.so.{VERSION}"
    assert mounts(edits)[f"{FOLDER}/gbm/nvidia-drm_gbm.so"] == target
    assert f"{ALIASES}/nvidia-drm_gbm.so" not in mounts(edits)


def test_no_container_path_is_mounted_twice(driver_root: Path) -> None:
    edits = content(driver_root).look().common

    assert len(mounts(edits)) == len(edits.mounts)


def test_files_are_read_only_and_sockets_are_not(driver_root: Path) -> None:
    socket = driver_root / "run/nvidia-fabricmanager/socket"
    socket.parent.mkdir(parents=True)
    socket.touch()
    edits = content(driver_root).look().common

    options = {mount.container_path: mount.options for mount in edits.mounts}
    assert options["/usr/bin/nvidia-smi"] == ("ro", "nosuid", "nodev", "rbind", "rprivate")
    assert options["/run/nvidia-fabricmanager/socket"] == (
        "nosuid",
        "nodev",
        "rbind",
        "rprivate",
        "noexec",
    )


def test_an_unchanged_driver_is_searched_once(driver_root: Path) -> None:
    kept = content(driver_root)

    assert kept.look().common is kept.look().common


def test_an_upgraded_driver_is_noticed_at_once(driver_root: Path) -> None:
    kept = content(driver_root)
    kept.look()
    folder = driver_root / FOLDER[1:]
    for stem in ("libcuda", "libnvidia-ml"):
        (folder / f"{stem}.so.{VERSION}").rename(folder / f"{stem}.so.560.1.2")
        (folder / f"{stem}.so.1").unlink()
        (folder / f"{stem}.so.1").symlink_to(f"{stem}.so.560.1.2")

    assert f"{FOLDER}/libcuda.so.560.1.2" in mounts(kept.look().common)


def test_a_reloaded_kernel_driver_is_noticed_at_once(driver_root: Path) -> None:
    folder = driver_root / FOLDER[1:]
    for stem in ("libcuda", "libnvidia-ml"):
        (folder / f"{stem}.so.560.1.2").write_bytes(driver_tree.elf(f"{stem}.so.1"))
    says = driver_root / "proc/driver/nvidia/version"
    says.parent.mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@b)\n"
    kept = content(driver_root)
    for version in (VERSION, "560.1.2", VERSION):
        says.write_text(text.format(version))

        assert f"{FOLDER}/libcuda.so.{version}" in mounts(kept.look().common)


def test_where_proc_does_not_say_the_running_version_nvml_does(driver_root: Path) -> None:
    (driver_root / FOLDER[1:] / "libcuda.so.560.1.2").write_bytes(driver_tree.elf("libcuda.so.1"))
    kept = content(driver_root, nvml_version=lambda: "560.1.2")

    assert f"{FOLDER}/libcuda.so.560.1.2" in mounts(kept.look().common)


def test_a_driver_container_that_starts_after_this_process_is_found(tmp_path: Path) -> None:
    root = tmp_path / "driver"
    roots = find_roots(
        driver_root=Path("/run/nvidia/driver"), container_driver_root=tmp_path, proc_root=tmp_path
    )
    kept = EditsCache(roots, hook_path=None, kernel_release="6.8.0", clock=lambda: 0.0)
    with pytest.raises(DeviceError, match="no GPU driver libraries"):
        kept.look()
    for entry in driver_tree.driver_root(root).iterdir():
        entry.rename(tmp_path / entry.name)
    (tmp_path / "devices").write_text((tmp_path / "proc/devices").read_text())

    nodes = kept.look().common + kept.look().device(make.whole(make.gpu(1)))
    hosts = {node.host_path for node in nodes.device_nodes}
    assert hosts == {
        f"/run/nvidia/driver/dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia1")
    }


def test_nodes_that_come_and_go_in_the_driver_root_are_noticed_at_once(driver_root: Path) -> None:
    roots = find_roots(
        driver_root=Path("/run/nvidia/driver"),
        container_driver_root=driver_root,
        proc_root=driver_root / "proc",
    )
    kept = EditsCache(roots, hook_path=None, kernel_release="6.8.0", clock=lambda: 0.0)
    own, away = driver_root / "dev", driver_root / "away"
    found = [kept.look().roots.dev_on_host]
    for before, after in ((own, away), (away, own)):
        before.rename(after)
        found.append(kept.look().roots.dev_on_host)

    assert found == ["/run/nvidia/driver/dev", "/dev", "/run/nvidia/driver/dev"]


@pytest.mark.parametrize("place", ["usr/local/nvidia/toolkit", "usr/bin", "opt/own"])
def test_a_hook_program_that_is_installed_later_is_noticed_at_once(
    driver_root: Path, place: str
) -> None:
    hook_path = "/opt/own/nvidia-cdi-hook" if place == "opt/own" else None
    program = driver_root / place / "nvidia-cdi-hook"
    roots = find_roots(
        driver_root=Path("/"), container_driver_root=driver_root, proc_root=driver_root / "proc"
    )
    kept = EditsCache(roots, hook_path=hook_path, kernel_release="6.8.0", clock=lambda: 0.0)
    if hook_path is None:
        assert kept.look().common.hooks == ()
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(b"update-ldcache")

    assert [hook.args[1] for hook in kept.look().common.hooks] == ["update-ldcache"]
    program.unlink()
    if hook_path is None:
        assert kept.look().common.hooks == ()


def test_a_hook_program_that_is_replaced_beside_a_driver_container_is_noticed_at_once(
    driver_root: Path, tmp_path: Path
) -> None:
    glx = driver_root / FOLDER[1:] / f"libGLX_nvidia.so.{VERSION}"
    glx.write_bytes(driver_tree.elf("libGLX_nvidia.so.0"))
    program = tmp_path / "toolkit/nvidia-cdi-hook"
    kept = content(driver_root, hook_path=str(program))
    known = []
    for second, commands in enumerate((b"update-ldcache", b"update-ldcache create-symlinks")):
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_bytes(commands)
        os.utime(program.parent, (second, second))  # a clock of 4 ms may not tell the two apart
        known.append([hook.args[1] for hook in kept.look().common.hooks])

    assert known == [["update-ldcache"], ["create-symlinks", "update-ldcache"]]


def test_a_control_node_made_later_is_noticed_at_once(driver_root: Path) -> None:
    kept = content(driver_root)
    kept.look()
    (driver_root / "dev/nvidia-modeset").touch()

    paths = [node.path for node in kept.look().common.device_nodes]
    assert "/dev/nvidia-modeset" in paths


def test_unwatched_changes_are_noticed_after_a_while(driver_root: Path) -> None:
    now = [0.0]
    kept = content(driver_root, clock=lambda: now[0])
    kept.look()
    config = driver_root / "etc/vulkan/icd.d/nvidia_icd.json"
    config.parent.mkdir(parents=True)
    config.touch()
    now[0] = 300.0

    assert "/etc/vulkan/icd.d/nvidia_icd.json" in mounts(kept.look().common)


def test_a_driver_installed_later_is_found(tmp_path: Path) -> None:
    root = tmp_path / "later"
    root.mkdir()
    kept = content(root)
    with pytest.raises(DeviceError, match="no GPU driver libraries"):
        kept.look()
    driver_tree.driver_root(root)

    assert kept.look().common.mounts


@pytest.mark.parametrize("change", ["mode", "new node", "new link", "gone"])
def test_a_change_of_a_gpus_graphics_nodes_is_noticed_at_once(
    driver_root: Path, change: str
) -> None:
    gpu = make.gpu(0)
    drm = driver_root / "sys/bus/pci/devices" / gpu.pci_address / "drm"
    dri = driver_root / "dev/dri"
    link = dri / f"by-path/pci-{gpu.pci_address}-card"
    for path in (drm / "card1", dri / "card1", dri / "card2"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    link.parent.mkdir()
    link.symlink_to("../card1")
    kept = content(driver_root)
    before = kept.look().device(make.whole(gpu))
    assert len(before.device_nodes) == 3, "the GPU's, the card, and the card by its path"

    match change:
        case "mode":
            (dri / "card1").chmod(0o600)
        case "new node":
            (drm / "renderD128").touch()
            (dri / "renderD128").touch()
        case "new link":
            (dri / f"by-path/pci-{gpu.pci_address}-render").symlink_to("../card1")
        case "gone":
            shutil.rmtree(drm)

    after = kept.look().device(make.whole(gpu))
    assert after == content(driver_root).look().device(make.whole(gpu))
    assert after != before


def test_a_gpus_own_nodes_are_read_each_time(driver_root: Path) -> None:
    kept = content(driver_root)
    before = kept.look().device(make.whole(make.gpu(1)))
    (driver_root / "dev/nvidia1").unlink()

    assert [node.path for node in before.device_nodes] == ["/dev/nvidia1"]
    with pytest.raises(DeviceError, match="is missing"):
        kept.look().device(make.whole(make.gpu(1)))
