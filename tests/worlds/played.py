"""GPUs and a sharing strategy that are played: an inventory to be set, and files for settings.

`hardware/<UUID>` holds what the strategy, which stands for MPS, has set on a GPU or MIG device.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import make
from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.devices.kinds import GpuPart, NodeDevice
from dra_driver.devices.model import Gpu, Inventory, MigDevice
from dra_driver.devices.nvml.mig import MigCalls
from dra_driver.errors import DriverError
from dra_driver.sharing.base import Description, DeviceKey, Group, Sharing, SharingPlan


class PlayedGpus:
    """GPUs, and the edits for them: one device node each."""

    def __init__(self, *gpus: Gpu) -> None:
        self.inventory = make.inventory(*gpus)
        self.on_edits: Callable[[Gpu], None] = lambda _: None

    def current(self) -> Inventory:
        return self.inventory

    def look_soon(self) -> None:
        pass  # tests set what was found

    def look(self) -> "PlayedGpus":
        return self

    common = Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))

    def device(self, one: NodeDevice) -> Edits:
        node = f"/dev/nvidia{one.gpu.minor}"
        if isinstance(one.device, MigDevice):
            node += f"-gi{one.device.gpu_instance}-ci{one.device.compute_instance}"
        else:
            self.on_edits(one.gpu)
        return Edits(device_nodes=(DeviceNode(path=node),))


class FileSharing(Sharing):
    """A strategy that changes hardware: a file for each GPU.

    With `survives_reboot` something on disk wants the files, so no reboot takes them away.
    """

    def __init__(self, folder: Path, *, survives_reboot: bool = False) -> None:
        self._folder = folder
        self.survives_reboot = survives_reboot
        self.refuse_plan: DriverError | None = None
        self.refuse_apply: DriverError | None = None
        self.refuse_undo: DriverError | None = None
        self.refuse_uphold: DriverError | None = None
        self.on_apply: Callable[[SharingPlan], None] = lambda _: None
        self.applied = 0

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:
        if self.refuse_plan:
            raise self.refuse_plan
        found = [
            SharingPlan(strategy="MPS", gpus=(gpu.uuid,), changes={"claim": group.claim})
            for group in groups
            for gpu in group.gpus
        ]
        for group in groups:
            for unit in group.migs:
                place = GpuPart(gpu=unit.gpu.uuid, placement=unit.device.placement)
                changes = {"claim": group.claim, "mig": unit.device.uuid}
                found.append(
                    SharingPlan(strategy="MPS", gpus=(place.gpu,), changes=changes, places=(place,))
                )
        return tuple(found)

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:
        env = Edits(env=(f"MPS={plan.changes['claim']}",))
        return {DeviceKey(uuid): env for uuid in self._devices(plan)}

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        self._folder.mkdir(exist_ok=True)
        self.on_apply(plan)
        for uuid in self._devices(plan):
            (self._folder / uuid).write_text(str(plan.changes["claim"]))
        if self.refuse_apply:
            raise self.refuse_apply
        self.applied += 1

    def ensure(self, plan: SharingPlan) -> None:
        pass

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        if self.refuse_uphold:
            raise self.refuse_uphold

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        pass

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        if self.refuse_undo:
            raise self.refuse_undo
        for uuid in self._devices(plan):
            (self._folder / uuid).unlink(missing_ok=True)

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:
        return Description()

    def claims(self) -> frozenset[str]:
        if not self.survives_reboot or not self._folder.exists():
            return frozenset()
        return frozenset(path.read_text() for path in self._folder.iterdir())

    def sweep(self, claim: str, deadline: float) -> None:
        if self.refuse_undo:
            raise self.refuse_undo
        for path in list(self._folder.iterdir()):
            if path.read_text() == claim:
                path.unlink(missing_ok=True)

    def _devices(self, plan: SharingPlan) -> tuple[str, ...]:
        return (str(plan.changes["mig"]),) if "mig" in plan.changes else plan.gpus


def no_mig() -> AbstractContextManager[MigCalls]:
    """For GPUs that know no MIG: nobody should ask."""
    raise AssertionError("NVML was asked about MIG")
