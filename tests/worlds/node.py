"""A node: a simulated machine, and below the same directory all that outlives a driver's process.

The driver asks the machine through its own NVML session, and makes MIG devices there. Sharing is
played by files, or is the real thing: nvidia-smi, NVML, and an MPS directory that supervisors
serve. Another process can go on with the directory, or die in it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import make
from dra_driver.admin.takeover.take_over import TakeOver
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import claim_device_name
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.prepare.steps import Sharing
from dra_driver.claims.state.ledger import Ledger
from dra_driver.devices.device import Base, Device, Whole, name_of
from dra_driver.devices.holders import Holders
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partitions
from dra_driver.devices.model import Gpu, Inventory
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.mps.domain import DomainId
from dra_driver.node.passthrough import passthrough, passthrough_gpus
from dra_driver.node.sharing import node_memory
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.nvidia_mps import NvidiaMps
from dra_driver.sharing.nvidia_smi import NvidiaSmi
from dra_driver.sharing.shares import ShareMemory, Shares
from dra_driver.sharing.steps import JoinDomain, PassThrough, TimeSlice, UseShares
from dra_driver.sharing.time_slicing import TimeSlicing
from dra_driver.simulator.driver_root import Options, UserspaceChoice
from dra_driver.simulator.layout import Fact
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.mig import SimulatedMig
from worlds import ends, moments
from worlds.api import ClaimApi
from worlds.configs import HALF, MPS, PATIENCE, SharesMode
from worlds.driver import VERSION, Driver
from worlds.mps import MpsDomains
from worlds.session import session_on

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Pass every step."""


class Node:
    """GPUs are told by minor number. Two nodes on one directory are two driver processes."""

    def __init__(
        self,
        root: Path,
        *,
        played: bool = True,
        finds_files: bool = False,
        step: Step = no_step,
    ) -> None:
        self.root = root
        self.played = played
        self.finds_files = finds_files
        self.machine = Machine(root / "driver")
        self._start(ClaimApi(), step=step)

    @classmethod
    def create(
        cls,
        root: Path,
        profile: str = "h100x8",
        userspace: UserspaceChoice = "stand-in",
        *,
        finds_files: bool = False,
        seed: str | None = None,
    ) -> "Node":
        """Make one. With NVIDIA's own user-space files sharing is real; SetupError without.

        With `finds_files`, claims get the files in the machine's driver root; else one node each.
        """
        Machine.create(root / "driver", profile, Options(userspace=userspace, seed=seed))
        return cls(root, played=userspace != "real", finds_files=finds_files)

    def _start(
        self,
        api: ClaimApi,
        *,
        step: Step,
        survives_reboot: bool = False,
        divisions: Mapping[Base, Division] | None = None,
    ) -> None:
        ends.OPEN.add(self)
        state, boot_id = self.root / "state", self.machine.boot_id
        self.step = step
        self.ledger = Ledger(state / "plugin", boot_id=boot_id, version=VERSION)
        self.holders = Holders((Path("/proc"),), (self.machine.dev_root / "dev",))
        self.calls = NvmlCalls(clock=time.monotonic)
        roots = self.roots()
        self.pci = PciBus(roots.sys)
        self.session = session_on(
            self.machine,
            made_here=lambda: self.ledger.made().keys(),
            turned_on=lambda: set(self.ledger.turned_on()),
            calls=self.calls,
            with_passthrough=passthrough_gpus(roots).look
            if self.pci.has_iommu()
            else lambda found: found,
        )
        self.mps = MpsDomains(self.root)
        self.driver = Driver(
            state,
            *self.session.look().gpus,
            boot_id=boot_id,
            ledger=self.ledger,
            api=api,
            step=step,
            sharing=None if self.played else self._sharing(),
            survives_reboot=survives_reboot,
            mig=MigInstances(self.session.mig, self.holders.of),
            tidy=self.mps.requests.tidy,
            edits=self._edits(roots) if self.finds_files else None,
        )
        self.driver.divisions |= divisions or {}
        if self.pci.has_iommu():
            self.look()

    def _edits(self, roots: Roots) -> EditsCache:
        return EditsCache(roots, hook_path=None, kernel_release="6.8.0", clock=time.monotonic)

    def memory(self) -> ShareMemory:
        """What keeps shares to their memory on this node, which has no control groups."""
        cgroups = self.root / "cgroup"
        return node_memory(self.session, self.roots(), self.ledger, cgroup_root=cgroups)

    def roots(self) -> Roots:
        """Where the node's files are."""
        machine = self.machine
        return find_roots(
            driver_root=machine.driver_root, proc_root=machine.proc_root, sys_root=machine.sys_root
        )

    def mps_requests(self) -> Any:
        """The way to the supervisor."""
        return self.mps.requests

    def _sharing(self) -> Sharing:
        self.node_memory = self.memory()
        smi = NvidiaSmi(self.machine.driver_root, self.machine.proc_root, time.monotonic)
        slices = TimeSlicing(smi, self.session)
        mps = Mps(self.mps_requests(), time.monotonic, ready_seconds=PATIENCE)
        machines = passthrough(self.roots())
        self.sharing = Sharing(
            planners={
                TimeSlice.name: slices,
                JoinDomain.name: mps,
                UseShares.name: Shares(self.node_memory, self.session),
                PassThrough.name: machines,
            },
            time_slices=slices,
            domains=mps,
            nvidia_mps=NvidiaMps(self.session),
            shares=self.node_memory.groups,
            passthrough=machines,
        )
        return self.sharing

    def close(self) -> None:
        if self in ends.OPEN:
            ends.OPEN.discard(self)
            self.driver.close()
            self.session.close()

    def restart(
        self, *, api: ClaimApi | None = None, step: Step = no_step, survives_reboot: bool = False
    ) -> None:
        """End the driver's process and start another: same files and, by default, same API."""
        self.close()
        self._start(
            api or self.driver.api,
            step=step,
            survives_reboot=survives_reboot,
            divisions=self.driver.divisions,
        )
        self.driver.specs.delete_leftovers()

    def look(self) -> None:
        """Let the driver see what there is now."""
        self.driver.gpus.inventory = self.session.look()

    # What there is

    @property
    def inventory(self) -> Inventory:
        """What the driver has seen."""
        return self.driver.gpus.inventory

    def gpu(self, minor: int = 0) -> Gpu:
        return next(gpu for gpu in self.inventory.gpus if gpu.minor == minor)

    def uuid(self, minor: int) -> str:
        return self.mps.uuid(minor)

    def name(self, profile: str, start: int, minor: int = 0) -> str:
        """The device name of a MIG profile at a place on a GPU."""
        (found,) = [
            name_of(self.gpu(minor), Device(base=partition))
            for partition in partitions(self.gpu(minor))
            if (partition.profile, partition.placement.start) == (profile, start)
        ]
        return found

    def take_over(
        self,
        *,
        makes_mig: bool = True,
        **facts: Any,
    ) -> TakeOver:
        """What takes the node over from NVIDIA's driver."""
        take_over = TakeOver(
            self.driver.claims.ledger,
            self.driver.locks,
            self.driver.gpus,
            makes_mig,
            time.monotonic,
            **({"names": self.names} | facts),
        )
        moments.tell_of_take_over(take_over, self.step)
        return take_over

    def names(self, uids: Collection[str]) -> dict[str, ClaimRef]:
        """Names of claims by the kubelet, which has a pod of each claim in the API."""
        named = (claim["metadata"] for claim in self.driver.api.claims.values())
        return {
            each["uid"]: ClaimRef(uid=each["uid"], namespace=each["namespace"], name=each["name"])
            for each in named
            if each["uid"] in uids
        }

    # Claims

    def divide(self, *minors: int, count: int = 10, **changes: Any) -> None:
        """Have GPUs divided into shares; the first one if none is named."""
        facts: dict[str, Any] = {
            "count": count,
            "strategy": ShareStrategy.MPS,
            "served_as": "nvidia.com/gpu",
            "combines": False,
        }
        division = Division(**(facts | changes))
        for minor in minors or (0,):
            self.driver.divisions[Whole(gpu=self.gpu(minor).uuid)] = division

    def claim(self, *devices: str, name: str = "claim", configs: Iterable[Any] = ()) -> ClaimRef:
        """Allocate a claim."""
        return self.driver.api.add(*devices, uid=f"uid-{name}", name=name, configs=list(configs))

    def claim_gpus(
        self, requests: Mapping[str, dict[str, Any] | None], first: int = 0, name: str = "claim"
    ) -> ClaimRef:
        """Allocate a claim: a GPU for each request, from `first` on, shared as the request says."""
        configs = [
            make.config(request, sharing=sharing)
            for request, sharing in requests.items()
            if sharing is not None
        ]
        devices = [f"gpu-{first + number}" for number in range(len(requests))]
        facts = {"uid": f"uid-{name}", "name": name, "configs": configs}
        return self.driver.api.add(*devices, requests=tuple(requests), **facts)

    def claim_migs(self, *starts: int, sharing: Mapping[str, Any] = HALF) -> ClaimRef:
        """Allocate a claim: a small MIG device at each start on the first GPU, all shared so."""
        config = make.config(kind="MigDeviceConfig", sharing=sharing)
        return self.claim(*(self.name("1g.10gb", start) for start in starts), configs=[config])

    def claim_shares(self, mode: SharesMode) -> ClaimRef:
        """Have GPUs shared as the mode says, and allocate its claim."""
        if not mode.division:
            return self.claim_parts("one", name="claim", memory="10Gi", configs=mode.configs)
        self.divide(*mode.minors, **mode.division)
        numbers = (0 if mode.in_one_request else number for number in range(len(mode.devices)))
        requests = tuple(f"container-{number}-request-0" for number in numbers)
        return self.driver.api.add(*mode.devices, uid="uid-claim", requests=requests)

    def claim_other_share(self, mode: SharesMode) -> ClaimRef:
        """Allocate another claim with a share of a device of the same mode."""
        if not mode.division:
            facts = {"name": "other", "memory": "20Gi", "cores": 30, "configs": mode.configs}
            return self.claim_parts("two", **facts)
        return self.claim(mode.others, name="other")

    def claim_parts(
        self,
        *share_ids: str,
        name: str = "",
        memory: str = "10Gi",
        cores: int = 0,
        device: str = "gpu-0",
        requests: tuple[str, ...] = (),
        configs: Iterable[Any] = (MPS,),
    ) -> ClaimRef:
        """Allocate a claim: for each share id a part of a device, all of the same size."""
        name = name or "-".join(share_ids)
        ref = self.driver.api.add(
            *[device] * len(share_ids),
            uid=f"uid-{name}",
            name=name,
            configs=list(configs),
            requests=requests,
        )
        for result, share_id in zip(self.driver.api.results(ref), share_ids, strict=True):
            result["shareID"] = share_id
            result["consumedCapacity"] = {"memory": memory, "cores": str(cores)}
        return ref

    def part_env(self, ref: ClaimRef, share_id: str, device: str = "gpu-0") -> dict[str, str]:
        """The environment that a container of a part gets."""
        name = claim_device_name(ref.uid, device, share_id).removeprefix(f"{ref.uid}-")
        return self.driver.env(ref, name)

    def ask(self, ref: ClaimRef, command: str) -> list[str]:
        """Ask the MPS daemon of a claim, the way a person would."""
        return self.mps.ask(DomainId(ref.uid), command)

    # What the hardware is set to, by minor number: what is not the default

    def migs(self, minor: int = 0) -> list[SimulatedMig]:
        """The MIG devices that are on a GPU now."""
        return self.machine.mig_devices(self.uuid(minor))

    def mig_shapes(self) -> dict[int, list[str]]:
        """The MIG devices that there are, as `profile@start`."""
        found = {gpu.minor: self.migs(gpu.minor) for gpu in self.machine.gpus}
        return {
            minor: sorted(f"{one.profile}@{one.start}" for one in there)
            for minor, there in found.items()
            if there
        }

    def mig_modes(self) -> dict[int, int]:
        return {s.gpu.minor: s.mig_mode for s in self.machine.status() if s.mig_mode}

    def time_slices(self) -> dict[int, int]:
        return {s.gpu.minor: s.time_slice for s in self.machine.status() if s.time_slice}

    def compute_modes(self) -> dict[int, int]:
        return self.mps.compute_modes()

    def set_compute_mode(self, minor: int, mode: int) -> None:
        self.machine.set_fact(self.uuid(minor), Fact.COMPUTE_MODE, mode)

    def set_time_slice(self, minor: int, number: int) -> None:
        self.machine.set_fact(self.uuid(minor), Fact.TIME_SLICE, number)

    def left(self) -> list[str]:
        """What claims have left: files, MIG devices, settings, and of MPS anything at all."""
        found = self.driver.left()
        found += [
            f"{one} on gpu-{gpu}" for gpu, there in self.mig_shapes().items() for one in there
        ]
        found += [f"MIG mode of gpu-{minor}" for minor in self.mig_modes()]
        found += [f"time-slice of gpu-{minor}" for minor in self.time_slices()]
        found += [f"compute mode of gpu-{minor}" for minor in self.compute_modes()]
        found += [f"mps domain {domain}" for domain in sorted(self.mps.requests.list())]
        for folder in self.mps.files.domains_folder.glob("*"):
            found += [f"mps folder {folder.name}"]
        for member in self.mps.files.members_folder.glob("*/*"):
            found += [f"mps member {member.name} of {member.parent.name}"]
        return found


MakeNode = Callable[..., Node]
"""Makes a node from what Node.create takes."""
