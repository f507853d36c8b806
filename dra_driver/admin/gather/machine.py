"""What the kernel and the GPU driver show of a node in files: PCI, /proc, device nodes, versions.

In: the node's places. Out: documents of plain values. Only values of a known form are taken from a
file, never its text.
"""

import os
import platform
import re
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from dra_driver.admin.doctor.facts.places import Places, names_in
from dra_driver.admin.gather.reading import Missing, known_lines, matching, text_in
from dra_driver.cdi.driver_root import DriverFiles, find_driver_files
from dra_driver.devices.control_groups import MOUNTINFO, find_hierarchy, kernel_counts_gpus
from dra_driver.devices.driver_root import rooted
from dra_driver.devices.versions import running_driver

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_HEX, _NUMBER, _CPUS = r"0x[0-9a-f]{1,8}", r"-?\d{1,10}", r"[\d,-]{1,200}"
_ATTRIBUTES = {
    "vendor": _HEX, "device": _HEX, "subsystem_vendor": _HEX, "subsystem_device": _HEX,
    "class": _HEX, "revision": _HEX, "local_cpulist": _CPUS, "enable": _NUMBER,
    "sriov_totalvfs": _NUMBER, "sriov_numvfs": _NUMBER,
    "current_link_speed": r"[\w .]{1,40}", "max_link_speed": r"[\w .]{1,40}",
    "current_link_width": _NUMBER, "max_link_width": _NUMBER,
}  # fmt: skip
_LINKS = ("driver", "iommu_group")
_NAME = r"[\w-]{1,64}"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_INFORMATION = (
    "Model", "GPU UUID", "Video BIOS", "Bus Type", "DMA Size", "DMA Mask", "Bus Location",
    "Device Minor", "GPU Firmware", "GPU Excluded",
)  # fmt: skip
_PARAMETERS = (
    "ModifyDeviceFiles", "DeviceFileUID", "DeviceFileGID", "DeviceFileMode", "EnableMSI",
    "EnableGpuFirmware", "OpenRmEnableUnsupportedGpus", "DynamicPowerManagement",
    "RmProfilingAdminOnly", "PreserveVideoMemoryAllocations", "ImexChannelCount",
    "CreateImexChannel0",
)  # fmt: skip
_RELEASE = ("ID", "ID_LIKE", "VERSION_ID", "VARIANT_ID", "PRETTY_NAME")
_OUR_NODES = re.compile(r"nvidia[\w-]*|(?:card|renderD)\d+|pci-[\w:.-]+")
_NODE_FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels", "dri", "dri/by-path")
_MOST_DEVICES, _MOST_STRANGERS, _MOST_NODES, _MOST_CAPABILITIES = 512, 64, 1024, 512


def pci_document(places: Places, missing: Missing) -> dict[str, Any]:
    """Return NVIDIA's devices on PCI: GPUs, NVSwitches and what belongs to them."""
    folder = places.roots.sys / "bus/pci/devices"
    names = [name for name in names_in(folder) if _ADDRESS.fullmatch(name)]
    if not names:
        missing.add(folder, "it has no PCI devices")
    own = [
        name for name in names if (text_in(folder / name / "vendor", missing) or "")[:6] == _NVIDIA
    ]
    return {"devices": [_device(folder / name, missing) for name in own[:_MOST_DEVICES]]}


def _device(path: Path, missing: Missing) -> dict[str, Any]:
    device: dict[str, Any] = {"address": path.name}
    for name, form in _ATTRIBUTES.items():
        value = matching(text_in(path / name, missing), form)
        if value is not None:
            device[name] = value
    if (node := matching(text_in(path / "numa_node", missing), _NUMBER)) is not None:
        device["numaNode"] = int(node)
    parts = _target(path).split("/")
    device["root"] = next((part for part in parts if _ROOT.fullmatch(part)), None)
    device["bridges"] = [part for part in parts[:-1] if _ADDRESS.fullmatch(part)]
    for name in _LINKS:
        if target := matching(_target(path / name).rpartition("/")[2], _NAME):
            device[name] = target
    if device.get("class", "").startswith(_DISPLAY) and (others := _strangers(path, missing)):
        device["strangers"] = others
    device["drm"] = [name for name in names_in(path / "drm") if _OUR_NODES.fullmatch(name)]
    return device


def _strangers(gpu: Path, missing: Missing) -> list[dict[str, str]]:
    """Return the devices in a GPU's IOMMU group that are not NVIDIA's: they prevent passthrough."""
    members = [name for name in names_in(gpu / "iommu_group/devices") if _ADDRESS.fullmatch(name)]
    found = []
    for path in (gpu.with_name(name) for name in members[:_MOST_STRANGERS]):
        told = {name: matching(text_in(path / name, missing), _HEX) for name in ("vendor", "class")}
        if told["vendor"] == _NVIDIA:
            continue
        told["driver"] = matching(_target(path / "driver").rpartition("/")[2], _NAME)
        found.append({"address": path.name, **{name: each for name, each in told.items() if each}})
    return found


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def node_document(places: Places, missing: Missing) -> dict[str, Any]:
    """Return what /proc, /dev and the operating system report."""
    roots = places.roots.now()
    proc = roots.proc
    gpus = proc / "driver/nvidia/gpus"
    groups = find_hierarchy(places.cgroup_root, MOUNTINFO)
    return {
        "versions": {
            "dra-driver": metadata.version("dra-driver"),
            "nvidia-ml-py": metadata.version("nvidia-ml-py"),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "gpuDriver": running_driver(proc),
            "gpuModule": matching(text_in(roots.sys / "module/nvidia/version", missing), r"[\d.]+"),
            "moduleKind": _kind_of_module(proc, missing),
        },
        "system": _system(places, missing),
        "parameters": _parameters(proc / "driver/nvidia/params", missing),
        "gpus": {
            name: known_lines(text_in(gpus / name / "information", missing) or "", _INFORMATION)
            for name in names_in(gpus)
            if _ADDRESS.fullmatch(name)
        },
        "majors": _majors(proc, missing),
        "capabilities": _capabilities(proc / "driver/nvidia/capabilities"),
        "deviceNodes": list(_nodes(roots.dev)),
        "controlGroups": groups is not None,
        "kernelCountsGpuMemory": groups is not None and kernel_counts_gpus(groups),
    }


def _kind_of_module(proc: Path, missing: Missing) -> str | None:
    text = text_in(proc / "driver/nvidia/version", missing)
    if text is None:
        missing.add(proc / "driver/nvidia/version", "the GPU driver is not loaded, or not visible")
        return None
    kinds = {"(simulated)": "simulated", "Open Kernel Module": "open"}
    return next((kind for mark, kind in kinds.items() if mark in text), "proprietary")


def _system(places: Places, missing: Missing) -> dict[str, str]:
    """Return the name and version of the node's system, not of this process's image."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        file = places.on_host(path)
        if file is not None and (text := text_in(file, missing)) is not None:
            said = known_lines(text, _RELEASE, "=")
            return {key: value.strip("\"'") for key, value in said.items()}
    missing.add("/etc/os-release", places.why_without())
    return {}


def _parameters(path: Path, missing: Missing) -> dict[str, str]:
    said = known_lines(text_in(path, missing) or "", _PARAMETERS)
    return {key: value for key, value in said.items() if re.fullmatch(_NUMBER, value)}


def _majors(proc: Path, missing: Missing) -> dict[str, int]:
    """Return the major numbers that the GPU driver's modules and drm have."""
    text = (text_in(proc / "devices", missing) or "").partition("Block devices:")[0]
    majors = re.findall(r"^ *(\d{1,4}) ((?:nvidia[\w-]*|drm))$", text, re.MULTILINE)
    return {name: int(number) for number, name in majors}


def _capabilities(folder: Path) -> list[str]:
    """Return the files that give access to MIG instances."""
    capabilities: list[str] = []
    for at, folders, files in os.walk(folder):
        folders.sort()
        inside = Path(at).relative_to(folder)
        capabilities += [
            str(inside / name) for name in sorted(files) if re.fullmatch(r"[a-z]{1,16}", name)
        ]
        if len(capabilities) > _MOST_CAPABILITIES:
            break
    return capabilities[:_MOST_CAPABILITIES]


def _nodes(dev: Path) -> Iterator[dict[str, Any]]:
    nodes = [
        f"{folder}/{name}".lstrip("/")
        for folder in _NODE_FOLDERS
        for name in names_in(dev / folder)
        if _OUR_NODES.fullmatch(name)
    ]
    for name in nodes[:_MOST_NODES]:
        try:
            status = (dev / name).lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            continue
        node: dict[str, Any] = {"path": name, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}
        if stat.S_ISLNK(status.st_mode):
            node["link"] = matching(_target(dev / name), r"[\w./-]{1,200}")
        elif stat.S_ISCHR(status.st_mode):
            node |= {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        else:
            node["kind"] = "no device"
        yield node


def files_document(places: Places) -> dict[str, Any]:
    """Return the GPU driver's files, without their contents. Raises DeviceError."""
    roots = places.roots.now()
    files = find_driver_files(
        roots, kernel_release=platform.release(), running=running_driver(roots.proc)
    )
    return {
        "version": files.libraries.version,
        "folders": list(files.libraries.folders),
        "libraries": [
            {"path": lib.source, "bytes": _size(roots.driver, lib.source), "soname": lib.soname}
            for lib in sorted(files.libraries.libraries, key=lambda lib: lib.source)
        ],
        "links": [
            {"path": link.path, "target": link.target}
            for link in sorted(files.libraries.links, key=lambda link: link.path)
        ],
        "others": list(_others(roots.driver, files)),
    }


def _others(root: Path, files: DriverFiles) -> Iterator[dict[str, Any]]:
    for kind in ("programs", "firmware", "configs", "sockets"):
        for file in getattr(files, kind):
            yield {"kind": kind, "path": file.source, "bytes": _size(root, file.source)}


def _size(root: Path, path: str) -> int | None:
    try:
        return rooted.outside(root, path).stat().st_size
    except OSError:
        return None
