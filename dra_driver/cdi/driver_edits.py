"""The edits that every container with a GPU gets, whichever GPU it is.

In: the driver's files and the node's hook program, if it has one. Out: the edits that all devices
of a spec share. Two ways lead to the same effect:

with hooks   the hook program makes the loader's cache in the container
hookless     libraries are also mounted under the names that programs open, in
             /usr/local/nvidia/lib64, which NVIDIA's CUDA images search (their LD_LIBRARY_PATH)

If the hook program is installed between two claims of one container, their specs are written in
different ways but have to work together. So if both ways provide a path, they do it by the same
mount. The hook program makes links only at paths that the other way does not use, because a link
cannot be made where something is mounted.
"""

from collections.abc import Iterable

from dra_driver.cdi import hooks
from dra_driver.cdi.driver_libraries import DriverLibraries, Link
from dra_driver.cdi.driver_root import DriverFiles
from dra_driver.cdi.hooks import HookProgram
from dra_driver.cdi.model import Edits, Hook, Mount
from dra_driver.cdi.roots import Roots

HOOKLESS_LIBRARIES = "/usr/local/nvidia/lib64"

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
# Folders that glibc searches without a cache: its own defaults, and Debian's multiarch folders.
_SEARCHED_BY_DEFAULT = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
# Links for libglvnd that Mesa's packages have too.
_OFTEN_ANOTHERS = frozenset({"libGLX_indirect.so.0"})


def driver_edits(files: DriverFiles, roots: Roots, hook_program: HookProgram | None) -> Edits:
    """Return the edits shared by all GPUs of the node, except device nodes."""
    return Edits(
        env=(
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(files.libraries.main_folders)}",
            # Keeps NVIDIA's legacy runtime hook, where it is installed too, from adding all GPUs.
            "NVIDIA_VISIBLE_DEVICES=void",
        ),
        mounts=tuple(_mounts(files, roots, hookless=hook_program is None)),
        hooks=_hooks(files.libraries, hook_program) if hook_program else (),
    )


def _mounts(files: DriverFiles, roots: Roots, *, hookless: bool) -> Iterable[Mount]:
    """Return one mount per container path: the first one if there are several."""
    libraries = files.libraries
    wanted = [(library.source, library.path) for library in libraries.libraries]
    wanted += [
        (file.source, file.container_path)
        for file in (*files.programs, *files.firmware, *files.configs)
    ]
    wanted += [
        (link.library, link.path) for link in libraries.links if _is_mounted(link, libraries)
    ]
    if hookless:
        wanted += [
            (source, f"{HOOKLESS_LIBRARIES}/{name}") for name, source in libraries.by_name().items()
        ]
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


def _is_mounted(link: Link, libraries: DriverLibraries) -> bool:
    """Tell whether a link is mounted, because programs find it without cache or LD_LIBRARY_PATH.

    A mount over an image's own link would hide another vendor's library; hooks replace the link.
    """
    folder, _, name = link.path.rpartition("/")
    if folder not in libraries.folders:
        return True  # GBM and X.Org modules
    return folder in _SEARCHED_BY_DEFAULT and name not in _OFTEN_ANOTHERS


def _hooks(libraries: DriverLibraries, program: HookProgram) -> tuple[Hook, ...]:
    links = sorted(
        (link.target, link.path) for link in libraries.links if not _is_mounted(link, libraries)
    )
    folders = [arg for folder in libraries.folders for arg in ("--folder", folder)]
    return (
        *program.links(links),
        *program.hooks(hooks.ENABLE_CUDA_COMPAT, f"--host-driver-version={libraries.version}"),
        *program.hooks(hooks.UPDATE_LOADER_CACHE, *folders),
        *program.hooks(hooks.DISABLE_NODE_MODIFICATION),
        *program.hooks(hooks.UPDATE_APPLICATION_PROFILE),
    )
