"""A simulated machine from Python: its files, the settings of its GPUs, and its faults.

In: a driver root made by `create` or by `dra-driver simulate up`. Out: paths to give to a driver,
and methods that change the machine while others use it. Every change goes through the state file,
so all processes see it at once. Only the list of GPUs is read at nvmlInit.
"""

import itertools
import os
import shutil
import uuid
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.errors import SetupError
from dra_driver.simulator import (
    build,
    device_nodes,
    driver_root,
    health,
    memory,
    mig,
    procfs,
    state,
    sysfs,
    userspace,
)
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.driver_root import Description, Options
from dra_driver.simulator.hardware import SimulatedGpu
from dra_driver.simulator.layout import NOT_A_MIG_INSTANCE, Fact, Kill
from dra_driver.simulator.mig import Holder, SimulatedMig
from dra_driver.simulator.processes import Activity, let_do, occupy
from dra_driver.simulator.profile import Profile
from dra_driver.simulator.state import EVENT_XID, FOR_EVER, Fault, State


class GpuStatus(Struct, frozen=True, kw_only=True):
    """One GPU as it is now. Modes are NVML's numbers, None if the card has no such mode.

    It is `present` if NVML finds it. `driver` is the one in /sys.
    """

    gpu: SimulatedGpu
    present: bool
    driver: str | None
    lost: bool
    compute_mode: int | None
    time_slice: int | None
    persistence_mode: int | None
    mig_mode: int | None
    mig_pending: int | None


class Machine:
    """One simulated machine. Raises SetupError if the folder holds none."""

    def __init__(self, root: Path) -> None:
        self.driver_root = root
        self.description: Description = driver_root.describe(root)

    @classmethod
    def create(cls, root: Path, profile: Profile | str, options: Options | None = None) -> Self:
        """Make a machine in a new or empty folder; an existing one of the same profile is kept.

        Args:
            root: the driver root to make.
            profile: a profile, or the name or path of one.
            options: by default with stand-ins for NVIDIA's files, which need no network.

        Raises:
            SetupError: see `driver_root.up`.
            ConfigError: no such profile.
        """
        loaded = profiles.load(profile) if isinstance(profile, str) else profile
        driver_root.up(root, loaded, options or Options(userspace="stand-in"))
        return cls(root)

    def destroy(self) -> None:
        """Remove the driver root."""
        driver_root.down(self.driver_root)

    # Paths

    @property
    def library_folder(self) -> Path:
        """The folder of the driver's libraries; for LD_LIBRARY_PATH."""
        return self.driver_root / userspace.library_folder()

    @property
    def library(self) -> Path:
        """The NVML library; give it to ctypes.CDLL."""
        return self.library_folder / build.SONAME

    @property
    def nvidia_smi(self) -> Path:
        """The nvidia-smi program: NVIDIA's own or the stand-in."""
        return self.driver_root / "usr/bin/nvidia-smi"

    @property
    def dev_root(self) -> Path:
        """The folder that holds `dev`."""
        return self.driver_root

    @property
    def proc_root(self) -> Path:
        """The folder to use in place of /proc."""
        return self.driver_root / "proc"

    @property
    def sys_root(self) -> Path:
        """The folder to use in place of /sys."""
        return self.driver_root / "sys"

    @property
    def state_file(self) -> Path:
        """The state shared by all processes."""
        return state.find(self.library_folder)

    @property
    def boot_id(self) -> str:
        """The id of this boot."""
        return procfs.read_boot_id(self.proc_root)

    @property
    def gpus(self) -> list[SimulatedGpu]:
        """The machine's GPUs by slot, including removed ones."""
        return self.description.gpus

    # Settings

    def status(self) -> list[GpuStatus]:
        """Return every GPU as it is now, by slot."""
        with self._state() as now:
            return [
                GpuStatus(
                    gpu=gpu,
                    present=now.present(gpu.slot),
                    driver=sysfs.driver_of(self.sys_root, gpu.pci),
                    lost=now.lost(gpu.slot),
                    compute_mode=now.fact(gpu.slot, Fact.COMPUTE_MODE),
                    time_slice=now.fact(gpu.slot, Fact.TIME_SLICE),
                    persistence_mode=now.fact(gpu.slot, Fact.PERSISTENCE_MODE),
                    mig_mode=now.fact(gpu.slot, Fact.MIG_CURRENT),
                    mig_pending=now.fact(gpu.slot, Fact.MIG_PENDING),
                )
                for gpu in self.gpus
            ]

    def compute_mode(self, uuid: str) -> int | None:
        """Return a GPU's compute mode: 0 default, 2 prohibited, 3 exclusive process."""
        return self._fact(uuid, Fact.COMPUTE_MODE)

    def time_slice(self, uuid: str) -> int | None:
        """Return a GPU's time-slice: 0 default, 1 short, 2 medium, 3 long."""
        return self._fact(uuid, Fact.TIME_SLICE)

    def power_limit(self, uuid: str) -> int | None:
        """Return a GPU's power limit in milliwatts."""
        return self._fact(uuid, Fact.POWER_LIMIT)

    def set_fact(self, uuid: str, fact: Fact, value: int | None) -> None:
        """Set any number that NVML reports for a GPU; None makes it NOT_SUPPORTED."""
        with self._state() as now:
            now.set_fact(now.slot_of(uuid), fact, value)

    def set_nvlink(self, uuid: str, number: int, *, is_up: bool) -> None:
        """Bring an NVLink of a GPU down or up, at both of its ends.

        Raises SetupError if the card has no such link, or it leads to nothing.
        """
        with self._state() as now:
            slot = now.slot_of(uuid)
            with now.locked() as record:
                health.set_link(record, slot, number, is_up=is_up)

    # MIG

    def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        """Switch a GPU's MIG mode; False when it is pending until `reset_gpu` or `reboot`.

        Raises SetupError if the card has no MIG, or instances or processes are on it.
        """
        with self._state() as now:
            return mig.set_mode(self.library, now, now.slot_of(uuid), enabled=enabled)

    def create_mig(self, uuid: str, profile: str | int, start: int | None = None) -> str:
        """Make a MIG device by hand, as `nvidia-smi mig -cgi PROFILE:START -C`.

        Args:
            uuid: of the GPU, whose MIG mode must be on.
            profile: name or id.
            start: memory slice; None for the first that is free.

        Returns:
            The MIG device's UUID, the same whenever it is made in the same place.

        Raises:
            SetupError: it cannot be made; says why.
        """
        with self._state() as now:
            slot = now.slot_of(uuid)
            cut = mig.profile_of(self.gpus[slot].card, profile)
            return mig.create(self.library, now, slot, cut, start)

    def destroy_mig(self, mig_uuid: str) -> None:
        """Destroy a MIG device and its GPU instance by hand.

        Raises SetupError if there is no such MIG device, or a process holds it.
        """
        with self._state() as now:
            slot, device = mig.find(now, mig_uuid)
            mig.destroy(self.library, now, slot, device)

    def mig_devices(self, uuid: str) -> list[SimulatedMig]:
        """Return a GPU's MIG devices by index."""
        with self._state() as now:
            return mig.devices(now, now.slot_of(uuid))

    def hold_instance(self, uuid: str, *, pid: int | None = None, memory: int = 0) -> int:
        """Put a process on a MIG device, or on a whole GPU: it is then in use.

        Args:
            uuid: of a MIG device or a GPU.
            pid: the process; this one by default.
            memory: bytes of the device's memory that it takes.

        Returns:
            The process's id.
        """
        holder = os.getpid() if pid is None else pid
        with self._state() as now:
            slot, device = self._held(now, uuid)
            mig.hold(now, slot, device, holder, memory)
        return holder

    def release_instance(self, uuid: str, *, pid: int | None = None) -> None:
        """Take a process off a MIG device or a GPU; all of them without `pid`."""
        with self._state() as now:
            slot, device = self._held(now, uuid)
            mig.release(now, slot, device, pid)

    def holders(self) -> list[Holder]:
        """Return the processes on all GPUs."""
        with self._state() as now:
            return mig.holders(now)

    @property
    def late_files_ms(self) -> int:
        """The delay in milliseconds until an instance's files appear."""
        with self._state() as now:
            return now.late_files_ms

    def late_nodes(self, milliseconds: int) -> None:
        """Set the delay of a new instance's /proc file and device node; 0: none."""
        with self._state() as now:
            now.set_late_files(milliseconds)

    def settle_nodes(self) -> None:
        """Make delayed files that are due, even if the process that caused them has ended."""
        with self._state() as now:
            mig.settle(self.library, now)

    # Memory by control group

    def take_memory(
        self, uuid: str, size: int, *, pid: int | None = None, group: Path | None = None
    ) -> bool:
        """Let a process take memory of a GPU; return False if a memory limit forbids it.

        Args:
            uuid: of the GPU.
            size: in bytes.
            pid: the process, which need not exist; this one by default.
            group: folder of its control group; None for one that is unknown to the driver, so that
                no limit applies.

        Raises:
            SetupError: there is no such group, or the GPU itself has too little left.
        """
        taker = os.getpid() if pid is None else pid
        with self._state() as now:
            slot = now.slot_of(uuid)
            return memory.take(self.library, now, slot, pid=taker, group=group, memory=size)

    def release_memory(self, uuid: str, *, pid: int | None = None) -> None:
        """End a process on a GPU; this one by default."""
        with self._state() as now:
            memory.release(now, now.slot_of(uuid), os.getpid() if pid is None else pid)

    def let_do(self, pid: int, activity: Activity) -> None:
        """Set a process's activity on all GPUs and MIG devices on which it has memory.

        Raises SetupError if it has none.
        """
        with self._state() as now, now.locked() as record:
            let_do(record, pid, activity)

    def group_of(self, pid: int) -> Path | None:
        """Return the folder of the control group (v2) that a process of this host is in, if any.

        Raises SetupError if there is no such process.
        """
        with self._state() as now:
            return memory.group_of(now, pid)

    def reset_gpu(self, uuid: str) -> None:
        """Reset a GPU: its instances are gone, a pending MIG mode takes effect, a lost GPU is back.

        Raises SetupError if a process is on it, or another process has NVML open.
        """
        with self._state() as now:
            slot = now.slot_of(uuid)
            mig.check_unused(self.library, now, slot)
            if any(holder.slot == slot for holder in mig.holders(now)):
                raise SetupError(f"cannot reset {uuid}: a process is on it")
            now.reset_gpu(slot)
        driver_root.forget_instances(self.driver_root, self.gpus[slot])

    # Faults

    def faults(self) -> list[Fault]:
        """Return the injected faults that are still active."""
        with self._state() as now:
            return now.faults()

    def lose_gpu(self, uuid: str) -> None:
        """Let a GPU fall off the bus: every call on it returns GPU_IS_LOST."""
        self._set_lost(uuid, lost=True)

    def restore_gpu(self, uuid: str) -> None:
        """Bring a lost GPU back."""
        self._set_lost(uuid, lost=False)

    def fail_call(
        self, function: str, code: int, *, uuid: str | None = None, times: int = FOR_EVER
    ) -> None:
        """Let calls of an NVML function fail.

        Args:
            function: name as exported, for instance nvmlDeviceGetMemoryInfo_v2, or "*" for all.
            code: the NVML return code; FUNCTION_NOT_FOUND is pynvml's error for a missing symbol;
                to omit the symbol itself, use `missing_functions` in the profile.
            uuid: only on this GPU; None for all.
            times: how often, FOR_EVER by default.
        """
        self._inject(uuid, Fault(function=function, code=code, times=times))

    def slow_call(
        self, function: str, milliseconds: int, *, uuid: str | None = None, times: int = FOR_EVER
    ) -> None:
        """Delay all calls of an NVML function."""
        self._inject(uuid, Fault(function=function, delay_ms=milliseconds, times=times))

    def kill_at(
        self, function: str, *, nth: int = 1, after: bool = False, uuid: str | None = None
    ) -> None:
        """Kill a process, as by kill -9, when it calls an NVML function; once.

        Args:
            function: name as exported, or "*" for all.
            nth: the number of the call from now on, counted over all processes.
            after: kill it after the effect of the call and before the return; otherwise before the
                effect.
            uuid: only calls on this GPU, its MIG devices and instances; None for all.
        """
        kill = Kill.AFTER if after else Kill.BEFORE
        self._inject(uuid, Fault(function=function, skip=nth - 1, times=1, kill=kill))

    def clear_faults(self, function: str | None = None) -> None:
        """Remove the faults of one function, or all. Lost GPUs stay lost."""
        with self._state() as now:
            now.clear_faults(function)

    @property
    def driver_loaded(self) -> bool:
        """Whether nvmlInit finds a driver."""
        with self._state() as now:
            return now.driver_loaded

    def unload_driver(self) -> None:
        """Unload the kernel driver: nvmlInit returns DRIVER_NOT_LOADED."""
        with self._state() as now:
            now.set_driver_loaded(loaded=False)

    def load_driver(self) -> None:
        """Load the kernel driver again. MIG instances are gone."""
        with self._state() as now:
            if now.driver_loaded:
                return
            now.forget_mig()
            now.set_driver_loaded(loaded=True)
        for gpu in self.gpus:
            driver_root.forget_instances(self.driver_root, gpu)

    def remove_gpu(self, uuid: str) -> None:
        """Remove a GPU, its device node, /proc and /sys files; open handles answer lost."""
        with self._state() as now:
            gpu = self.gpus[now.slot_of(uuid)]
            driver_root.remove_gpu(self.driver_root, self.description, now, gpu)

    def add_gpu(self, uuid: str) -> None:
        """Put a removed GPU back."""
        with self._state() as now:
            gpu = self.gpus[now.slot_of(uuid)]
            driver_root.add_gpu(self.driver_root, self.description, now, gpu)

    def emit_xid(self, uuid: str, xid: int) -> None:
        """Raise an XID event on a GPU or a MIG device."""
        with self._state() as now:
            slot, device = self._held(now, uuid)
            now.emit_event(
                slot,
                event_type=EVENT_XID,
                data=xid,
                gpu_instance=device.gpu_instance if device else NOT_A_MIG_INSTANCE,
                compute_instance=device.compute_instance if device else NOT_A_MIG_INSTANCE,
            )

    def reboot(self, boot_id: str | None = None) -> None:
        """Restart the machine: a new boot id, without volatile settings, faults and run files."""
        procfs.write_boot_id(self.proc_root, boot_id or str(uuid.uuid4()))
        with self._state() as now:
            now.reset_volatile()
            present = [gpu for gpu in self.gpus if now.present(gpu.slot)]
            with now.locked() as record:
                for gpu in present:
                    occupy(record, gpu.slot, gpu.residents)
                    if gpu.mig_mode:
                        for fact in (Fact.MIG_CURRENT, Fact.MIG_PENDING):
                            record.gpus[gpu.slot].facts[fact] = 1
        for gpu in self.gpus:
            driver_root.forget_instances(self.driver_root, gpu)
        dev = self.driver_root / "dev"
        device_nodes.make_control_nodes(dev, self.description.nodes)
        for gpu in present:
            device_nodes.make_gpu_nodes(dev, gpu, self.description.nodes)
        for name in ("run", "tmp"):
            for path in (self.driver_root / name).iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def find(self, which: str) -> SimulatedGpu:
        """Return a GPU by UUID, PCI address, `minor:N`, or NVML's present index.

        Raises SetupError if no GPU matches.
        """
        in_order = sorted(self.status(), key=lambda status: status.gpu.nvml_bus_id)
        indices = itertools.count()
        known = []
        for gpu, index in [(s.gpu, next(indices) if s.present else None) for s in in_order]:
            if which.lower() in {gpu.uuid.lower(), gpu.pci, f"minor:{gpu.minor}", str(index)}:
                return gpu
            known.append(gpu.uuid if index is None else f"{index} {gpu.uuid}")
        raise SetupError(
            f"no simulated GPU is {which!r}; name one by index, UUID, PCI address or minor:N "
            f"(there are {', '.join(known)})"
        )

    def _state(self) -> State:
        return State(self.state_file)

    def _fact(self, uuid: str, fact: Fact) -> int | None:
        with self._state() as now:
            return now.fact(now.slot_of(uuid), fact)

    @staticmethod
    def _held(now: State, uuid: str) -> tuple[int, SimulatedMig | None]:
        """Return the slot and MIG device that a UUID names; no device for a whole GPU's."""
        if uuid.upper().startswith("MIG-"):
            return mig.find(now, uuid)
        return now.slot_of(uuid), None

    def _set_lost(self, uuid: str, *, lost: bool) -> None:
        with self._state() as now:
            now.set_lost(now.slot_of(uuid), lost)

    def _inject(self, uuid: str | None, fault: Fault) -> None:
        with self._state() as now:
            slot = state.ANY_GPU if uuid is None else now.slot_of(uuid)
            now.add_fault(replace(fault, slot=slot))
