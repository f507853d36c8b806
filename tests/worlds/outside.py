"""Calls to the outside of which one fails, once: the disk, NVML, the API server, a program.

What is asked for by this thread and by those that carry out its claims' steps is counted. A test
lets the first call fail, then the second, until there was none to fail any more.
"""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dra_driver.errors import AccessError, UnavailableError
from dra_driver.simulator.state import Fault
from worlds.node import Node

Folders = Sequence[Path]

_MARK = "trouble of this test"
CAUSES = (_MARK, "Unknown Error", "In use by another client")
"""What an error says that comes of it: the system's words, and NVML's."""

_OF_PATHS = ("mkdir", "unlink", "rmdir", "rename", "replace", "link", "chmod")
_OF_DESCRIPTORS = ("write", "fsync", "fchmod")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Kind(StrEnum):
    """What fails: with `FOR_NOW` and `AWAY` in a way that may pass by itself."""

    WRITE = "write to the disk"
    READ = "read of the disk"
    NVML = "NVML call"
    FOR_NOW = "NVML call, for now"
    REQUEST = "request"
    AWAY = "request, for now"
    PROGRAM = "start of a program"


_NVML = {Kind.NVML: pynvml.NVML_ERROR_UNKNOWN, Kind.FOR_NOW: pynvml.NVML_ERROR_IN_USE}


class Trouble:
    """Counts calls, and says which of them is to fail. `struck` is whether it has."""

    def __init__(self, nth: int) -> None:
        self.struck = False
        self._left = nth
        self._lock = threading.Lock()

    def strikes(self) -> bool:
        thread = threading.current_thread()
        if thread is not threading.main_thread() and not thread.name.startswith("claim-step"):
            return False
        with self._lock:
            self._left -= 1
            self.struck |= self._left == 0
            return self._left == 0


@contextmanager
def failing(node: Node, kind: Kind, nth: int) -> Iterator[Trouble]:
    """Let the nth call of a kind fail that a node's driver makes from now on."""
    trouble = Trouble(nth)
    if kind in _NVML:
        node.machine._inject(None, Fault(code=_NVML[kind], skip=nth - 1, times=1))
        yield trouble
        trouble.struck = not node.machine.faults()
        node.machine.clear_faults()
        return
    with pytest.MonkeyPatch.context() as patch:
        _break(patch, node, kind, trouble)
        yield trouble


def _break(patch: pytest.MonkeyPatch, node: Node, kind: Kind, trouble: Trouble) -> None:
    folders = (node.root / "state", node.root / "mps")
    if kind is Kind.PROGRAM:
        patch.setattr(subprocess, "Popen", _broken(subprocess.Popen, trouble))
    elif kind is Kind.WRITE:
        for name in (*_OF_PATHS, "open"):
            _break_paths(patch, folders, name, trouble, writes=True)
        for name in _OF_DESCRIPTORS:
            _break_descriptors(patch, folders, name, trouble)
    elif kind is Kind.READ:
        for name in ("open", "listdir", "scandir"):
            _break_paths(patch, folders, name, trouble, writes=False)
    else:

        def answer(_: str) -> None:
            if trouble.strikes():
                raise (
                    UnavailableError(_MARK) if kind is Kind.AWAY else AccessError(_MARK, status=403)
                )

        patch.setattr(node.driver.api, "trouble", answer)


def _broken(call: Callable[..., Any], trouble: Trouble) -> Callable[..., Any]:
    def made(*words: Any, **named: Any) -> Any:
        if trouble.strikes():
            raise OSError(errno.EIO, _MARK)
        return call(*words, **named)

    return made


def _break_paths(
    patch: pytest.MonkeyPatch, folders: Folders, name: str, trouble: Trouble, *, writes: bool
) -> None:
    """Have a function of the system that is given a path fail for what is below folders."""
    call = getattr(os, name)
    broken = _broken(call, trouble)

    def made(*words: Any, **named: Any) -> Any:
        is_meant = isinstance(words[0], str | os.PathLike) and _is_below(Path(words[0]), folders)
        if name == "open":
            is_meant = is_meant and bool(words[1] & _WRITES) is writes
        return (broken if is_meant else call)(*words, **named)

    patch.setattr(os, name, made)


def _break_descriptors(
    patch: pytest.MonkeyPatch, folders: Folders, name: str, trouble: Trouble
) -> None:
    """Have a function of the system that is given a descriptor fail for files below folders."""
    call = getattr(os, name)
    broken = _broken(call, trouble)

    def made(descriptor: int, *words: Any) -> Any:
        is_meant = _is_below(Path(f"/proc/self/fd/{descriptor}").readlink(), folders)
        return (broken if is_meant else call)(descriptor, *words)

    patch.setattr(os, name, made)


def _is_below(path: Path, folders: Folders) -> bool:
    return any(map(path.is_relative_to, folders))
