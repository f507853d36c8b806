"""NVIDIA's CDI hook program: whether the node has it, and the OCI hooks that call it.

In: the configured path, or the node's usual places. Out: `HookProgram`, which makes the hooks. They
set up a container's own links, loader cache and compatibility libraries when it is created; without
the program, specs are hookless (cdi/driver_edits.py). The arguments are those of
`nvidia-ctk cdi generate`. A hook's path is the one that the container runtime sees, on the host.

If a release does not know a command, it may refuse it, and then the container does not start. So
the program is searched for the names of the commands: it is a Go binary that contains them as text,
and it cannot be run here because it is built for the host. A file without any of the names is a
script that starts the program, which GPU Operator installs beside it.
"""

import mmap
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from msgspec import Struct

from dra_driver.cdi.model import Hook
from dra_driver.cdi.roots import Roots
from dra_driver.devices.driver_root import rooted
from dra_driver.errors import DeviceError

CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
UPDATE_LOADER_CACHE = "update-ldcache"
DISABLE_NODE_MODIFICATION = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE = "update-application-profile"

_COMMANDS = (
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LOADER_CACHE,
    DISABLE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
)
# Every release that NVIDIA's DRA driver can use has these: the answer if no name can be found.
_LONG_KNOWN = frozenset(_COMMANDS) - {UPDATE_APPLICATION_PROFILE}
_TOOLKIT = "nvidia-ctk"
_USUAL_PLACES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",  # GPU Operator
    "/usr/bin/nvidia-ctk",
)


class HookProgram(Struct, frozen=True, kw_only=True):
    """A hook program at a host path, and the commands that it knows."""

    path: str
    commands: frozenset[str]

    def hooks(self, command: str, *args: str) -> tuple[Hook, ...]:
        """Return the hook that runs a command, or nothing if this program does not know it."""
        if command not in self.commands:
            return ()
        name = PurePosixPath(self.path).name
        prefix = (name, "hook") if name == _TOOLKIT else (name,)
        return (
            Hook(
                hook_name="createContainer",
                path=self.path,
                args=(*prefix, command, *args),
                # A hook with no variables gets the image's, even LD_PRELOAD (CVE-2025-23266).
                env=("NVIDIA_CTK_DEBUG=false",),
            ),
        )

    def links(self, links: Iterable[tuple[str, str]]) -> tuple[Hook, ...]:
        """Return the hook that makes links, given as (link text, path in the container)."""
        args = [arg for target, path in links for arg in ("--link", f"{target}::{path}")]
        return self.hooks(CREATE_SYMLINKS, *args) if args else ()


def find_hook_program(roots: Roots, configured: str | None) -> HookProgram | None:
    """Find the program on the node; None means hookless.

    The host's files are visible only if the driver root is the host's own `/`. Otherwise a
    configured path is taken as it is, and without one nothing is searched, because a program in a
    driver container may need libraries that the host lacks. Raises DeviceError if the host's files
    are visible but there is none at the configured path, or they cannot be read.
    """
    if not _sees_host(roots):
        if not configured:
            return None
        return HookProgram(path=configured, commands=_known_commands(Path(configured)))
    for path in (configured,) if configured else _USUAL_PLACES:
        program = _file(roots, path)
        if program is not None:
            return HookProgram(path=path, commands=_known_commands(program))
    if configured:
        raise DeviceError(
            f"the CDI hook program {configured} is not on this node; correct"
            " --nvidia-cdi-hook-path, or leave it empty to do without the hook program"
        )
    return None


def watched_places(roots: Roots, configured: str | None) -> tuple[Path, ...]:
    """Return folders, one of which changes when the program is added, removed or replaced."""
    if not _sees_host(roots):
        return (Path(configured).parent,) if configured else ()
    folders = (path.rpartition("/")[0] for path in ((configured,) if configured else _USUAL_PLACES))
    return tuple(rooted.outside(roots.driver, folder) for folder in dict.fromkeys(folders))


def _sees_host(roots: Roots) -> bool:
    return roots.driver_on_host == "/"


def _file(roots: Roots, path: str) -> Path | None:
    try:
        inside = rooted.resolve(roots.driver, path)
        hook = None if inside is None else rooted.outside(roots.driver, inside)
        return hook if hook is not None and hook.is_file() else None
    except OSError as error:
        raise DeviceError(
            f"the CDI hook program cannot be searched for at {error.filename}: {error.strerror};"
            " check the mount of the driver root"
        ) from error


def _known_commands(program: Path) -> frozenset[str]:
    """Return the commands whose names are in the program, or in the one that a script starts."""
    beside = program.with_name(f"{program.name}.real")
    return _commands_in(program) or _commands_in(beside) or _LONG_KNOWN


def _commands_in(program: Path) -> frozenset[str]:
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            return frozenset(command for command in _COMMANDS if text.find(command.encode()) >= 0)
    except (OSError, ValueError):  # absent, unreadable, or empty
        return frozenset()
