"""`dra-driver simulate set`, `mig` and `reset`: change a machine while it is in use.

In: the command line. Out: a changed machine, and a report of the change on stdout. A process that
is refused by a memory limit of its control group is an error, so that scripts see it. NVIDIA's own
nvidia-smi can make MIG devices as well, but cannot reset a simulated GPU.
"""

import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from dra_driver.commands.command_line import CommandSettings, argument, bounds, option, shaped
from dra_driver.commands.for_people import say
from dra_driver.errors import SetupError
from dra_driver.simulator import health
from dra_driver.simulator.health import FabricState, RecoveryAction, Rows, Slowdown
from dra_driver.simulator.layout import Fact, ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity
from dra_driver.simulator.state import State

_WHICH_GPU = "Index, UUID, PCI address or minor:N."
# Not below /run: it is a small tmpfs, and device nodes do not work on it.
ROOT = option(default=Path("/var/lib/dra-driver/simulated-root"), help="The driver root, a folder.")
GPU = option(help=_WHICH_GPU)
OPTIONAL_GPU = option(default="", help=_WHICH_GPU)

_EVENT_RECOVERY_ACTION = 0x8000
_MIB = 1024**2
_KINDS = {
    "compute": ProcessKind.COMPUTES,
    "graphics": ProcessKind.DRAWS,
    "mps": ProcessKind.BY_MPS,
}
_REPORTED = ("recovery_action", "rows", "uncorrected", "slowdown", "fabric")
_OF_A_GPU = frozenset({"xid", *_REPORTED, "nvlink", "mib"})
_DONE_BY_A_PROCESS = frozenset({"sm", "kind", "hides_memory"})
_NO_MIG_DEVICE = frozenset({*_REPORTED, "nvlink"})


class Set(CommandSettings):
    """Set what a GPU reports, or what a process does on it.

    A real card reports several of these together; here each is set by itself. A GPU that falls off
    the bus is `fault lose`.
    """

    example = "dra-driver simulate set --gpu 3 --xid 79"
    groups = MappingProxyType(
        {
            "What the GPU reports": ("xid", *_REPORTED, "nvlink"),
            "What a process does": ("pid", "mib", "cgroup", "sm", "kind", "hides_memory"),
        }
    )

    root: Path = ROOT
    gpu: str = option(
        default="", help=f"{_WHICH_GPU[:-1]}; for --xid and --mib also the UUID of a MIG device."
    )
    xid: int | None = option(check=bounds(least=0), default=None, help="An XID event, such as 79.")
    recovery_action: (
        Literal[
            "none",
            "gpu-reset",
            "node-reboot",
            "drain-p2p",
            "drain-and-reset",
            "recover-imex-domain",
            "bus-reset",
            "system-reboot",
        ]
        | None
    ) = option(default=None, help="The GPU driver's recovery action (R565 or newer).")
    rows: Literal["well", "pending", "failed"] | None = option(
        default=None, help="Bad memory: none, replaced at the next reset, or not replaceable."
    )
    uncorrected: int | None = option(
        check=bounds(least=0), default=None, help="Memory errors since the GPU driver was loaded."
    )
    slowdown: Literal["none", "thermal", "power-brake"] | None = option(
        default=None, help="The reason why the hardware slows the GPU down."
    )
    fabric: Literal["not-started", "in-progress", "completed"] | None = option(
        default=None, help="The state of joining its NVLink fabric."
    )
    nvlink: str = option(
        check=shaped(r"\d+=(up|down)", "a link's number and its state, such as 0=down"),
        default="",
        metavar="NUMBER=STATE",
        help="Bring an NVLink down or up at both of its ends, such as 0=down.",
    )
    pid: int | None = option(default=None, help="The process; by default the caller's.")
    mib: int | None = option(
        check=bounds(least=0),
        default=None,
        help="Memory of the GPU to take, in MiB; exit status 1 if a limit refuses it; "
        "0: it leaves the GPU.",
    )
    cgroup: Path | None = option(
        default=None, help="Folder of its control group; by default the process's own."
    )
    sm: int = option(
        check=bounds(least=0, most=100),
        default=0,
        help="Percentage of time that its kernels run, on all GPUs on which it has memory.",
    )
    kind: Literal["compute", "graphics", "mps"] = option(
        default="compute", help="NVML's list that it is in."
    )
    hides_memory: bool = option(default=False, help="Hide from NVML how much memory it has.")

    def check(self) -> None:
        """Check that the options name something to set, and the GPU to set it on."""
        if not self.given & (_OF_A_GPU | _DONE_BY_A_PROCESS):
            raise ValueError("nothing to set: say what the GPU reports or a process does")
        for name in sorted(self.given & _OF_A_GPU):
            if not self.gpu:
                raise ValueError(
                    self.line(name, "needs --gpu: an index, UUID, PCI address, minor:N")
                )
        for name in sorted(self.given & _NO_MIG_DEVICE):
            if self._is_mig:
                raise ValueError(self.line(name, "is of a whole GPU, not of a MIG device"))

    @property
    def _is_mig(self) -> bool:
        return self.gpu.upper().startswith("MIG-")

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        uuid = self.gpu if self._is_mig or not self.gpu else machine.find(self.gpu).uuid
        if self.xid is not None:
            machine.emit_xid(uuid, self.xid)
            say(f"XID {self.xid} on {uuid}")
        if self.given & set(_REPORTED):
            report(machine, uuid, self)
            say(f"health of {uuid}: done")
        if self.nvlink:
            number, _, link_state = self.nvlink.partition("=")
            machine.set_nvlink(uuid, int(number), is_up=link_state == "up")
            say(f"NVLink {number} of {uuid}: {link_state}")
        pid = os.getppid() if self.pid is None else self.pid
        if self.mib is not None:
            self._set_memory(machine, uuid, pid, self.mib * _MIB)
            say(f"process {pid} has {self.mib} MiB of {uuid}")
        if self.given & _DONE_BY_A_PROCESS:
            does = Activity(kind=_KINDS[self.kind], sm=self.sm, hides_memory=self.hides_memory)
            machine.let_do(pid, does)
            say(f"process {pid} is {f'{self.sm} % busy' if self.sm else 'idle'}")

    def _set_memory(self, machine: Machine, uuid: str, pid: int, memory: int) -> None:
        if self._is_mig:
            machine.release_instance(uuid, pid=pid)
            if memory:
                machine.hold_instance(uuid, pid=pid, memory=memory)
            return
        slot = machine.find(uuid).slot
        on_gpu = [one for one in machine.holders() if one.gpu_instance is None]
        has = sum(one.memory for one in on_gpu if (one.pid, one.slot) == (pid, slot))
        if memory < has or not memory:
            machine.release_memory(uuid, pid=pid)
            has = 0
        if not memory:
            return
        group = self.cgroup or machine.group_of(pid)
        if not machine.take_memory(uuid, memory - has, pid=pid, group=group):
            raise SetupError(
                f"process {pid} is refused {memory // _MIB} MiB of {uuid}: out of memory, by a"
                f" memory limit of {group} or of a group above it"
            )


def report(machine: Machine, uuid: str, wanted: Set) -> None:
    """Change a GPU's health as the options say; the rest stays as it is.

    Raises SetupError if the card, or its driver, does not report it.
    """
    with State(machine.state_file) as now:
        slot = now.slot_of(uuid)
        with now.locked() as record:
            gpu = record.gpus[slot]
            if wanted.recovery_action is not None:
                action = RecoveryAction[wanted.recovery_action.upper().replace("-", "_")]
                health.set_fact(gpu, Fact.RECOVERY_ACTION, action)
            if wanted.rows is not None:
                health.set_rows(gpu, Rows[wanted.rows.upper()])
            if wanted.uncorrected is not None:
                health.set_uncorrected(gpu, wanted.uncorrected)
            if wanted.slowdown is not None:
                slowdown = Slowdown[wanted.slowdown.upper().replace("-", "_")]
                health.set_fact(gpu, Fact.SLOWDOWN, slowdown)
            if wanted.fabric is not None:
                fabric = FabricState[wanted.fabric.upper().replace("-", "_")]
                health.set_fact(gpu, Fact.FABRIC_STATE, fabric)
        if wanted.recovery_action is not None:
            now.emit_event(slot, event_type=_EVENT_RECOVERY_ACTION, data=0)


class Mig(CommandSettings):
    """Make and destroy MIG devices by hand. `simulate status` lists them.

    on and off: a GPU's MIG mode. create and destroy: a GPU instance with a compute instance that
    fills it. late: how long after an instance its /proc file and device node appear.
    """

    kind: Literal["on", "off", "create", "destroy", "late"] = argument()
    root: Path = ROOT
    gpu: str = OPTIONAL_GPU
    profile: str = option(default="", help="Name or id of the profile to create.")
    start: int | None = option(default=None, help="Memory slice to create at.")
    device: str = option(default="", help="UUID of the MIG device to destroy.")
    delay_ms: int = option(
        check=bounds(least=0), default=0, help="Milliseconds by which files are late."
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        match self.kind:
            case "on" | "off":
                done = machine.set_mig_mode(self._gpu(machine), enabled=self.kind == "on")
                pending = "pending; `simulate reset` or `simulate boot` puts it in force"
                say(f"MIG {self.kind}: {'done' if done else pending}")
            case "create":
                profile = self._named("a profile's name or id", "--profile", self.profile)
                say(machine.create_mig(self._gpu(machine), profile, self.start))
                time.sleep(machine.late_files_ms / 1000)
                machine.settle_nodes()
            case "destroy":
                machine.destroy_mig(self._named("a MIG device's UUID", "--device", self.device))
                say(f"destroyed {self.device}")
            case "late":
                machine.late_nodes(self.delay_ms)
                say(f"files of new instances come after {self.delay_ms} ms")

    def _gpu(self, machine: Machine) -> str:
        words = "an index, UUID, PCI address, minor:N"
        return machine.find(self._named(words, "--gpu", self.gpu)).uuid

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
