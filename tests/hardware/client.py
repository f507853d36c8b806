"""Programs that compute on the card: client.c as a process, or in a container.

On a simulated GPU a client only makes a context, because nothing computes there.
"""

import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from testbed.commands import run as program

from dra_driver.bench.mps_daemon import clean_environment
from dra_driver.devices.driver_root import libraries, rooted
from dra_driver.errors import DeviceError, SetupError
from dra_driver.simulator.build import find_compiler
from hardware.run import Run

SOURCE = Path(__file__).with_name("client.c")
LIBCUDA = "libcuda.so.1"
OUT_OF_MEMORY = "cuMemAlloc_v2 2"
"""What a client prints about memory that it is refused (CUDA_ERROR_OUT_OF_MEMORY)."""
_NOT_THERE = " -1"
_SECONDS = 120.0
_ENTER = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a client has printed: facts by name, and what failed, if anything."""

    facts: Mapping[str, str]
    failed: str

    @property
    def is_refused(self) -> bool:
        """Whether it was refused its memory."""
        return self.failed == OUT_OF_MEMORY

    def check(self, *, is_simulated: bool) -> None:
        """Skip the test if nothing computes, and let it fail if something failed."""
        if is_simulated and self.failed.endswith(_NOT_THERE) and "context" in self.facts:
            pytest.skip("nothing computes on a simulated GPU; a context was made")
        if self.failed:
            pytest.fail(f"a CUDA program failed: {self.failed}")


def understood(output: str) -> Said:
    """Read what a client printed."""
    rows = dict(line.partition(" ")[::2] for line in output.splitlines())
    return Said(failed=rows.pop("failed", ""), facts=rows)


def built(folder: Path) -> Path:
    """Compile the client; return the program. Skips without a compiler."""
    out = folder / "cuda-client"
    if not out.exists():
        try:
            compiler = find_compiler(os.environ)
        except SetupError as error:
            pytest.skip(str(error))
        program((compiler, "-std=gnu11", "-O1", SOURCE, "-o", out, "-ldl"))
    return out


def environment(run: Run) -> dict[str, str]:
    """Return the environment with which a client finds the libraries and the card, not MPS."""
    own = clean_environment(os.environ) | run.mark | {"CUDA_VISIBLE_DEVICES": run.card.uuid}
    nobody = run.folder / "no-mps"
    nobody.mkdir(exist_ok=True)
    own["CUDA_MPS_PIPE_DIRECTORY"] = str(nobody)
    if run.card.root != Path("/"):
        paths = libraries.locate(run.card.root, LIBCUDA)
        if not paths:
            raise DeviceError(f"{LIBCUDA} is not below {run.card.root}")
        own["LD_LIBRARY_PATH"] = str(rooted.outside(run.card.root, paths[0]).parent)
    return own


class Client:
    """A client as a process, which keeps its memory until it is ended."""

    def __init__(
        self, path: Path, env: Mapping[str, str], mib: int = 1, *, group: Path | None = None
    ) -> None:
        """Start it, in a control group if one is named; it takes so many MiB."""
        enter = () if group is None else ("sh", "-c", _ENTER, group / "cgroup.procs")
        self._process = subprocess.Popen(
            [*enter, path, str(mib)],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._timer = threading.Timer(_SECONDS, self._process.kill)
        self._timer.start()
        self.said = self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def _listen(self) -> Said:
        lines = []
        for line in self._process.stdout or ():
            lines.append(line)
            if line.strip() == "memory taken" or line.startswith("failed "):
                return understood("".join(lines))
        return Said(facts={}, failed=f"it ended: {''.join(lines).strip() or 'without a word'}")
