"""GPUs and a sharing strategy that are played: an inventory to be set, and files for settings.

`hardware/<UUID>` holds what the strategy, which stands for MPS, has set on a GPU or MIG device.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import make
from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.cdi.roots import find_roots
from dra_driver.claims.prepare.steps import Sharing
from dra_driver.devices.device import DeviceKey, Mig, NodeDevice
from dra_driver.devices.model import Gpu, Inventory
from dra_driver.devices.nvml.mig import MigCalls
from dra_driver.errors import DriverError
from dra_driver.mps.domain import mig_domain
from dra_driver.sharing.base import Doer, Group
from dra_driver.sharing.steps import JoinDomain, SharingStep, TimeSlice, UseShares


class PlayedGpus:
    """GPUs, and the edits for them: one device node each."""

    def __init__(self, *gpus: Gpu) -> None:
        self.inventory = make.inventory(*gpus)
        self.on_edits: Callable[[Gpu], None] = lambda _: None

    def current(self) -> Inventory:
        return self.inventory

    def look(self) -> "PlayedGpus":
        return self

    look_at_files = look

    common = Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))
    roots = find_roots(driver_root=Path("/nowhere"))

    def device(self, one: NodeDevice) -> Edits:
        node = f"/dev/nvidia{one.gpu.minor}"
        base = one.device.base
        if isinstance(base, Mig) and base.instance is not None:
            node += f"-gi{base.instance.gpu_instance}-ci{base.instance.compute_instance}"
        else:
            self.on_edits(one.gpu)
        return Edits(device_nodes=(DeviceNode(path=node),))


def only(**there: Any) -> Sharing:
    """What shares devices on a node where all steps but these need nothing."""
    names = (
        "time_slices",
        "domains",
        "nvidia_mps",
        "shares",
        "passthrough",
    )
    return Sharing(**{**{name: Doer() for name in names}, **there})


class NoPlan:
    """A strategy that does nothing."""

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        return ()


class FileSharing(Doer[Any]):
    """A strategy that changes hardware: a file for each GPU.

    Its steps are settings, in which `card` is the claim. With `survives_reboot` they are domains:
    something on disk wants the files, so no reboot takes them away.
    """

    def __init__(self, folder: Path, *, survives_reboot: bool = False) -> None:
        self._folder = folder
        self.survives_reboot = survives_reboot
        self.refuse_plan: DriverError | None = None
        self.refuse_apply: DriverError | None = None
        self.refuse_undo: DriverError | None = None
        self.refuse_uphold: DriverError | None = None
        self.on_apply: Callable[[SharingStep], None] = lambda _: None
        self.applied = 0

    def alone(self) -> Sharing:
        """What shares devices on a node that has this strategy, for configs that want MPS."""
        planners = {JoinDomain.name: self, UseShares.name: NoPlan()}
        return only(planners=planners, time_slices=self, domains=self)

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        if self.refuse_plan:
            raise self.refuse_plan
        found: list[SharingStep] = []
        for group in groups:
            for unit in group.units:
                devices, claim = (unit.device,), group.claim
                if not self.survives_reboot:
                    found.append(TimeSlice(devices=devices, card=claim))
                    continue
                found.append(make.join(*devices, domain=mig_domain(claim, len(found)), claim=claim))
        return tuple(found)

    def edits(self, step: SharingStep) -> Mapping[DeviceKey, Edits]:
        env = Edits(env=(f"MPS={_claim(step)}",))
        return {DeviceKey(uuid): env for uuid in _uuids(step)}

    def do(self, step: SharingStep, deadline: float) -> None:
        self._folder.mkdir(exist_ok=True)
        self.on_apply(step)
        for uuid in _uuids(step):
            (self._folder / uuid).write_text(_claim(step))
        if self.refuse_apply:
            raise self.refuse_apply
        self.applied += 1

    def wait(self, step: SharingStep, deadline: float, given_up: Callable[[], bool]) -> None:
        if self.refuse_uphold:
            raise self.refuse_uphold

    def undo(self, step: SharingStep, deadline: float) -> None:
        if self.refuse_undo:
            raise self.refuse_undo
        for uuid in _uuids(step):
            (self._folder / uuid).unlink(missing_ok=True)
        if not all(device.exists for device in step.devices):  # as it was written before
            self.sweep(_claim(step), deadline)

    def claims(self, uuids: Collection[str] | None = None) -> frozenset[str]:
        if not self.survives_reboot or not self._folder.exists():
            return frozenset()
        there = [path for path in self._folder.iterdir() if uuids is None or path.name in uuids]
        return frozenset(path.read_text() for path in there)

    def sweep(self, claim: str, deadline: float) -> None:
        if self.refuse_undo:
            raise self.refuse_undo
        for path in self._folder.glob("*"):
            if path.read_text() == claim:
                path.unlink(missing_ok=True)


def _uuids(step: SharingStep) -> list[str]:
    return [str(device.uuid) for device in step.devices]


def _claim(step: SharingStep) -> str:
    if isinstance(step, TimeSlice):
        return step.card
    assert isinstance(step, JoinDomain)
    return step.claim


def no_mig() -> AbstractContextManager[MigCalls]:
    """For GPUs that know no MIG: nobody should ask."""
    raise AssertionError("NVML was asked about MIG")
