"""Where distributions put the GPU driver: layouts, each built as a tree of small files.

A layout says how its driver root is filled and what a container has to get from it. Libraries are
ELF files with a SONAME that this machine's loader loads, and end with the version of the driver
they belong to, so that a test can tell whose file a container sees.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.cdi.edits_cache import EditsCache, NodeEdits
from dra_driver.cdi.roots import Roots
from dra_driver.simulator.build import library_page

_PROC_VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Mar  5 22:23:56 UTC 2024\n"

RUNNING = "550.54.15"
OLD = "535.104.05"
NEW = "560.35.03"
DEBIAN_FOLDER = "/usr/lib/x86_64-linux-gnu"
CURRENT = f"{DEBIAN_FOLDER}/nvidia/current"
TESLA = f"{DEBIAN_FOLDER}/nvidia/tesla-550"
RPM_FOLDER = "/usr/lib64"
X86_64, AARCH64, I386 = 0x0303, 0x0A03, 0x0803

COMPUTE = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvcuvid.so.1")
GRAPHICS = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-allocator.so.1")
EGL_PLATFORMS = {"libnvidia-egl-gbm": "1.1.1", "libnvidia-egl-wayland": "1.1.13"}
CONFIGS = (
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
)
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a driver root looks, and what a container gets of it."""

    about: str
    build: Callable[[Path], None]
    folder: str
    compute: tuple[str, ...] = COMPUTE
    graphics: tuple[str, ...] = GRAPHICS
    egl_folder: str | None = ""  # empty: the same; None: the layout has none
    configs: tuple[str, ...] = CONFIGS
    programs: tuple[str, ...] = PROGRAMS
    firmware: str | None = "/lib/firmware"
    others: tuple[str, ...] = field(default=())
    machine: str = "x86_64"

    @property
    def platforms(self) -> str | None:
        """Where the EGL platform libraries are."""
        return self.folder if self.egl_folder == "" else self.egl_folder


def node(root: Path, *, running: str | None = RUNNING) -> Path:
    """A node with device nodes and a running kernel driver, and no file of the driver yet."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        write(root, f"/dev/{name}")
    write(root, "/proc/devices", b"Character devices:\n195 nvidia\n510 nvidia-uvm\n")
    if running is not None:
        write(root, "/proc/driver/nvidia/version", _PROC_VERSION.format(running).encode())
    return root


def look(root: Path, hook: str = "", *, on_host: str) -> NodeEdits:
    """What the driver finds on a node, for a runtime that sees the driver root somewhere."""
    roots = Roots(
        driver=root,
        driver_on_host=on_host,
        dev=root / "dev",
        dev_on_host="/dev",
        proc=root / "proc",
        sys=root / "sys",
    )
    cache = EditsCache(roots, hook_path=hook, kernel_release="6.8.0", clock=lambda: 0.0)
    return cache.look()


def library(root: Path, path: str, soname: str | None, version: str = RUNNING) -> None:
    """A library file that ends with the driver's version."""
    write(root, path, library_page(soname) + version.encode())


def version_in(file: Path) -> str:
    """Of which driver a library file is; empty for any other file."""
    content = file.read_bytes()
    end = content.rpartition(b"\0")[2].decode()
    return end if content.startswith(b"\x7fELF") else ""


def write(root: Path, path: str, content: bytes | None = None) -> None:
    """Any file; without content it has its path, so that no two are the same."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(path.encode() if content is None else content)
    file.chmod(0o644)


def link(root: Path, path: str, target: str) -> None:
    """A symbolic link, with the folders above it."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def install(
    root: Path,
    folder: str,
    *,
    version: str = RUNNING,
    sonames: Iterable[str] = (*COMPUTE, *GRAPHICS),
    linked: bool = True,
) -> None:
    """The libraries of a driver, with the links that ldconfig makes beside them."""
    for soname in sonames:
        name = f"{soname.partition('.so')[0]}.so.{version}"
        library(root, f"{folder}/{name}", soname, version)
        if linked:
            link(root, f"{folder}/{soname}", name)


def egl_platforms(root: Path, folder: str) -> None:
    """The EGL platform libraries, which have versions of their own."""
    for stem, version in EGL_PLATFORMS.items():
        library(root, f"{folder}/{stem}.so.{version}", f"{stem}.so.1")
        link(root, f"{folder}/{stem}.so.1", f"{stem}.so.{version}")


def rest(
    root: Path,
    *,
    programs: str = "/usr/bin",
    share: str = "/usr/share",
    firmware: str | None = "/lib/firmware",
    version: str = RUNNING,
) -> None:
    """What is no library: programs, configuration, firmware."""
    for program in PROGRAMS:
        name = program.rpartition("/")[2]
        write(root, f"{programs}/{name}")
        (root / programs.lstrip("/") / name).chmod(0o755)
    write(root, f"{share}/vulkan/icd.d/nvidia_icd.json")
    write(root, f"{share}/glvnd/egl_vendor.d/10_nvidia.json")
    write(root, f"{share}/egl/egl_external_platform.d/15_nvidia_gbm.json")
    if firmware is not None:
        write(root, f"{firmware}/nvidia/{version}/gsp_ga10x.bin")


def cache_folder(root: Path, *folders: str, flags: int = X86_64) -> None:
    """Write /etc/ld.so.cache with the SONAME links of some folders, as ldconfig does."""
    entries = [
        (path.name, f"{folder}/{path.name}", flags)
        for folder in folders
        for path in sorted((root / folder.lstrip("/")).iterdir())
        if path.is_symlink()
    ]
    write_cache(root, *entries)


def write_cache(root: Path, *entries: tuple[str, str, int], before: bytes = b"") -> None:
    """Write /etc/ld.so.cache in glibc's format from names, paths and flags."""
    strings = b""
    table = b""
    start = 48 + 24 * len(entries)
    for name, path, flags in entries:
        at = start + len(strings)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, at, at + len(name) + 1, 0, 0)
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(strings)) + bytes(20)
    write(root, "/etc/ld.so.cache", before + head + table + strings)


def _ubuntu(root: Path) -> None:
    install(root, DEBIAN_FOLDER)
    link(root, f"{DEBIAN_FOLDER}/libcuda.so", "libcuda.so.1")
    egl_platforms(root, DEBIAN_FOLDER)
    rest(root)
    link(root, "/bin", "usr/bin")


def _debian(root: Path, variant: str = "current") -> None:
    folder = f"{DEBIAN_FOLDER}/nvidia/{variant}"
    install(root, folder)
    egl_platforms(root, DEBIAN_FOLDER)
    for soname in (*COMPUTE, *GRAPHICS):
        alternative = f"/etc/alternatives/glx--{soname}-x86_64-linux-gnu"
        link(root, alternative, f"{folder}/{soname}")
        link(root, f"{DEBIAN_FOLDER}/{soname}", alternative)
    rest(root, programs=f"/usr/lib/nvidia/{variant}")
    link(root, "/etc/alternatives/nvidia--nvidia-smi", f"/usr/lib/nvidia/{variant}/nvidia-smi")
    link(root, "/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")


def _debian_tesla(root: Path) -> None:
    """A folder that only links lead to: nothing has its name, and there is no ld.so.cache."""
    _debian(root, "tesla-550")
    mps = "nvidia-cuda-mps-control"
    link(root, f"/usr/bin/{mps}", f"/usr/lib/nvidia/tesla-550/{mps}")


def _rhel(root: Path) -> None:
    install(root, RPM_FOLDER)
    egl_platforms(root, RPM_FOLDER)
    rest(root, firmware="/usr/lib/firmware")
    link(root, "/lib", "usr/lib")
    link(root, "/lib64", "usr/lib64")


def _flatcar(root: Path) -> None:
    install(root, "/opt/nvidia/current/lib64")
    egl_platforms(root, "/opt/nvidia/current/lib64")
    link(root, "/opt/nvidia/lib64", "current/lib64")
    cache_folder(root, "/opt/nvidia/lib64")
    rest(root, programs="/opt/bin")


def _bottlerocket(root: Path) -> None:
    folder = "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla"
    install(root, folder)
    egl_platforms(root, folder)
    cache_folder(root, folder)
    rest(root, firmware="/usr/lib/firmware")
    link(root, "/lib", "usr/lib")


def _cos(root: Path) -> None:
    install(root, "/lib64", sonames=COMPUTE)
    rest(root, programs="/bin", share="", firmware=None)
    (root / "glvnd/egl_vendor.d/10_nvidia.json").unlink()
    (root / "egl/egl_external_platform.d/15_nvidia_gbm.json").unlink()


def _talos(root: Path) -> None:
    install(root, "/usr/local/glibc/usr/lib", sonames=COMPUTE)
    rest(root, programs="/usr/local/bin")


def _operator(root: Path) -> None:
    _ubuntu(root)
    write(root, f"/run/nvidia/driver/lib/firmware/nvidia/{RUNNING}/gsp_tu10x.bin")


def _nixos(root: Path) -> None:
    package = f"/nix/store/0abc-nvidia-x11-{RUNNING}"
    install(root, f"{package}/lib")
    egl_platforms(root, f"{package}/lib")
    for path in sorted((root / f"{package}/lib".lstrip("/")).iterdir()):
        link(root, f"/run/opengl-driver/lib/{path.name}", f"{package}/lib/{path.name}")
    rest(root, programs="/usr/local/bin", share="/etc")


def _split(root: Path) -> None:
    """Compute libraries are known to the cache alone, the others are in the usual folder."""
    install(root, RPM_FOLDER, sonames=("libnvidia-ml.so.1", *GRAPHICS))
    install(root, "/opt/nvidia-compute", sonames=COMPUTE[:1] + COMPUTE[2:])
    egl_platforms(root, RPM_FOLDER)
    cache_folder(root, RPM_FOLDER, "/opt/nvidia-compute")
    rest(root)


def _left_over(root: Path) -> None:
    """An upgrade that left the old libraries in another folder, which is searched first."""
    install(root, RPM_FOLDER, version=OLD)
    _ubuntu(root)


def _left_over_links(root: Path) -> None:
    """Old libraries beside the new ones, and the links still lead to the old."""
    install(root, DEBIAN_FOLDER, version=OLD)
    install(root, DEBIAN_FOLDER, linked=False)
    egl_platforms(root, DEBIAN_FOLDER)
    rest(root)


def _not_yet_running(root: Path) -> None:
    """A newer driver was installed, and the node has not been rebooted."""
    install(root, DEBIAN_FOLDER, linked=False)
    install(root, DEBIAN_FOLDER, version=NEW)
    egl_platforms(root, DEBIAN_FOLDER)
    rest(root)
    rest(root, version=NEW)


def _cuda_compat(root: Path) -> None:
    """CUDA's forward-compatibility libcuda, put where it is found first."""
    install(root, RPM_FOLDER, version=NEW, sonames=("libcuda.so.1", "libnvidia-nvvm.so.4"))
    _ubuntu(root)
    cache_folder(root, RPM_FOLDER)


def _without_soname(root: Path) -> None:
    _ubuntu(root)
    library(root, f"{DEBIAN_FOLDER}/libcuda.so.{RUNNING}", None)


def _aarch64(root: Path) -> None:
    install(root, "/usr/lib/aarch64-linux-gnu")
    egl_platforms(root, "/opt/egl")
    cache_folder(root, "/opt/egl", flags=AARCH64)
    rest(root)


LAYOUTS = {
    "ubuntu": Layout(about="nvidia-driver-550 packages", build=_ubuntu, folder=DEBIAN_FOLDER),
    "debian": Layout(
        about="alternatives choose the driver",
        build=_debian,
        folder=CURRENT,
        egl_folder=DEBIAN_FOLDER,
    ),
    "debian tesla": Layout(
        about="the same with the tesla packages, and no ld.so.cache",
        build=_debian_tesla,
        folder=TESLA,
        egl_folder=DEBIAN_FOLDER,
    ),
    "rhel": Layout(about="NVIDIA's RPMs", build=_rhel, folder=RPM_FOLDER),
    "flatcar": Layout(
        about="below /opt, known by ld.so.cache", build=_flatcar, folder="/opt/nvidia/current/lib64"
    ),
    "bottlerocket": Layout(
        about="a folder of its own, known by ld.so.cache",
        build=_bottlerocket,
        folder="/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    ),
    "cos": Layout(
        about="GKE: /home/kubernetes/bin/nvidia is the driver root",
        build=_cos,
        folder="/lib64",
        graphics=(),
        egl_folder=None,
        configs=CONFIGS[:1],
        programs=("/bin/nvidia-smi", "/bin/nvidia-cuda-mps-control"),
        firmware=None,
    ),
    "talos": Layout(
        about="glibc beside musl",
        build=_talos,
        folder="/usr/local/glibc/usr/lib",
        graphics=(),
        egl_folder=None,
        programs=("/usr/local/bin/nvidia-smi", "/usr/local/bin/nvidia-cuda-mps-control"),
    ),
    "gpu-operator": Layout(
        about="/run/nvidia/driver, an Ubuntu tree", build=_operator, folder=DEBIAN_FOLDER
    ),
    "nixos": Layout(
        about="links into the store, and no ld.so.cache",
        build=_nixos,
        folder=f"/nix/store/0abc-nvidia-x11-{RUNNING}/lib",
        programs=("/usr/local/bin/nvidia-smi", "/usr/local/bin/nvidia-cuda-mps-control"),
    ),
    "split packages": Layout(
        about="half of it known by ld.so.cache alone",
        build=_split,
        folder="/opt/nvidia-compute",
        compute=COMPUTE[:1] + COMPUTE[2:],
        graphics=(),
        egl_folder=RPM_FOLDER,
        others=(f"{RPM_FOLDER}/libGLX_nvidia.so.{RUNNING}",),
    ),
    "left-over folder": Layout(
        about="an older driver in /usr/lib64", build=_left_over, folder=DEBIAN_FOLDER
    ),
    "left-over links": Layout(
        about="links lead to an older driver", build=_left_over_links, folder=DEBIAN_FOLDER
    ),
    "not rebooted": Layout(
        about="a newer driver is installed beside", build=_not_yet_running, folder=DEBIAN_FOLDER
    ),
    "cuda-compat": Layout(
        about="a newer libcuda is found first", build=_cuda_compat, folder=DEBIAN_FOLDER
    ),
    "no soname": Layout(
        about="libcuda without SONAME", build=_without_soname, folder=DEBIAN_FOLDER
    ),
    "aarch64": Layout(
        about="Grace, with the EGL platforms known by ld.so.cache",
        build=_aarch64,
        folder="/usr/lib/aarch64-linux-gnu",
        egl_folder="/opt/egl",
        machine="aarch64",
    ),
}
