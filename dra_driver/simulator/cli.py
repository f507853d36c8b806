"""`dra-driver simulate`: make, change, inspect and remove a simulated machine.

In: the command line. Out: a driver root (see `driver_root`), a changed state, or a report on
stdout. Errors are raised; the caller shows them as one line.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from dra_driver.commands.command_line import CommandSettings, argument, bounds, option
from dra_driver.commands.for_people import CommandGroup, say
from dra_driver.errors import SetupError
from dra_driver.host.words import count
from dra_driver.simulator import driver_root, state
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.change_cli import OPTIONAL_GPU, ROOT, Mig, Reset, Set
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options, UserspaceChoice
from dra_driver.simulator.layout import Kill
from dra_driver.simulator.machine import GpuStatus, Machine
from dra_driver.simulator.state import FOR_EVER

_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}
_TIME_SLICES = {0: "default", 1: "short", 2: "medium", 3: "long"}


class Up(CommandSettings):
    """Make a simulated machine, unless it exists already."""

    profile: str = option(
        default="a100x8",
        help="Name of a shipped profile, or the path of a YAML file or of an archive made by "
        "dra-driver gather.",
    )
    root: Path = ROOT
    seed: str | None = option(
        default=None, help="Seed of UUIDs and serial numbers; give each node its own."
    )
    nodes: Literal["device", "placeholder"] | None = option(
        default=None,
        help="Real device nodes or plain files; by default real ones if possible.",
    )
    userspace: UserspaceChoice = option(
        default="auto",
        help="NVIDIA's own user-space files, stand-ins, or NVIDIA's if possible.",
    )
    driver_version: str | None = option(
        default=None, help="Version of the GPU driver, for stand-ins; unset: the profile's."
    )
    memory_limits: Literal["misc", "off"] | None = option(
        default=None,
        help="What enforces memory limits of control groups (GPU driver R615 or newer).",
    )
    cgroup_root: Path | None = option(
        default=None,
        help="Root of the control groups, any folder; by default where cgroup2 is mounted.",
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        options = Options(
            seed=self.seed,
            nodes=NodeKind(self.nodes) if self.nodes else None,
            userspace=self.userspace,
            cgroup_root=self.cgroup_root,
            report=_report,
        )
        machine = Machine.create(self.root, self._profile(), options)
        say(f"{machine.description.profile.name}: {count(len(machine.gpus), 'GPU')} in {self.root}")
        say(f"driver {machine.description.driver_version}; {machine.description.userspace}")
        if machine.description.nodes.note:
            say(machine.description.nodes.note)
        say(f"try: LD_LIBRARY_PATH={machine.library_folder} {machine.nvidia_smi} -L")
        say(
            f"     dra-driver inspect --nvidia-driver-root {machine.driver_root}"
            f" --sys-root {machine.sys_root} --proc-root {machine.proc_root}"
        )

    def _profile(self) -> profiles.Profile:
        given = {"driver_version": self.driver_version, "memory_limits": self.memory_limits}
        changes = {name: value for name, value in given.items() if value is not None}
        return profiles.changed(profiles.load(self.profile), changes)


class Down(CommandSettings):
    """Remove a simulated machine."""

    root: Path = ROOT

    def cli_cmd(self) -> None:
        """Run the command."""
        gone = driver_root.down(self.root)
        say(f"removed {self.root}" if gone else f"{self.root}: nothing there")


class Status(CommandSettings):
    """Show the GPUs of a simulated machine and their settings."""

    root: Path = ROOT

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        rows = sorted(machine.status(), key=lambda status: status.gpu.nvml_bus_id)
        say(_as_table(machine, rows))


class Profiles(CommandSettings):
    """List the shipped profiles."""

    def cli_cmd(self) -> None:
        """Run the command."""
        say(f"{'NAME':<13} DESCRIPTION")
        for name in profiles.names():
            say(f"{name:<13} {profiles.load(name).description}")


class Fault(CommandSettings):
    """Inject a fault, or undo faults.

    lose and restore: a GPU falls off the bus and comes back. fail and slow: a function of NVML or
    libcuda fails or takes longer; with a slow cuInit an MPS server hangs. kill: the process that
    calls an NVML function dies. unload and load: the GPU driver. remove and add: a GPU is removed
    and put back. clear: end failing, slow and killing functions.
    """

    kind: Literal[
        "lose", "restore", "fail", "slow", "kill", "unload", "load", "remove", "add", "clear"
    ] = argument()
    root: Path = ROOT
    gpu: str = OPTIONAL_GPU
    function: str = option(default="*", help="Function of NVML, * for all; or of libcuda.")
    code: int = option(default=999, help="Return code of a failing function; 13: it is missing.")
    times: int = option(default=FOR_EVER, help="How many times it strikes; -1: no limit.")
    delay_ms: int = option(
        check=bounds(least=0), default=1000, help="Milliseconds that are added to each call."
    )
    after: bool = option(default=False, help="Kill it after the call's effect, not before.")

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        uuid = machine.find(self.gpu).uuid if self.gpu else None
        match self.kind:
            case "fail":
                machine.fail_call(self.function, self.code, uuid=uuid, times=self.times)
            case "slow":
                machine.slow_call(self.function, self.delay_ms, uuid=uuid, times=self.times)
            case "kill":
                machine.kill_at(self.function, after=self.after, uuid=uuid)
            case "clear":
                machine.clear_faults(None if self.function == "*" else self.function)
            case "unload":
                machine.unload_driver()
            case "load":
                machine.load_driver()
            case _:
                self._change_gpu(machine, uuid)
        say(f"{self.kind}: done")

    def _change_gpu(self, machine: Machine, uuid: str | None) -> None:
        if uuid is None:
            raise SetupError(f"fault {self.kind} needs --gpu: an index, UUID, PCI address, minor:N")
        change = {
            "lose": machine.lose_gpu,
            "restore": machine.restore_gpu,
            "remove": machine.remove_gpu,
            "add": machine.add_gpu,
        }
        change[self.kind](uuid)


class Boot(CommandSettings):
    """Restart the machine: a new boot id, and the loss of what does not survive a reboot.

    No process ends. On a node, first end what a reboot ends: kubelet, driver, MPS daemons,
    containers, and pods' sandboxes; otherwise the kubelet believes that the pods run.
    """

    root: Path = ROOT

    def cli_cmd(self) -> None:
        """Run the command."""
        machine = Machine(self.root)
        machine.reboot()
        say(f"boot id {machine.boot_id}; no process was ended: see --help")


class Simulate(CommandGroup):
    """Simulate GPUs on a machine without any."""

    commands = MappingProxyType(
        {
            "up": Up,
            "down": Down,
            "status": Status,
            "profiles": Profiles,
            "fault": Fault,
            "set": Set,
            "mig": Mig,
            "reset": Reset,
            "boot": Boot,
        }
    )


def _as_table(machine: Machine, rows: list[GpuStatus]) -> str:
    lines = [
        (
            f"{machine.description.profile.name}: driver {machine.description.driver_version}, "
            f"{machine.description.userspace}"
        ),
        (
            f"{'INDEX':<6}{'MINOR':<6}{'PCI':<14}{'UUID':<42}{'STATE':<9}{'COMPUTE':<19}"
            f"{'SLICE':<9}{'MIG':<13}NAME"
        ),
    ]
    index = 0
    for row in rows:
        gpu = row.gpu
        lines.append(
            f"{index if row.present else '-':<6}{gpu.minor if gpu.minor >= 0 else '-':<6}"
            f"{gpu.pci:<14}{gpu.uuid:<42}"
            f"{_state_word(row, machine):<9}{_word(_COMPUTE_MODES, row.compute_mode):<19}"
            f"{_word(_TIME_SLICES, row.time_slice):<9}{_mig_word(row):<13}{gpu.card.name}"
        )
        lines += _processes(machine, gpu.slot, None, None)
        for device in machine.mig_devices(gpu.uuid):
            lines.append(f"      {device.uuid}  {device.profile} at {device.start}:{device.size}")
            lines += _processes(machine, gpu.slot, device.gpu_instance, device.compute_instance)
        index += row.present
    if not machine.driver_loaded:
        lines.append("fault: the driver is not loaded")
    for fault in machine.faults():
        slots = "all GPUs" if fault.slot < 0 else machine.gpus[fault.slot].uuid
        times = "for ever" if fault.times < 0 else f"{fault.times} times"
        lines.append(f"fault: {fault.function} on {slots} {_effect(fault)}, {times}")
    return "\n".join(lines)


def _processes(
    machine: Machine, slot: int, gpu_instance: int | None, compute_instance: int | None
) -> Iterator[str]:
    """Yield a line for each process on a GPU or on a MIG device."""
    place = (slot, gpu_instance, compute_instance)
    for holder in machine.holders():
        if (holder.slot, holder.gpu_instance, holder.compute_instance) == place:
            yield f"      process {holder.pid}: {holder.memory >> 20} MiB"


def _state_word(status: GpuStatus, machine: Machine) -> str:
    if status.present:
        return "lost" if status.lost else "ok"
    is_there = (machine.sys_root / "bus/pci/devices" / status.gpu.pci).exists()
    return status.driver or ("unbound" if is_there else "removed")


def _mig_word(status: GpuStatus) -> str:
    if status.mig_mode is None or status.mig_pending is None:
        return "-"
    words = ("off", "on")
    pending = "" if status.mig_mode == status.mig_pending else f", {words[status.mig_pending]} next"
    return words[status.mig_mode] + pending


def _effect(fault: state.Fault) -> str:
    if fault.kill is not Kill.NEVER:
        return f"kills its caller {fault.kill.name.lower()} call {fault.skip + 1}"
    return f"returns {fault.code}" if fault.code else f"takes {fault.delay_ms} ms longer"


def _word(words: dict[int, str], value: int | None) -> str:
    return "-" if value is None else words.get(value, str(value))


def _report(sentence: str) -> None:
    sys.stderr.write(sentence + os.linesep)
    sys.stderr.flush()
