"""`dra-driver simulate memory` and `busy`: processes that take memory of simulated GPUs, and work.

In: the command line. Out: a changed machine, and on stdout what processes have. A process that is
refused by a memory limit of its control group is an error, so that scripts see it.
"""

import os
import sys
from pathlib import Path
from typing import Literal

import pydantic
from pydantic_settings import CliPositionalArg

from dra_driver.errors import SetupError
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.mig_cli import DEFAULT_ROOT
from dra_driver.simulator.processes import Activity, let_do

_MIB = 1024**2
_KINDS = {
    "compute": ProcessKind.COMPUTES,
    "graphics": ProcessKind.DRAWS,
    "mps": ProcessKind.BY_MPS,
}


class Memory(pydantic.BaseModel):
    """Let processes take memory of a GPU, as far as limits of their control groups allow.

    take: a process gets so much more, or is refused (exit status 1). release: it ends, and all it
    had is free. list: what processes have.
    """

    kind: CliPositionalArg[Literal["list", "take", "release"]]
    root: Path = pydantic.Field(DEFAULT_ROOT, description="the driver root, a folder")
    gpu: str = pydantic.Field("", description="index, UUID, PCI address or minor:N")
    pid: int | None = pydantic.Field(None, description="the process; by default the caller's")
    mib: int = pydantic.Field(0, ge=0, description="how much it takes, in MiB")
    cgroup: Path | None = pydantic.Field(
        None, description="folder of its control group; by default the one that the process is in"
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        if self.kind == "list":
            uuids = {gpu.slot: gpu.uuid for gpu in machine.gpus}
            for one in machine.allocations():
                _print(f"{uuids[one.slot]}  process {one.pid}  {one.memory // _MIB} MiB")
            return
        if not self.gpu:
            words = "an index, UUID, PCI address, minor:N"
            raise SetupError(f"memory {self.kind} needs --gpu: {words}")
        uuid = machine.find(self.gpu).uuid
        pid = os.getppid() if self.pid is None else self.pid
        if self.kind == "release":
            machine.release_memory(uuid, pid=pid)
            _print(f"process {pid} has left {uuid}")
            return
        group = self.cgroup or machine.group_of(pid)
        if not machine.take_memory(uuid, self.mib * _MIB, pid=pid, group=group):
            raise SetupError(
                f"process {pid} is refused {self.mib} MiB of {uuid}: out of memory, by a memory"
                f" limit of {group} or of a group above it"
            )
        _print(f"process {pid} has {self.mib} MiB more of {uuid}")


class Busy(pydantic.BaseModel):
    """Let a process that has memory of GPUs or MIG devices do something there, or be idle again."""

    root: Path = pydantic.Field(DEFAULT_ROOT, description="the driver root, a folder")
    pid: int | None = pydantic.Field(None, description="the process; by default the caller's")
    sm: int = pydantic.Field(0, ge=0, le=100, description="percent of the time its kernels run")
    kind: Literal["compute", "graphics", "mps"] = pydantic.Field(
        "compute", description="in which of NVML's lists it is"
    )
    hides_memory: bool = pydantic.Field(
        False, description="NVML does not know how much memory it has"
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        pid = os.getppid() if self.pid is None else self.pid
        let_do(
            Machine(self.root),
            pid,
            Activity(kind=_KINDS[self.kind], sm=self.sm, hides_memory=self.hides_memory),
        )
        _print(f"process {pid} is {f'{self.sm} % busy' if self.sm else 'idle'}")


def _print(text: str) -> None:
    sys.stdout.write(text + os.linesep)
