"""What every container with a GPU gets, whichever GPU it is.

In: the driver's files and the node's hook program, if it has one. Out: the edits that stand once in
a spec. Two ways lead to the same effect:

with hooks   libraries at their place; the hook program makes the links and the loader's cache
hookless     libraries also under the names that programs open, in /usr/local/nvidia/lib64, which
             NVIDIA's CUDA images search (their LD_LIBRARY_PATH), and beside the library itself
             where its folder is one that the loader searches by default
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from dra_driver.cdi import hooks
from dra_driver.cdi.driver_libraries import DriverLibraries
from dra_driver.cdi.driver_root import DriverFiles
from dra_driver.cdi.hooks import HookProgram
from dra_driver.cdi.model import Edits, Hook, Mount
from dra_driver.cdi.nodes import CONTROL_NODES, node_edits
from dra_driver.cdi.roots import Roots

HOOKLESS_LIBRARIES = "/usr/local/nvidia/lib64"

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
# What glibc searches without a cache: its own default, and Debian's multiarch folders.
_SEARCHED_BY_DEFAULT = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


def driver_edits(files: DriverFiles, roots: Roots, hook_program: HookProgram | None) -> Edits:
    """Return the edits shared by all GPUs of the node.

    Raises:
        DeviceError: a control node is there but cannot be given to a container.
    """
    edits = Edits(
        env=(
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(files.libraries.folders)}",
            # Keeps NVIDIA's legacy runtime hook, where it is installed too, from adding all GPUs.
            "NVIDIA_VISIBLE_DEVICES=void",
        ),
        mounts=tuple(_mounts(files, roots, hookless=hook_program is None)),
        hooks=_hooks(files.libraries, hook_program) if hook_program else (),
    )
    for name in CONTROL_NODES:
        edits += node_edits(roots, name) or Edits()
    return edits


def _mounts(files: DriverFiles, roots: Roots, *, hookless: bool) -> Iterable[Mount]:
    """Return one mount per container path; of two for the same path the first stands."""
    wanted = list(_read_only(files))
    if hookless:
        wanted += _aliases(files.libraries)
    mounts: dict[str, Mount] = {}
    for options, pairs in (
        (_FILE, wanted),
        (_SOCKET, [(socket.source, socket.container_path) for socket in files.sockets]),
    ):
        for source, shown in pairs:
            host_path = roots.driver_file_on_host(source)
            mounts.setdefault(
                shown, Mount(host_path=host_path, container_path=shown, options=options)
            )
    return mounts.values()


def _read_only(files: DriverFiles) -> Iterator[tuple[str, str]]:
    """Yield source and container path of everything that is mounted in either way."""
    for library in files.libraries.libraries:
        yield library.path, library.path
    for file in (*files.programs, *files.firmware, *files.configs):
        yield file.source, file.container_path


def _aliases(libraries: DriverLibraries) -> Iterator[tuple[str, str]]:
    """Yield source and container path of the names that hooks would make as links."""
    for library in libraries.libraries:
        path = PurePosixPath(library.path)
        if str(path.parent) in libraries.folders:
            yield library.path, f"{HOOKLESS_LIBRARIES}/{library.soname or path.name}"
    for link in libraries.links:
        path = PurePosixPath(link.path)
        if str(path.parent) not in libraries.folders:
            yield link.library, link.path  # opened by this very path: GBM and X.org modules
            continue
        yield link.library, f"{HOOKLESS_LIBRARIES}/{path.name}"
        if str(path.parent) in _SEARCHED_BY_DEFAULT:
            yield link.library, link.path


def _hooks(libraries: DriverLibraries, program: HookProgram) -> tuple[Hook, ...]:
    links = sorted((link.target, link.path) for link in libraries.links)
    folders = [arg for folder in libraries.folders for arg in ("--folder", folder)]
    return (
        *program.links(links),
        *program.hooks(hooks.ENABLE_CUDA_COMPAT, f"--host-driver-version={libraries.version}"),
        *program.hooks(hooks.UPDATE_LOADER_CACHE, *folders),
        *program.hooks(hooks.DISABLE_NODE_MODIFICATION),
        *program.hooks(hooks.UPDATE_APPLICATION_PROFILE),
    )
