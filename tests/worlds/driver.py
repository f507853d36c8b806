"""One life of a driver's claim objects: real files, locks and CDI specs, below one directory.

Its GPUs and its API server are played, and so is the only strategy beside Exclusive, "MPS"; a test
may give it others. Another life, of this process or another, goes on with the directory.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import make
from cdi_rules import judge
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, PodName
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.claims.prepare.device_metadata import CONTAINER_FOLDER
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.prepare.preparer import ClaimPreparer, PrepareTiming
from dra_driver.claims.prepare.steps import Sharing
from dra_driver.claims.reconcile.reconciler import Reconciler, ReconcileTiming
from dra_driver.claims.reconcile.still_running import PodHolder, StillRunning
from dra_driver.claims.state.divisions import Divisions, WantedDivisions
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import locks_of
from dra_driver.devices.device import Base
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import Gpu, GpuUuid
from dra_driver.devices.shares import Division
from dra_driver.errors import TransientError
from dra_driver.kube.client import KubeClient
from dra_driver.sharing.pod_groups import PodGroups
from worlds import ends, moments
from worlds.api import ClaimApi
from worlds.configs import PATIENCE
from worlds.played import FileSharing, PlayedGpus, no_mig

FAST = PrepareTiming(longest=10.0, margin=0.0, first_pause=0.001, longest_pause=0.005)

VERSION = "1.2.3"


class PlayedShares:
    """A share config, as the node's shares know it."""

    def __init__(self) -> None:
        self.divisions: dict[Base, Division] = {}

    def gpus(self) -> frozenset[GpuUuid]:
        return frozenset(part.gpu for part in self.divisions)

    def wanted(self) -> Mapping[Base, Division]:
        return self.divisions

    def why_unknown(self) -> str | None:
        return None


class Driver:
    """Two on one directory are two driver processes, or one before and after."""

    def __init__(  # noqa: PLR0913 (what a test may want to be different)
        self,
        root: Path,
        *gpus: Gpu,
        boot_id: str = "boot-1",
        api: ClaimApi | None = None,
        step: Callable[[str], None] = lambda _: None,
        timing: PrepareTiming = FAST,
        reader: KubeClient | None = None,
        sharing: Sharing | None = None,
        survives_reboot: bool = False,
        mig: MigInstances | None = None,
        tidy: Callable[[], object] = lambda: None,
        shares_wanted: WantedDivisions | None = None,
        ledger: Ledger | None = None,
        device_metadata: bool = True,
        edits: EditsCache | None = None,
        switches_modes: bool = True,
    ) -> None:
        ends.OPEN.add(self)
        self.root = root
        self.api = api or ClaimApi()
        self.reader = reader or self.api
        self.gpus = PlayedGpus(*(gpus or tuple(make.gpu(minor) for minor in range(8))))
        self.specs = SpecStore(root / "cdi")
        self.sharing = FileSharing(root / "hardware", survives_reboot=survives_reboot)
        self.failed_undos: list[str] = []
        self._play_pods()
        self.refusals = Refusals(time.monotonic, on_change=lambda: None)
        self.plugin = root / "plugin"
        if ledger is None:
            ledger = Ledger(self.plugin, boot_id=boot_id, version=VERSION)
        self.claims = NodeClaims(
            ledger,
            locks_of(ledger, time.monotonic),
            clock=time.monotonic,
            inventory=self.gpus,
            edits=edits or self.gpus,
            specs=self.specs,
            sharing=sharing or self.sharing.alone(),
            mig=mig or MigInstances(no_mig),
            switches=self.refusals,
            switches_modes=switches_modes,
            tidy=tidy,
            on_failed_undo=self.failed_undos.append,
            device_metadata=device_metadata,
        )
        moments.tell(self.claims, step)
        self.node_divisions = self._node_divisions(shares_wanted)
        self.locks = self.claims.locks
        self.preparer = ClaimPreparer(
            api=self.reader,
            inventory=self.gpus,
            claims=self.claims,
            divisions=self.node_divisions,
            pool="node-1",
            clock=time.monotonic,
            timing=timing,
        )

    def _play_pods(self) -> None:
        """Have no pods run; a test says which ones, and what the node cannot be asked."""
        (self.root / "cgroup/kubepods/burstable").mkdir(parents=True, exist_ok=True)
        self.pods_running: dict[ClaimUid, Sequence[PodName]] = {}
        self.pod_holders: dict[GpuUuid, Sequence[PodHolder]] = {}
        self.kubelet_trouble: TransientError | None = None
        self.kept: list[tuple[str, str]] = []

    def _node_divisions(self, wanted: WantedDivisions | None) -> Divisions:
        played = PlayedShares()
        self.divisions = played.divisions
        return Divisions(self.claims.ledger, played if wanted is None else wanted)

    def close(self) -> None:
        if self in ends.OPEN:
            ends.OPEN.discard(self)
            self.locks.close()

    def reconciler(
        self, timing: ReconcileTiming, clock: Callable[[], float] = time.monotonic
    ) -> Reconciler:
        return Reconciler(
            api=self.reader,
            claims=self.claims,
            running=StillRunning(
                pods_with=self.pods_with,
                groups=[PodGroups(self.root / "cgroup")],
                holders=lambda gpu: self.pod_holders.get(gpu, ()),
            ),
            clock=clock,
            timing=timing,
            on_kept=lambda record, why: self.kept.append((record.ref.name, why)),
        )

    def pods_with(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, Sequence[PodName]]:
        """The kubelet's word."""
        if self.kubelet_trouble is not None:
            raise self.kubelet_trouble
        return {uid: pods for uid, pods in self.pods_running.items() if uid in uids}

    def prepare(self, ref: ClaimRef, seconds: float = PATIENCE) -> tuple[DeviceRecord, ...]:
        devices = self.preparer.prepare(ref, deadline=time.monotonic() + seconds)
        if devices:
            with suppress(FileNotFoundError):  # a test may have it unprepared at the same time
                judge(self.spec(ref))
        return devices

    def unprepare(self, ref: ClaimRef, seconds: float = PATIENCE) -> None:
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

    def env(self, ref: ClaimRef, device: str) -> dict[str, str]:
        """The environment a container of this device gets, without what all containers get."""
        found = self._edits(ref, device).get("env", [])
        return dict(entry.split("=", 1) for entry in found)

    def mounts(self, ref: ClaimRef, device: str) -> dict[str, str]:
        """Container path to host path of what lets this device work; not its metadata."""
        found = self._edits(ref, device).get("mounts", [])
        return {
            mount["containerPath"]: mount["hostPath"]
            for mount in found
            if not mount["containerPath"].startswith(CONTAINER_FOLDER)
        }

    def _edits(self, ref: ClaimRef, device: str) -> dict[str, Any]:
        devices = self.spec(ref)["devices"]
        (edits,) = [
            one["containerEdits"] for one in devices if one["name"] == f"{ref.uid}-{device}"
        ]
        found: dict[str, Any] = edits
        return found

    def cleanups(self, ref: ClaimRef) -> list[tuple[str, str]]:
        """What could not be taken back of a claim: strategy and reason."""
        record = self.claims.ledger.read(ref.uid)
        cleanups = record.pending if record else ()
        return [(cleanup.of.name, cleanup.reason) for cleanup in cleanups]

    def left(self) -> list[str]:
        """What claims have left on disk."""
        folders = [self.plugin / name for name in ("claims", "device-metadata")]
        folders += [self.root / "cdi", self.root / "hardware"]
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
