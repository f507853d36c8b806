"""Mounts the tmpfs of MPS domains, and gives daemons a private view of the machine.

A daemon and its clients share two folders, CUDA_MPS_PIPE_DIRECTORY and /dev/shm, which must have
the same paths for both (NVIDIA's MPS documentation; R580 needs only the first). Clients see them
through bind mounts in their containers, and a daemon in its own mount namespace
instead of a chroot (dra-driver-nvidia-gpu#889), so several daemons on one host stay separate
although all have the same environment. The namespace ends with the daemon.
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dra_driver.devices.control_groups import mounts, unescaped
from dra_driver.errors import DeviceError

T = TypeVar("T")

# linux/sched.h, sys/mount.h
_CLONE_FS, _CLONE_NEWNS = 0x00000200, 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RELATIME = 0x2, 0x4, 0x8, 0x200000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_TENANTS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RELATIME
_DETACH = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW

_MOUNT_INFO = Path("/proc/thread-self/mountinfo")
_MOUNT_POINT, _OPTIONAL = 4, 6  # fields of mountinfo, proc_pid_mountinfo(5)
_MOST_LAYERS = 64

_TMP = Path("/tmp")  # noqa: S108 (covered by a tmpfs before anything is put there)
_TMP_BYTES = 1024**2


def layers(folder: Path) -> int:
    """Return how many file systems are mounted on a folder, one over another."""
    return _mount_points().count(str(folder.resolve()))


def hides_mounts(folder: Path) -> bool:
    """Tell whether nobody else sees the mounts in a mounted folder (it is not Bidirectional)."""
    point = str(folder.resolve())
    there = [
        fields for fields, _ in mounts(_MOUNT_INFO) if unescaped(fields[_MOUNT_POINT]) == point
    ]
    return bool(there) and not any(field.startswith("shared:") for field in there[-1][_OPTIONAL:])


def mount_tmpfs(folder: Path, *, size_bytes: int, files: int, mode: int = 0o1777) -> None:
    """Mount a tmpfs on a folder, unless something is mounted there already.

    `files` limits files, links and folders; the size does not include the kernel's memory for them.
    """
    if layers(folder):
        return
    options = f"size={size_bytes},mode={mode:o},nr_inodes={files}"
    _mount("tmpfs", folder, "tmpfs", _TENANTS, options)


def unmount_all(folder: Path) -> None:
    """Unmount everything on a folder; a mount that is in use ends with its last user."""
    if not folder.is_dir():
        return
    for _ in range(_MOST_LAYERS):
        if not layers(folder):
            return
        if _libc().umount2(os.fsencode(folder), _DETACH) != 0:
            raise _refused(f"unmount {folder}")
    raise DeviceError(f"{folder} has more than {_MOST_LAYERS} file systems mounted on it")


class EnterError(DeviceError):
    """A mount namespace cannot be entered."""


def in_private_mounts(
    binds: Mapping[Path, Path],
    call: Callable[[], T],
    *,
    without: Path,
    namespace: Path | None = None,
) -> T:
    """Call with some folders mounted over others, visible only to the call and its processes.

    The call runs on its own thread in its own mount namespace. Later mounts of the host appear in
    it, and mounts made here do not appear on the host. The new namespace is a copy of `namespace`,
    such as /proc/1/ns/mnt, or of this process's; in the former the machine's /tmp is covered, so
    that no targets are left in it. `binds` are target → source; a missing target is made.
    Everything mounted below `without` is hidden, so that the namespace does not keep it in use
    after everybody else has unmounted it.

    Raises EnterError if the namespace cannot be entered, else DeviceError, or whatever `call`
    raises.
    """

    def run() -> T:
        if namespace is not None:
            _enter(namespace)
        _enter_private_mounts()
        if namespace is not None:
            flags = _MS_NOSUID | _MS_NODEV | _MS_RELATIME
            _mount("tmpfs", _TMP, "tmpfs", flags, f"size={_TMP_BYTES},mode=1777")
        for target, source in binds.items():
            _bind(source, target)
        _hide(without)
        return call()

    with ThreadPoolExecutor(1, thread_name_prefix="mps-launch") as pool:
        return pool.submit(run).result()  # the call has a time limit of its own


def _enter(namespace: Path) -> None:
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EnterError(f"cannot open {namespace}: {error.strerror}") from error
    try:
        # Threads share root and working directory, which the namespace decides.
        if _libc().unshare(_CLONE_FS) != 0 or _libc().setns(descriptor, _CLONE_NEWNS) != 0:
            raise EnterError(str(_refused(f"enter {namespace}")))
    finally:
        os.close(descriptor)


def _enter_private_mounts() -> None:
    if _libc().unshare(_CLONE_NEWNS) != 0:
        raise _refused("make a mount namespace")
    _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE, None)


def _hide(folder: Path) -> None:
    inside = f"{folder.resolve()}/"
    for point in reversed(_mount_points()):
        if point.startswith(inside) and _libc().umount2(os.fsencode(point), _DETACH) != 0:
            raise _refused(f"hide {point}")


def _mount_points() -> list[str]:
    return [unescaped(fields[_MOUNT_POINT]) for fields, _ in mounts(_MOUNT_INFO)]


def _bind(source: Path, target: Path) -> None:
    """Bind one folder over another; a symbolic link as the target is not followed."""
    target.mkdir(mode=0o755, parents=True, exist_ok=True)
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(target, flags)
    except OSError as error:
        raise DeviceError(f"cannot mount on {target}: {error.strerror}") from error
    try:
        _mount(str(source), Path(f"/proc/self/fd/{descriptor}"), None, _MS_BIND | _MS_REC, None)
    finally:
        os.close(descriptor)


def _mount(
    source: str | None, target: Path, kind: str | None, flags: int, options: str | None
) -> None:
    # Types are declared, because ctypes would pass the flags as int, which is too small.
    mount = _libc().mount
    mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    arguments = [None if text is None else os.fsencode(text) for text in (source, kind, options)]
    if mount(arguments[0], os.fsencode(target), arguments[1], flags, arguments[2]) != 0:
        raise _refused(f"mount {source or 'nothing'} on {target}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _refused(what: str) -> DeviceError:
    reason = os.strerror(ctypes.get_errno())
    return DeviceError(
        f"cannot {what}: {reason}; run the MPS supervisor as a privileged container, with "
        "mountPropagation: Bidirectional on the kubelet's plugins directory"
    )
