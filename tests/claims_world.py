"""A node for the tests of claims/: real files, locks and CDI specs; an API server that is a dict.

The only strategy beside Exclusive is "MPS", played by files: `hardware/<GPU UUID>` holds what it
has set on that GPU. Everything is below one directory, so that another process can go on with it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any

import make
from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.locks import NodeLocks
from dra_driver.claims.mig import MigHardware
from dra_driver.claims.model import ClaimRef, ClaimUid, PreparedDevice
from dra_driver.claims.node import NodeParts, open_claims
from dra_driver.claims.orphans import ClaimLister
from dra_driver.claims.prepare import ClaimPreparer, PrepareTiming
from dra_driver.claims.reconcile import Reconciler, ReconcileTiming
from dra_driver.devices.kinds import GpuPart, NodeDevice
from dra_driver.devices.mig import Calls, MigInstances
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigDevice
from dra_driver.errors import DriverError, NotFoundError
from dra_driver.sharing.base import (
    EXCLUSIVE,
    Description,
    DeviceUuid,
    Group,
    Sharing,
    SharingPlan,
)
from dra_driver.sharing.exclusive import Exclusive
from resource_nvidia_com.v1beta1.sharing import SharingStrategy

FAST = PrepareTiming(longest=10.0, margin=0.0, first_pause=0.001, longest_pause=0.005)
MPS = make.config(sharing={"strategy": "MPS"})
CONFIGS: dict[str, list[dict[str, Any]]] = {"exclusive": [], "sharing": [MPS]}


class Api:
    """ResourceClaims by namespace and name. `trouble` is called before each answer."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.trouble: Callable[[str], None] = lambda _: None

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        assert timeout > 0
        self.asked.append(name)
        self.trouble(name)
        if (namespace, name) not in self.claims:
            raise NotFoundError(f'resourceclaims "{name}" not found', status=404)
        return deepcopy(self.claims[namespace, name])

    def each_claim(self, *, timeout: float) -> Iterator[dict[str, Any]]:
        assert timeout > 0
        self.asked.append("")
        self.trouble("")
        yield from deepcopy(list(self.claims.values()))

    def add(self, *devices: str, **facts: Any) -> ClaimRef:
        claim = make.claim_object(*devices, **facts)
        metadata = claim["metadata"]
        self.claims[metadata["namespace"], metadata["name"]] = claim
        return ClaimRef(
            uid=ClaimUid(metadata["uid"]), namespace=metadata["namespace"], name=metadata["name"]
        )

    def results(self, ref: ClaimRef) -> list[dict[str, Any]]:
        """The allocation results of a claim, to be changed."""
        claim = self.claims[ref.namespace, ref.name]
        found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
        return found


class Machine:
    """GPUs, and the edits for them: one device node each."""

    def __init__(self, *gpus: Gpu) -> None:
        self.inventory = make.inventory(*gpus)
        self.on_edits: Callable[[Gpu], None] = lambda _: None

    def current(self) -> Inventory:
        return self.inventory

    def look(self) -> "Machine":
        return self

    common = Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))

    def device(self, one: NodeDevice) -> Edits:
        node = f"/dev/nvidia{one.gpu.minor}"
        if isinstance(one.device, MigDevice):
            node += f"-gi{one.device.gpu_instance}-ci{one.device.compute_instance}"
        else:
            self.on_edits(one.gpu)
        return Edits(device_nodes=(DeviceNode(path=node),))


class FileSharing:
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

    def edits(self, plan: SharingPlan) -> Mapping[DeviceUuid, Edits]:
        env = Edits(env=(f"MPS={plan.changes['claim']}",))
        return {DeviceUuid(uuid): env for uuid in self._devices(plan)}

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        self._folder.mkdir(exist_ok=True)
        self.on_apply(plan)
        for uuid in self._devices(plan):
            (self._folder / uuid).write_text(str(plan.changes["claim"]))
        if self.refuse_apply:
            raise self.refuse_apply
        self.applied += 1

    def ensure(self, plan: SharingPlan, deadline: float | None) -> None:
        if deadline is not None and self.refuse_uphold:
            raise self.refuse_uphold

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        if self.refuse_undo:
            raise self.refuse_undo
        for uuid in self._devices(plan):
            (self._folder / uuid).unlink(missing_ok=True)

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceUuid) -> Description:
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


def no_mig() -> AbstractContextManager[Calls]:
    """For GPUs that know no MIG: nobody should ask."""
    raise AssertionError("NVML was asked about MIG")


class World:
    """A node. Two worlds on one directory are two driver processes, or one before and after."""

    def __init__(  # noqa: PLR0913 (what a test may want to be different)
        self,
        root: Path,
        *gpus: Gpu,
        boot_id: str = "boot-1",
        api: Api | None = None,
        step: Callable[[str], None] = lambda _: None,
        timing: PrepareTiming = FAST,
        reader: ClaimLister | None = None,
        strategies: Mapping[str, Sharing] | None = None,
        survives_reboot: bool = False,
        mig: MigHardware | None = None,
    ) -> None:
        self.root = root
        self.api = api or Api()
        self.reader = reader or self.api
        self.machine = Machine(*(gpus or tuple(make.gpu(minor) for minor in range(8))))
        self.specs = SpecStore(root / "cdi")
        self.sharing = FileSharing(root / "hardware", survives_reboot=survives_reboot)
        self.failed_undos: list[str] = []
        parts = NodeParts(
            inventory=self.machine,
            edits=self.machine,
            specs=self.specs,
            strategies=strategies
            or {EXCLUSIVE: Exclusive(), str(SharingStrategy.MPS): self.sharing},
            mig=mig or MigInstances(no_mig),
            on_failed_undo=self.failed_undos.append,
        )
        self.plugin = root / "plugin"
        self.claims = open_claims(self.plugin, parts, boot_id=boot_id, step=step)
        self.locks = NodeLocks(self.plugin / "locks", time.monotonic)
        self.preparer = ClaimPreparer(
            api=self.reader,
            inventory=self.machine,
            claims=self.claims,
            locks=self.locks,
            pool="node-1",
            clock=time.monotonic,
            timing=timing,
        )

    def close(self) -> None:
        self.locks.close()

    def reconciler(
        self, timing: ReconcileTiming, clock: Callable[[], float] = time.monotonic
    ) -> Reconciler:
        return Reconciler(
            api=self.reader,
            claims=self.claims,
            preparer=self.preparer,
            locks=self.locks,
            clock=clock,
            timing=timing,
        )

    def prepare(self, ref: ClaimRef, seconds: float = 10.0) -> tuple[PreparedDevice, ...]:
        return self.preparer.prepare(ref, deadline=time.monotonic() + seconds)

    def unprepare(self, ref: ClaimRef, seconds: float = 10.0) -> None:
        self.preparer.unprepare(ref, deadline=time.monotonic() + seconds)

    def spec(self, ref: ClaimRef) -> dict[str, Any]:
        """The claim's CDI spec as a runtime reads it."""
        text = (self.root / "cdi" / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def nodes(self, ref: ClaimRef) -> list[str]:
        """The paths of the device nodes in the claim's CDI spec."""
        return [
            node["path"]
            for device in self.spec(ref)["devices"]
            for node in device["containerEdits"]["deviceNodes"]
        ]

    def left(self) -> list[str]:
        """What claims have left on disk."""
        folders = [self.plugin / "claims", self.plugin / "gpus", self.root / "cdi"]
        folders.append(self.root / "hardware")
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return sorted(str(path.relative_to(self.root)) for path in files)

    @property
    def shared(self) -> list[str]:
        """The UUIDs of the devices on which the strategy has set something."""
        return sorted(path.name for path in (self.root / "hardware").iterdir())

    def set_on(self, uuid: GpuUuid) -> str | None:
        """What the strategy has set on a GPU."""
        path = self.root / "hardware" / uuid
        return path.read_text() if path.exists() else None
