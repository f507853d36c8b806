"""`dra-driver usage`: who uses the GPUs of this node, shown once or repeatedly.

In: which GPUs to show, and where files are. Out: on a terminal one page that is refreshed, as by
`top`; elsewhere text or JSON, once. NVML is opened for it, and processes of containers are visible
only from the host's PID namespace: without it, the output has a note.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from dra_driver.admin.output import WideOutput, for_programs, is_for_programs
from dra_driver.admin.status.usage_view import EVERYTHING, Selected, document, lines
from dra_driver.admin.stored import stored_records
from dra_driver.cdi.roots import Roots
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.nvml.library import NvmlLibrary, find_library
from dra_driver.devices.versions import running_driver
from dra_driver.errors import SetupError
from dra_driver.host.printing import unescaped
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.node.usage import node_look
from dra_driver.sharing.limiters import UNSEEN
from dra_driver.usage.model import NodeUse

_NEW_PAGE = "\x1b[H\x1b[2J"


class Question(Struct, frozen=True, kw_only=True):
    """What to show. `interval` is in seconds between refreshes; None: once."""

    gpu: str = ""
    pid: int | None = None
    output: WideOutput = "table"
    interval: float | None = None


_UNSEEN = f"{UNSEEN}, or run this in the MPS supervisor's pod"


def show(question: Question, roots: Roots, plugins: Path, out: TextIO) -> None:
    """Print the usage, on a terminal until Ctrl-C; `plugins` is the kubelet's directory."""
    library = NvmlLibrary(find_library(roots.driver, running_driver(roots.proc)))
    library.open()
    try:
        resources = PodResources(plugins, roots.host_roots(), on_problem=_warn)
        directory = plugins / DRIVER_NAME
        look = node_look(
            library, roots, directory, resources.pods, lambda: stored_records(directory).records
        ).look
        if is_for_programs(question.output) or question.interval is None or not out.isatty():
            width = shutil.get_terminal_size().columns if out.isatty() else None
            out.write(text_of(question, look(), width))
            return
        _refresh(question, look, out)
    finally:
        library.close()


def _warn(reason: str) -> None:
    sys.stderr.write(f"pods that joined a claim later are not known: {reason}\n")


def text_of(question: Question, use: NodeUse, width: int | None) -> str:
    """Return the usage as it is printed; `width` is the terminal's, None without one."""
    of = selected(question, use)
    if is_for_programs(question.output):
        return for_programs(json.dumps(document(use, of), indent=2) + "\n", question.output)
    shown = lines(use, width=width, of=of)
    if not use.sees_processes:
        shown += ["", _UNSEEN]
    return "\n".join(shown) + "\n"


def selected(question: Question, use: NodeUse) -> Selected:
    """Return which GPUs are asked for."""
    indices = {gpu.load.index for gpu in use.gpus} | set(use.silent)
    if question.gpu:
        names = {
            name.lower(): gpu.load.index
            for gpu in use.gpus
            for name in (gpu.load.uuid, gpu.name, *(mig.uuid for mig in gpu.load.migs))
        } | {str(index): index for index in indices}
        if (index := names.get(question.gpu.lower())) is None:
            known = ", ".join(f"{gpu.load.index} {gpu.load.uuid}" for gpu in use.gpus)
            raise SetupError(
                f"no GPU of this node is {question.gpu!r}; name one by index, UUID or device name"
                f" (there are {known or 'none'})"
            )
        indices &= {index}
    if question.pid is not None:
        on = {
            gpu.load.index
            for gpu in use.gpus
            if any(process.pid == question.pid for process in gpu.load.processes)
        }
        if not on:
            raise SetupError(
                f"process {question.pid} uses no GPU of this node"
                + (
                    "; give the PID that it has on the host"
                    if use.sees_processes
                    else f": {_UNSEEN}"
                )
            )
        indices &= on
    return Selected(indices=frozenset(indices)) if question.gpu or question.pid else EVERYTHING


def _refresh(question: Question, look: Callable[[], NodeUse], out: TextIO) -> None:
    try:
        while question.interval is not None:
            now = time.strftime("%H:%M:%S")
            page = text_of(question, look(), shutil.get_terminal_size().columns)
            unescaped(out).write(_NEW_PAGE)
            out.write(f"{now}  (Ctrl-C ends)\n\n{page}")
            out.flush()
            time.sleep(question.interval)
    except KeyboardInterrupt:
        out.write("\n")
