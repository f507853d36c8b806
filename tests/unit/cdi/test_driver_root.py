"""Which files of a driver root belong in containers."""

from pathlib import Path

import pytest

import driver_tree
from dra_driver.cdi.driver_root import DriverFile, DriverFiles, find_driver_files, watched_paths
from dra_driver.cdi.roots import find_roots
from dra_driver.errors import DeviceError

VERSION = "550.54.15"
FOLDER = "/usr/lib/x86_64-linux-gnu"


def found(root: Path) -> DriverFiles:
    roots = find_roots(driver_root=root, sys_root=root / "sys")
    return find_driver_files(roots, kernel_release="6.8.0")


def add(root: Path, path: str, content: bytes = b"x") -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def library_paths(root: Path) -> list[str]:
    return [library.path for library in found(root).libraries.libraries]


def links(root: Path) -> dict[str, str]:
    return {link.path: link.target for link in found(root).libraries.links}


def test_libraries_of_the_drivers_version_are_found_with_their_sonames(driver_root: Path) -> None:
    libraries = found(driver_root).libraries

    assert libraries.version == VERSION
    assert libraries.folders == (FOLDER,)
    assert {library.path: library.soname for library in libraries.libraries} == {
        f"{FOLDER}/libcuda.so.{VERSION}": "libcuda.so.1",
        f"{FOLDER}/libnvidia-ml.so.{VERSION}": "libnvidia-ml.so.1",
    }


def test_links_are_the_sonames_and_the_plain_names_that_the_root_has(driver_root: Path) -> None:
    assert links(driver_root) == {
        f"{FOLDER}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"{FOLDER}/libcuda.so": "libcuda.so.1",
        f"{FOLDER}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
    }


def test_libcuda_has_its_plain_name_even_where_the_root_lacks_it(driver_root: Path) -> None:
    (driver_root / FOLDER[1:] / "libcuda.so").unlink()

    assert links(driver_root)[f"{FOLDER}/libcuda.so"] == "libcuda.so.1"


def test_other_files_of_that_version_come_along_whatever_they_are(driver_root: Path) -> None:
    add(driver_root, f"{FOLDER}/libnvidia-simulator.so.{VERSION}", b"not ELF")
    add(driver_root, f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}", driver_tree.elf("libv.so.1"))

    assert f"{FOLDER}/libnvidia-simulator.so.{VERSION}" in library_paths(driver_root)
    assert f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}" in library_paths(driver_root)
    assert f"{FOLDER}/vdpau" in found(driver_root).libraries.folders


def test_libraries_of_another_version_are_left_alone(driver_root: Path) -> None:
    add(driver_root, f"{FOLDER}/libcuda.so.999.1.2", driver_tree.elf("libcuda.so.1"))

    assert f"{FOLDER}/libcuda.so.999.1.2" not in library_paths(driver_root)


def test_links_lead_inside_the_root_also_when_they_are_absolute(driver_root: Path) -> None:
    folder = driver_root / FOLDER[1:]
    (folder / "nvidia/current").mkdir(parents=True)
    for stem in ("libcuda", "libnvidia-ml"):
        name = f"{stem}.so.{VERSION}"
        (folder / name).rename(folder / "nvidia/current" / name)
        (folder / f"{stem}.so.1").unlink()
        (folder / f"{stem}.so.1").symlink_to(f"/etc/alternatives/{stem}")
        alternative = driver_root / "etc/alternatives" / stem
        alternative.parent.mkdir(parents=True, exist_ok=True)
        alternative.symlink_to(f"{FOLDER}/nvidia/current/{name}")

    assert found(driver_root).libraries.folders == (f"{FOLDER}/nvidia/current",)
    assert len(library_paths(driver_root)) == 2


def test_without_links_the_highest_version_is_the_drivers(driver_root: Path) -> None:
    for link in (driver_root / FOLDER[1:]).glob("*.so*"):
        if link.is_symlink():
            link.unlink()
    add(driver_root, f"{FOLDER}/libcuda.so.550.9.1", driver_tree.elf("libcuda.so.1"))

    assert found(driver_root).libraries.version == VERSION


def test_libraries_with_versions_of_their_own_come_along(driver_root: Path) -> None:
    gbm = driver_tree.elf("libnvidia-egl-gbm.so.1")
    add(driver_root, f"{FOLDER}/libnvidia-egl-gbm.so.1.1.0", gbm)

    assert f"{FOLDER}/libnvidia-egl-gbm.so.1.1.0" in library_paths(driver_root)
    assert links(driver_root)[f"{FOLDER}/libnvidia-egl-gbm.so.1"] == "libnvidia-egl-gbm.so.1.1.0"


def test_graphics_libraries_get_the_links_that_are_opened_by_name(driver_root: Path) -> None:
    allocator = driver_tree.elf("libnvidia-allocator.so.1")
    add(driver_root, f"{FOLDER}/libnvidia-allocator.so.{VERSION}", allocator)
    add(driver_root, f"{FOLDER}/libGLX_nvidia.so.{VERSION}", driver_tree.elf("libGLX_nvidia.so.0"))
    glx = f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}"
    add(driver_root, glx, driver_tree.elf("libglxserver_nvidia.so"))

    made = links(driver_root)
    assert made[f"{FOLDER}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert made[f"{FOLDER}/libGLX_indirect.so.0"] == f"libGLX_nvidia.so.{VERSION}"
    assert (
        made["/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"]
        == f"libglxserver_nvidia.so.{VERSION}"
    )
    assert "/usr/lib/xorg/modules/extensions" not in found(driver_root).libraries.folders


def test_xorg_modules_stand_where_xorg_looks_for_them(driver_root: Path) -> None:
    current = "/usr/lib/nvidia/current"
    modules = "/usr/lib/xorg/modules"
    for name in ("nvidia_drv.so", "libglxserver_nvidia.so"):
        file = f"{name}.{VERSION}" if name.startswith("lib") else name
        add(driver_root, f"{current}/{file}", driver_tree.elf(None))
        alternative = driver_root / "etc/alternatives" / name
        alternative.parent.mkdir(parents=True, exist_ok=True)
        alternative.symlink_to(f"{current}/{file}")
        kind = "extensions" if name.startswith("lib") else "drivers"
        place = driver_root / f"{modules}/{kind}/{name}".lstrip("/")
        place.parent.mkdir(parents=True)
        place.symlink_to(f"/etc/alternatives/{name}")

    shown = {library.path: library.source for library in found(driver_root).libraries.libraries}
    assert shown[f"{modules}/drivers/nvidia_drv.so"] == f"{current}/nvidia_drv.so"
    assert (
        shown[f"{modules}/extensions/libglxserver_nvidia.so"]
        == f"{current}/libglxserver_nvidia.so.{VERSION}"
    )


def test_the_linked_egl_platform_or_the_newest_is_used(driver_root: Path) -> None:
    folder = driver_root / FOLDER[1:]
    for stem in ("libnvidia-egl-gbm", "libnvidia-egl-wayland"):
        for version in ("1.1.9", "1.1.13"):
            (folder / f"{stem}.so.{version}").write_bytes(driver_tree.elf(f"{stem}.so.1"))
    (folder / "libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.9")

    shown = [path.rpartition("/")[2] for path in library_paths(driver_root) if "egl" in path]
    assert shown == ["libnvidia-egl-gbm.so.1.1.9", "libnvidia-egl-wayland.so.1.1.13"]


def test_programs_are_found_on_the_path(driver_root: Path) -> None:
    assert found(driver_root).programs == (
        DriverFile(source="/usr/bin/nvidia-smi", container_path="/usr/bin/nvidia-smi"),
    )


def test_a_program_that_only_debians_folder_has_is_shown_on_the_path(driver_root: Path) -> None:
    add(driver_root, "/usr/lib/nvidia/current/nvidia-debugdump").chmod(0o755)

    assert (
        DriverFile(
            source="/usr/lib/nvidia/current/nvidia-debugdump",
            container_path="/usr/bin/nvidia-debugdump",
        )
        in found(driver_root).programs
    )


def test_a_file_that_nobody_may_run_is_not_a_program(driver_root: Path) -> None:
    (driver_root / "usr/bin/nvidia-smi").chmod(0o644)

    assert found(driver_root).programs == ()


def test_each_firmware_file_comes_from_the_first_folder_that_has_it(driver_root: Path) -> None:
    add(driver_root, f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    add(driver_root, f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    add(driver_root, f"/lib/firmware/6.8.0/nvidia/{VERSION}/gsp_tu10x.bin")
    add(driver_root, "/lib/firmware/nvidia/1.2/gsp_ga10x.bin")

    assert [firmware.container_path for firmware in found(driver_root).firmware] == [
        f"/lib/firmware/6.8.0/nvidia/{VERSION}/gsp_tu10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    ]


def test_a_firmware_folder_chosen_for_the_kernel_wins(driver_root: Path) -> None:
    add(driver_root, "/sys/module/firmware_class/parameters/path", b"/opt/firmware\n")
    add(driver_root, f"/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    add(driver_root, f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")

    [firmware] = found(driver_root).firmware
    assert firmware.source == f"/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin"


def test_configuration_is_shown_where_containers_look_for_it(driver_root: Path) -> None:
    add(driver_root, "/usr/share/vulkan/icd.d/nvidia_icd.json")
    add(driver_root, "/etc/glvnd/egl_vendor.d/10_nvidia.json")
    add(driver_root, "/vulkan/implicit_layer.d/nvidia_layers.json")

    assert {(config.source, config.container_path) for config in found(driver_root).configs} == {
        ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("/etc/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        (
            "/vulkan/implicit_layer.d/nvidia_layers.json",
            "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        ),
    }


def test_sockets_through_which_other_gpus_are_set_stay_outside(driver_root: Path) -> None:
    add(driver_root, "/run/nvidia-persistenced/socket")
    add(driver_root, "/var/run/nvidia-fabricmanager/socket")
    add(driver_root, "/tmp/nvidia-mps/control")

    assert [socket.container_path for socket in found(driver_root).sockets] == [
        "/var/run/nvidia-fabricmanager/socket"
    ]


def test_a_root_without_driver_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no GPU driver libraries under") as caught:
        found(tmp_path)

    assert "--nvidia-driver-root" in str(caught.value)


def test_folders_with_libraries_programs_and_sockets_are_watched(driver_root: Path) -> None:
    roots = find_roots(driver_root=driver_root)
    watched = watched_paths(roots, found(driver_root))

    assert driver_root / FOLDER[1:] in watched
    assert driver_root / "usr/bin" in watched
    assert driver_root / "run/nvidia-fabricmanager" in watched
