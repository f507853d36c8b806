"""`dra-driver simulate memory` and `busy`: processes that use simulated GPUs' memory and SMs.

In: the command line. Out: a changed machine, and on stdout what processes have. A process that is
refused by a memory limit of its control group is an error, so that scripts see it.
"""

import os
from pathlib import Path
from typing import Literal

from dra_driver.command_line import CommandSettings, argument, bounds, option
from dra_driver.errors import SetupError
from dra_driver.printing import say
from dra_driver.simulator.cli_options import OPTIONAL_GPU, ROOT
from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity, let_do

_MIB = 1024**2
_KINDS = {
    "compute": ProcessKind.COMPUTES,
    "graphics": ProcessKind.DRAWS,
    "mps": ProcessKind.BY_MPS,
}


class Memory(CommandSettings):
    """Let processes take memory of a GPU, within the limits of their control groups.

    take: a process takes more memory, or is refused (exit status 1). release: the process ends and
    frees all its memory. list: what processes have.
    """

    kind: Literal["list", "take", "release"] = argument()
    root: Path = ROOT
    gpu: str = OPTIONAL_GPU
    pid: int | None = option(default=None, help="The process; by default the caller's.")
    mib: int = option(check=bounds(least=0), default=0, help="Memory to take, in MiB.")
    cgroup: Path | None = option(
        default=None, help="Folder of its control group; by default the process's own."
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        if self.kind == "list":
            uuids = {gpu.slot: gpu.uuid for gpu in machine.gpus}
            for allocation in machine.allocations():
                size = f"{allocation.memory // _MIB} MiB"
                say(f"{uuids[allocation.slot]}  process {allocation.pid}  {size}")
            return
        if not self.gpu:
            words = "an index, UUID, PCI address, minor:N"
            raise SetupError(f"memory {self.kind} needs --gpu: {words}")
        uuid = machine.find(self.gpu).uuid
        pid = os.getppid() if self.pid is None else self.pid
        if self.kind == "release":
            machine.release_memory(uuid, pid=pid)
            say(f"process {pid} has left {uuid}")
            return
        group = self.cgroup or machine.group_of(pid)
        if not machine.take_memory(uuid, self.mib * _MIB, pid=pid, group=group):
            raise SetupError(
                f"process {pid} is refused {self.mib} MiB of {uuid}: out of memory, by a memory"
                f" limit of {group} or of a group above it"
            )
        say(f"process {pid} has {self.mib} MiB more of {uuid}")


class Busy(CommandSettings):
    """Make a process that has memory of GPUs or MIG devices busy or idle."""

    root: Path = ROOT
    pid: int | None = option(default=None, help="The process; by default the caller's.")
    sm: int = option(
        check=bounds(least=0, most=100), default=0, help="Percent of the time its kernels run."
    )
    kind: Literal["compute", "graphics", "mps"] = option(
        default="compute", help="NVML's list that it is in."
    )
    hides_memory: bool = option(default=False, help="Hide from NVML how much memory it has.")

    def cli_cmd(self) -> None:
        """Run the command."""
        pid = os.getppid() if self.pid is None else self.pid
        let_do(
            Machine(self.root),
            pid,
            Activity(kind=_KINDS[self.kind], sm=self.sm, hides_memory=self.hides_memory),
        )
        say(f"process {pid} is {f'{self.sm} % busy' if self.sm else 'idle'}")
