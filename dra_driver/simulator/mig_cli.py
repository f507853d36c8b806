"""`dra-driver simulate mig` and `reset`: MIG by hand on a simulated machine.

In: the command line. Out: a changed machine, and what was made or is there on stdout. NVIDIA's own
nvidia-smi does most of this too, but no reset, and it holds no instances.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dra_driver.command_line import CommandSettings, argument, bounds, option
from dra_driver.errors import SetupError
from dra_driver.printing import say
from dra_driver.simulator.cli_options import GPU, OPTIONAL_GPU, ROOT
from dra_driver.simulator.machine import Machine


class Mig(CommandSettings):
    """Make and destroy MIG devices by hand, and let processes hold them.

    list: existing MIG devices. on and off: a GPU's MIG mode. create and destroy: a GPU instance
    with a compute instance that fills it. hold and release: a process uses a MIG device or a GPU.
    late: how long after an instance its /proc file and device node appear.
    """

    kind: Literal["list", "on", "off", "create", "destroy", "hold", "release", "late"] = argument()
    root: Path = ROOT
    gpu: str = OPTIONAL_GPU
    profile: str = option(default="", help="Name or id of the profile to create.")
    start: int | None = option(default=None, help="Memory slice to create at.")
    device: str = option(default="", help="UUID of a MIG device.")
    pid: int | None = option(default=None, help="Process that holds the device or releases it.")
    delay_ms: int = option(
        check=bounds(least=0), default=0, help="Milliseconds by which files appear late."
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        match self.kind:
            case "list":
                for line in listed(machine):
                    say(line)
            case "on" | "off":
                self._switch(machine)
            case "create":
                say(machine.create_mig(self._gpu(machine), self._profile(), self.start))
                time.sleep(machine.late_files_ms / 1000)
                machine.settle_nodes()
            case "destroy":
                machine.destroy_mig(self._named("a MIG device's UUID", "--device", self.device))
                say(f"destroyed {self.device}")
            case "hold":
                pid = machine.hold_instance(self._held(machine), pid=self.pid or os.getppid())
                say(f"process {pid} holds {self._held(machine)}")
            case "release":
                machine.release_instance(self._held(machine), pid=self.pid)
                say(f"released {self._held(machine)}")
            case "late":
                machine.late_nodes(self.delay_ms)
                say(f"files of new instances come after {self.delay_ms} ms")

    def _switch(self, machine: Machine) -> None:
        done = machine.set_mig_mode(self._gpu(machine), enabled=self.kind == "on")
        pending = "pending; `simulate reset` or `simulate boot` puts it in force"
        say(f"MIG {self.kind}: {'done' if done else pending}")

    def _gpu(self, machine: Machine) -> str:
        words = "an index, UUID, PCI address, minor:N"
        return machine.find(self._named(words, "--gpu", self.gpu)).uuid

    def _profile(self) -> str:
        return self._named("a profile's name or id", "--profile", self.profile)

    def _held(self, machine: Machine) -> str:
        return self.device or self._gpu(machine)

    def _named(self, what: str, option: str, value: str) -> str:
        if not value:
            raise SetupError(f"mig {self.kind} needs {option}: {what}")
        return value


class Reset(CommandSettings):
    """Reset a GPU: end its instances, apply a pending MIG mode, bring back a lost GPU."""

    root: Path = ROOT
    gpu: str = GPU

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        uuid = machine.find(self.gpu).uuid
        machine.reset_gpu(uuid)
        say(f"reset {uuid}")


def listed(machine: Machine) -> Iterator[str]:
    """Yield a line for each MIG device that is there."""
    holders = machine.holders()
    for gpu in machine.gpus:
        for device in machine.mig_devices(gpu.uuid):
            pids = [
                str(holder.pid)
                for holder in holders
                if (holder.slot, holder.gpu_instance, holder.compute_instance)
                == (gpu.slot, device.gpu_instance, device.compute_instance)
            ]
            yield (
                f"{device.uuid}  minor:{gpu.minor}  {device.profile:<14} {device.profile_id:<3}"
                f"at {device.start}:{device.size}  gi {device.gpu_instance} "
                f"ci {device.compute_instance}{'  held by ' + ', '.join(pids) if pids else ''}"
            )
