"""`dra-driver simulate event`, `health` and `nvlink`: the health that cards report.

In: the command line. Out: a changed state, and a line on stdout. Errors are raised and shown by the
caller as one line.
"""

from pathlib import Path
from typing import Literal

from dra_driver.command_line import CommandSettings, bounds, option
from dra_driver.errors import SetupError
from dra_driver.printing import say
from dra_driver.simulator import health, mig
from dra_driver.simulator.cli_options import GPU, OPTIONAL_GPU, ROOT
from dra_driver.simulator.health import FabricState, RecoveryAction, Rows, Slowdown
from dra_driver.simulator.layout import NOT_A_MIG_INSTANCE, Fact
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.state import EVENT_XID, State

_EVENT_RECOVERY_ACTION = 0x8000

Action = Literal[
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
]


class Event(CommandSettings):
    """Raise an XID event on a GPU or one of its MIG devices."""

    root: Path = ROOT
    gpu: str = OPTIONAL_GPU
    device: str = option(default="", help="UUID of a MIG device, instead of a GPU.")
    xid: int = option(check=bounds(least=0), help="The XID, for instance 79.")

    def cli_cmd(self) -> None:
        """Run the command."""
        if bool(self.gpu) == bool(self.device):
            raise SetupError("event needs --gpu or --device, and not both")
        machine = Machine(self.root)
        if self.device:
            raise_xid_on_device(machine, self.device, self.xid)
        else:
            machine.emit_xid(machine.find(self.gpu).uuid, self.xid)
        say(f"XID {self.xid} on {self.device or machine.find(self.gpu).uuid}")


class Health(CommandSettings):
    """Let a GPU report that something is wrong with it, or that it has recovered.

    A real card reports several of these together; here each is set by itself. An XID is an `event`,
    and a GPU that falls off the bus is `fault lose`.
    """

    root: Path = ROOT
    gpu: str = GPU
    recovery_action: Action | None = option(
        default=None, help="What the GPU driver wants done (R565 or newer)."
    )
    rows: Literal["well", "pending", "failed"] | None = option(
        default=None, help="Bad memory: none, replaced at the next reset, or not replaceable."
    )
    uncorrected: int | None = option(
        check=bounds(least=0), default=None, help="Memory errors since the GPU driver was loaded."
    )
    slowdown: Literal["none", "thermal", "power-brake"] | None = option(
        default=None, help="Why the hardware slows the GPU down."
    )
    fabric: Literal["not-started", "in-progress", "completed"] | None = option(
        default=None, help="How far it has joined its NVLink fabric."
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        uuid = machine.find(self.gpu).uuid
        report(machine, uuid, self)
        say(f"health of {uuid}: done")


class NvLink(CommandSettings):
    """Bring an NVLink down or up at both of its ends."""

    root: Path = ROOT
    gpu: str = GPU
    link: int = option(check=bounds(least=0), help="Number of the link, from 0.")
    state: Literal["down", "up"] = option(help="The new state.")

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        uuid = machine.find(self.gpu).uuid
        machine.set_nvlink(uuid, self.link, is_up=self.state == "up")
        say(f"NVLink {self.link} of {uuid}: {self.state}")


def report(machine: Machine, uuid: str, wanted: Health) -> None:
    """Let a GPU report what the options say; the rest stays as it is.

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


def raise_xid_on_device(machine: Machine, uuid: str, xid: int) -> None:
    """Raise an XID event of one MIG device.

    Raises SetupError if there is no such device.
    """
    with State(machine.state_file) as now:
        slot, device = mig.find(now, uuid)
        now.emit_event(
            slot,
            event_type=EVENT_XID,
            data=xid,
            gpu_instance=device.gpu_instance if device else NOT_A_MIG_INSTANCE,
            compute_instance=device.compute_instance if device else NOT_A_MIG_INSTANCE,
        )
