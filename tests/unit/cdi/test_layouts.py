"""What a container gets on each layout of the table: all of the running driver, nothing else."""

from pathlib import Path

import pytest

import driver_layouts
from dra_driver.cdi.model import Edits
from dra_driver.errors import DeviceError
from driver_layouts import EGL_PLATFORMS, LAYOUTS, NEW, OLD, RUNNING, Layout, look, node

ALIASES = "/usr/local/nvidia/lib64"

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
both_ways = pytest.mark.parametrize("hook", ["", "/opt/nvidia-cdi-hook"], ids=["hookless", "hooks"])


def edits(root: Path, hook: str = "") -> Edits:
    return look(root, hook, on_host="/host").common


def mounts(of: Edits) -> dict[str, str]:
    """Container path to path inside the driver root."""
    return {mount.container_path: mount.host_path.removeprefix("/host") for mount in of.mounts}


def links(of: Edits) -> dict[str, str]:
    """Container path to text of each link that the hook program makes."""
    args = [arg for hook in of.hooks if hook.args[1] == "create-symlinks" for arg in hook.args[2:]]
    pairs = (arg.split("::") for arg in args if "::" in arg)
    return {path: target for target, path in pairs}


def opened(of: Edits, folder: str, name: str) -> str | None:
    """Path inside the root of what a loader finds under a name, by folder, link or alias."""
    shown, made = mounts(of), links(of)
    for path in (f"{ALIASES}/{name}", f"{folder}/{name}"):
        for _ in range(3):
            if path in shown:
                return shown[path]
            if path not in made:
                break
            path = f"{path.rpartition('/')[0]}/{made[path]}"  # noqa: PLW2901 (follows the links)
    return None


@every_layout
@both_ways
def test_each_library_of_the_running_driver_is_there_under_its_name_and_its_soname(
    tmp_path: Path, layout: Layout, hook: str
) -> None:
    layout.build(node(tmp_path))
    of = edits(tmp_path, hook)

    for soname in (*layout.compute, *layout.graphics):
        real = f"{layout.folder}/{soname.partition('.so')[0]}.so.{RUNNING}"
        assert mounts(of)[real] == real
        assert opened(of, layout.folder, soname) == real
    assert opened(of, layout.folder, "libcuda.so") == f"{layout.folder}/libcuda.so.{RUNNING}"
    assert set(layout.others) <= mounts(of).keys()


@every_layout
@both_ways
def test_no_file_is_of_another_driver(tmp_path: Path, layout: Layout, hook: str) -> None:
    layout.build(node(tmp_path))

    shown = mounts(edits(tmp_path, hook)).values()
    versions = {driver_layouts.version_in(tmp_path / path.lstrip("/")) for path in shown}
    assert versions - {""} == {RUNNING}
    assert not [path for path in shown if OLD in path or NEW in path]


@every_layout
@both_ways
def test_egl_platforms_configs_programs_and_firmware_come_along(
    tmp_path: Path, layout: Layout, hook: str
) -> None:
    layout.build(node(tmp_path))
    of = edits(tmp_path, hook)

    if layout.platforms is not None:
        for stem, version in EGL_PLATFORMS.items():
            real = f"{layout.platforms}/{stem}.so.{version}"
            assert opened(of, layout.platforms, f"{stem}.so.1") == real
    assert {*layout.configs, *layout.programs} <= mounts(of).keys()
    if layout.firmware is not None:
        assert f"{layout.firmware}/nvidia/{RUNNING}/gsp_ga10x.bin" in mounts(of)


@every_layout
def test_a_spec_written_with_hooks_and_one_without_apply_to_one_container(
    tmp_path: Path, layout: Layout
) -> None:
    layout.build(node(tmp_path))
    for module in ("drivers/nvidia_drv.so", f"extensions/libglxserver_nvidia.so.{RUNNING}"):
        driver_layouts.library(tmp_path, f"/usr/lib/xorg/modules/{module}", None)
    without, with_hooks = edits(tmp_path), edits(tmp_path, "/opt/nvidia-cdi-hook")

    taken = mounts(without) | mounts(with_hooks)
    assert not links(with_hooks).keys() & taken.keys(), "a link where something is mounted"
    for path in mounts(without).keys() & mounts(with_hooks).keys():
        assert mounts(without)[path] == mounts(with_hooks)[path]


@every_layout
def test_nvidias_hook_gets_the_folders_of_this_driver(tmp_path: Path, layout: Layout) -> None:
    layout.build(node(tmp_path))
    driver_layouts.library(
        tmp_path, f"{layout.folder}/vdpau/libvdpau_nvidia.so.{RUNNING}", "libvdpau_nvidia.so.1"
    )

    [folders] = [entry for entry in edits(tmp_path).env if entry.startswith("NVIDIA_CTK_LIBCUDA")]
    assert layout.folder in folders.partition("=")[2].split(":")
    assert "vdpau" not in folders


@pytest.mark.parametrize("running", [NEW, "550.54"])
def test_without_the_running_drivers_libcuda_both_versions_are_named(
    tmp_path: Path, running: str
) -> None:
    LAYOUTS["ubuntu"].build(node(tmp_path, running=running))

    with pytest.raises(DeviceError) as caught:
        edits(tmp_path)
    text = str(caught.value)
    assert f"libcuda.so.{running} of the running GPU driver {running} is not under" in text
    assert f"libraries of version {RUNNING}" in text
    assert "reboot the node" in text


def test_a_driver_without_compute_libraries_is_an_error(tmp_path: Path) -> None:
    graphics = ("libnvidia-ml.so.1", *driver_layouts.GRAPHICS)
    driver_layouts.install(node(tmp_path), "/opt/nvidia", sonames=graphics)
    driver_layouts.cache_folder(tmp_path, "/opt/nvidia")

    with pytest.raises(DeviceError, match=rf"libcuda\.so\.{RUNNING} .* install the driver's comp"):
        edits(tmp_path)


@pytest.mark.parametrize("name", ["ubuntu", "debian", "flatcar", "split packages", "no soname"])
def test_an_unknown_running_version_uses_the_loaders_choice(tmp_path: Path, name: str) -> None:
    LAYOUTS[name].build(node(tmp_path, running=None))

    folder = LAYOUTS[name].folder
    assert mounts(edits(tmp_path))[f"{folder}/libcuda.so.{RUNNING}"]
