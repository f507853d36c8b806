"""Builds and removes a driver root: the files of a node with the GPU driver, but simulated.

In: a folder, a profile, and options for how real the files are. Out: in that folder the NVML
library and its state file, the user-space files, device nodes, /proc and /sys files, firmware, and
a marker file that describes it. It is built elsewhere and renamed, so it is complete or missing.
Only folders with the marker are ever removed.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert, field
from msgspec.structs import asdict

from dra_driver.errors import SetupError, StateError
from dra_driver.simulator import (
    build,
    device_nodes,
    hardware,
    mig,
    procfs,
    state,
    sysfs,
    userspace,
)
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.device_nodes import NodeKind, NodePlan
from dra_driver.simulator.hardware import SimulatedGpu
from dra_driver.simulator.iommu import NVIDIA
from dra_driver.simulator.layout import MemoryBackend
from dra_driver.simulator.pci_drivers import Bus
from dra_driver.simulator.profile import Profile
from dra_driver.simulator.userspace import Userspace

MARKER = ".simulated-machine.json"
_MARKER_FORMAT = 1
# The functions that a library before R615, or before R550, does not export.
_MEMORY_LIMIT_FUNCTIONS = ("nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1")
_FUNCTIONS_OF_R550 = ("nvmlDeviceGetProcessesUtilizationInfo",)
# The names of the GSP firmware files for the two families of cards.
_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

UserspaceChoice = Literal["auto", "real", "stand-in"]


class Options(Struct, frozen=True, kw_only=True):
    """How a driver root is made.

    Attributes:
        seed: makes UUIDs and serial numbers; the profile's name by default.
        nodes: real device nodes or plain files; None for real ones where possible.
        userspace: NVIDIA's files, stand-ins, or the first where possible.
        cgroup_root: root of the control groups, which may be any folder; None for the file system
            cgroup2 of the caller.
        cache: folder for compiled and downloaded files; the user's cache folder by default.
        environment: where HOME, PATH and CC are looked up.
        report: called with a sentence before something that takes a while.
    """

    seed: str | None = None
    nodes: NodeKind | None = None
    userspace: UserspaceChoice = "auto"
    cgroup_root: Path | None = None
    cache: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    report: Callable[[str], None] = lambda _sentence: None


class Description(Struct, frozen=True, kw_only=True):
    """The marker file's description of a driver root."""

    profile: Profile
    seed: str
    driver_version: str
    nodes: NodePlan
    userspace: str

    @property
    def gpus(self) -> list[SimulatedGpu]:
        """The machine's GPUs, by slot."""
        return hardware.gpus_of(self.profile, self.seed)

    def to_json(self) -> str:
        """Write the marker's text."""
        own = asdict(self) | {"nodes": asdict(self.nodes), "profile": profiles.dump(self.profile)}
        return json.dumps({"format": _MARKER_FORMAT, **own}, indent=1) + "\n"


def describe(root: Path) -> Description:
    """Read the marker of a driver root.

    Raises:
        SetupError: the folder is no simulated driver root.
        StateError: its marker is damaged or of another format.
    """
    try:
        content = json.loads((root / MARKER).read_text())
        if content["format"] != _MARKER_FORMAT:
            raise StateError(f"{root} was made by another version of the simulator; make it again")
        return Description(
            profile=profiles.parse(content["profile"], origin=f"of {root}"),
            seed=content["seed"],
            driver_version=content["driver_version"],
            nodes=convert(content["nodes"], NodePlan),
            userspace=content["userspace"],
        )
    except FileNotFoundError as cause:
        raise SetupError(
            f"{root} holds no simulated machine; make one with "
            f"`dra-driver simulate up --root {root}`"
        ) from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise StateError(f"the marker {root / MARKER} is damaged: {cause}") from cause


def up(root: Path, profile: Profile, options: Options) -> Description:
    """Make the driver root, or keep it if it already is this machine.

    Raises SetupError if the folder has another use, or a file is not available or cannot be made.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with _locked(root.parent):
        if (root / MARKER).exists():
            return _refresh(root, profile, options)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise SetupError(
                f"{root} exists and is not a simulated machine; give a new or an empty folder"
            )
        made = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}."))
        try:
            made.chmod(0o755)
            description = _build(made, profile, options)
            made = made.rename(root)
            _divide(root, description)
        except BaseException as error:
            shutil.rmtree(made, ignore_errors=True)
            if isinstance(error, OSError):
                what = f"{error.strerror} ({error.filename})"
                raise SetupError(f"the machine {root} cannot be made: {what}") from error
            raise
        return description


def down(root: Path) -> bool:
    """Remove a driver root; return False if there is none.

    Raises SetupError if the folder is something else, or something is mounted below it.
    """
    if not root.exists():
        return False
    with _locked(root.parent):
        if not (root / MARKER).exists():
            if root.is_dir() and not any(root.iterdir()):
                return False
            raise SetupError(f"{root} is not a simulated machine; nothing was removed")
        if mounts := _mounts_below(root):
            raise SetupError(
                f"{mounts[0]} is mounted below {root}; unmount it first, or its content would be "
                "deleted"
            )
        aside = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}."))
        root.rename(aside)
        shutil.rmtree(aside)
    return True


def bus_of(root: Path, description: Description) -> Bus | None:
    """Return the builder of a machine's IOMMU groups; None if it has no IOMMU."""
    profile = description.profile
    if profile.iommu is None:
        return None
    gpus = [address for gpu in description.gpus for address in (gpu.pci, *gpu.bridges)]
    switches = profile.nvswitch.addresses if profile.nvswitch else []
    return Bus(
        root=root,
        iommu=profile.iommu,
        addresses=(*gpus, *switches),
        nodes=description.nodes,
    )


def add_gpu(root: Path, description: Description, now: state.State, gpu: SimulatedGpu) -> None:
    """Make the files of one GPU, and let NVML find it if it is bound to nvidia."""
    _make_gpu(root, description, gpu)
    if (bus := bus_of(root, description)) is not None:
        bus.join()
    now.set_present(gpu.slot, present=_driver_of(description, gpu) == NVIDIA)


def remove_gpu(root: Path, description: Description, now: state.State, gpu: SimulatedGpu) -> None:
    """Remove the files of one GPU and its MIG instances; calls on its handles fail as lost."""
    if (bus := bus_of(root, description)) is not None:
        bus.leave(gpu.pci)
    now.set_present(gpu.slot, present=False)
    now.reset_gpu(gpu.slot)
    forget_instances(root, gpu)
    device_nodes.remove_gpu_nodes(root / "dev", gpu)
    procfs.remove_gpu(root / "proc", gpu)
    sysfs.remove_gpu(root / "sys", gpu)


def _make_gpu(root: Path, description: Description, gpu: SimulatedGpu) -> None:
    driver = _driver_of(description, gpu)
    is_nvidias = driver == NVIDIA
    cpus, drm = description.profile.cpus_per_numa_node, description.nodes.drm and is_nvidias
    sysfs.add_gpu(root / "sys", gpu, cpus, driver=driver, drm=drm)
    if is_nvidias:
        procfs.add_gpu(root / "proc", gpu, description.driver_version)
        device_nodes.make_gpu_nodes(root / "dev", gpu, description.nodes)


def _driver_of(description: Description, gpu: SimulatedGpu) -> str | None:
    """Return the driver that a GPU is bound to, or None."""
    iommu = description.profile.iommu
    return NVIDIA if iommu is None else iommu.driver_of(gpu.pci)


def forget_instances(root: Path, gpu: SimulatedGpu) -> None:
    """Remove the files of all MIG instances of one GPU."""
    for minor in procfs.remove_instances(root / "proc", gpu):
        device_nodes.remove_capability(root / "dev", minor)


def _refresh(root: Path, profile: Profile, options: Options) -> Description:
    """Check that a driver root is the requested machine, and update an older library in it."""
    machine = describe(root)
    seed = options.seed or profile.name
    if machine.profile != profile or machine.seed != seed:
        same = (machine.profile.name, machine.seed) == (profile.name, seed)
        raise SetupError(
            f"{root} already is the machine {machine.profile.name!r} (seed "
            f"{machine.seed!r}){', made from another version of that profile' if same else ''}; "
            f"remove it first with `dra-driver simulate down --root {root}`"
        )
    # A state file of another layout fails here, and not in every NVML call.
    with state.State(state.find(root / userspace.library_folder())) as now:
        groups = now.cgroup_root
    if options.cgroup_root is not None and str(options.cgroup_root.absolute()) != groups:
        raise SetupError(
            f"{root} already is this machine, with control groups {groups or 'of its host'}; "
            f"remove it first with `dra-driver simulate down --root {root}`"
        )
    _install_library(root, profile, machine.driver_version, options)
    return machine


def _build(root: Path, profile: Profile, options: Options) -> Description:
    files = _userspace(profile, options)
    version = files.version or profile.driver_version
    _install_userspace(root, files)
    _install_library(root, profile, version, options)
    for name in _FIRMWARE:
        firmware = root / "lib/firmware/nvidia" / version / name
        firmware.parent.mkdir(parents=True, exist_ok=True)
        firmware.write_text(f"stand-in of the GPU simulator for {name} {version}\n")
    for folder in ("dev", "run", "tmp"):
        (root / folder).mkdir()
    (root / "tmp").chmod(0o1777)
    host_devices = Path("/proc/devices")
    nodes = device_nodes.plan(
        options.nodes, root, host_devices.read_text() if host_devices.exists() else ""
    )
    description = Description(
        profile=profile,
        seed=options.seed or profile.name,
        driver_version=version,
        nodes=nodes,
        userspace=files.note,
    )
    device_nodes.make_control_nodes(root / "dev", nodes)
    procfs.write_driver(root / "proc", version, platform.machine(), nodes)
    procfs.write_boot_id(root / "proc", str(uuid.uuid4()))
    sysfs.write_driver(root / "sys", version)
    for gpu in description.gpus:
        _make_gpu(root, description, gpu)
    if (switches := profile.nvswitch) is not None:
        for address in switches.addresses:
            sysfs.add_nvswitch(root / "sys", address, switches.device_id)
    if (bus := bus_of(root, description)) is not None:
        bus.make()
    _write_state(root, description, options)
    (root / MARKER).write_text(description.to_json())
    return description


def _write_state(root: Path, description: Description, options: Options) -> None:
    profile, version = description.profile, description.driver_version
    major, _, minor = profile.cuda_version.partition(".")
    folder = userspace.library_folder()
    state.create(
        root / folder / f"{state.FILE_PREFIX}{version}",
        state.Driver(
            version=version,
            cuda_version=1000 * int(major) + 10 * int(minor),
            library_folder=folder,
            caps_major=description.nodes.caps_major,
            device_nodes=description.nodes.kind is NodeKind.DEVICE,
            memory_backend=_memory_backend(profile, version),
            mig_change_ms=profile.mig_change_ms,
            cgroup_root=str(options.cgroup_root.absolute()) if options.cgroup_root else "",
        ),
        [hardware.facts_of(gpu, profile, version) for gpu in description.gpus],
    )
    with state.State(state.find(root / folder)) as now:
        for gpu in description.gpus:
            now.set_present(gpu.slot, present=_driver_of(description, gpu) == NVIDIA)


def _divide(root: Path, description: Description) -> None:
    """Make the initial MIG devices. The root's library finds its state file beside it."""
    folder = root / userspace.library_folder()
    library = folder / build.SONAME
    with state.State(state.find(folder)) as now:
        for gpu, wanted in zip(description.gpus, description.profile.gpus, strict=True):
            for device in wanted.mig_devices:
                cut = mig.profile_of(gpu.card, device.profile)
                mig.create(library, now, gpu.slot, cut, device.start)
        mig.settle(library, now)


def _memory_backend(profile: Profile, version: str) -> MemoryBackend:
    if not profiles.limits_memory(version):
        return MemoryBackend.OFF
    return MemoryBackend[(profile.memory_limits or "misc").upper()]


def _userspace(profile: Profile, options: Options) -> Userspace:
    cache = options.cache or build.cache_folder(options.environment)
    if options.userspace == "stand-in":
        why = "as asked for"
    else:
        try:
            return userspace.real(cache, options.environment, options.report)
        except SetupError as error:
            if options.userspace == "real":
                raise
            why = f"NVIDIA's own files are not available here ({error})"
    return userspace.stand_ins(cache, options.environment, profile.driver_version, why)


def _install_userspace(root: Path, files: Userspace) -> None:
    for place, source in files.files.items():
        target = root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)  # they are 200 MB and never change
        except OSError:
            shutil.copy2(source, target)
    for place, text in files.texts.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
        (root / place).chmod(0o755)
    for place, text in files.links.items():
        link = root / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(text)


def _install_library(root: Path, profile: Profile, version: str, options: Options) -> None:
    """Put the NVML library in place, by rename: processes keep the old one that they use."""
    cache = options.cache or build.cache_folder(options.environment)
    without = [*profile.missing_functions]
    if not profiles.limits_memory(version):
        without += _MEMORY_LIMIT_FUNCTIONS
    if int(version.partition(".")[0]) < 550:
        without += _FUNCTIONS_OF_R550
    built = build.compile_library(cache, options.environment, without=without)
    folder = root / userspace.library_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"libnvidia-ml.so.{version}"
    content = built.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        temporary = folder / f".libnvidia-ml.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.chmod(0o755)
        temporary.rename(target)
    for link, text in (
        (build.SONAME, target.name),
        ("libnvidia-ml.so", build.SONAME),
    ):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(text)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Allow only one process at a time to make or remove driver roots in a folder."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _mounts_below(root: Path) -> list[str]:
    inside = f"{root.resolve()}/"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return []
    places = [line.split()[4].replace("\\040", " ") for line in lines]
    return [place for place in places if f"{place}/".startswith(inside)]
