"""Takes a node over from NVIDIA's DRA driver, under running pods.

In: its checkpoint, `checkpoint.json` in the directory that both drivers share. Out: a record for
each of its claims, so that this driver answers for them as the other one did, and undoes what that
one would undo. Recorded claims are removed from the checkpoint, which is renamed once all are
recorded. The driver then writes CDI specs of its own, with the same device names. Rules: a damaged
file is not changed; every step can be repeated, so that the next run recovers from a kill at any
point; a claim that has a record already is left as it is. A claim that cannot be taken over is
reported, stays in the file, and does not hold up others.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
from msgspec.structs import replace

from dra_driver.admin.stored import made_for
from dra_driver.admin.takeover.checkpoint_file import FILE
from dra_driver.admin.takeover.drafts import Drafts
from dra_driver.admin.takeover.nvidia_checkpoint import (
    PeerCheckpoint,
    parse_checkpoint,
    read_checkpoint,
    without,
)
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.state.holdings import neighbours
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import NodeLocks
from dra_driver.devices.model import InventorySource, PciAddress
from dra_driver.errors import (
    ConflictError,
    DriverError,
    StateError,
    TransientError,
    VersionError,
)
from dra_driver.host.files import sync_folder, write_whole
from dra_driver.sharing.steps import NvidiaMpsDaemon

log = structlog.get_logger()

TAKEN_OVER = "checkpoint.json.taken-over"
"""The name of the file once all claims in it have records: kept for people, and never read."""

_THEIR_LOCKS = ("pu.lock", "cp.lock")
_LOCK_SECONDS = 5.0

STUCK = (
    "its pods keep running; start NVIDIA's DRA driver again and remove it once they have ended, or "
    "drain the node, uninstall this driver, and run dra-driver cleanup there"
)
"""What to do about a claim that is not taken over; `dra-driver doctor` gives the same advice."""

_TO_GPU_DRIVER = (
    "it is for virtual machines from now on, even if NVIDIA's DRA driver had taken it from the GPU "
    "driver; to give it back once its claim has ended, restart the node, or write an empty line to "
    "/sys/bus/pci/devices/{0}/driver_override, then {0} to the file driver/unbind beside it, and "
    "{0} to /sys/bus/pci/drivers/nvidia/bind"
)

_MOST_SAID = 160


class TakeOver:
    """Takes over what there is; run it again while something prevents that.

    `makes_mig` tells whether MIG devices are made for claims here. `names` returns the names of
    claims, which the checkpoint omits, and raises TransientError. `rival` returns the socket
    on which the other driver listens, if it runs. `clock` is monotonic, in seconds. With
    `only_plan`, a run logs the same and changes nothing.
    """

    def __init__(  # noqa: PLR0913 (all that it asks)
        self,
        ledger: Ledger,
        locks: NodeLocks,
        inventory: InventorySource,
        makes_mig: bool,
        clock: Callable[[], float],
        *,
        names: Callable[[Collection[ClaimUid]], Mapping[ClaimUid, ClaimRef]] = lambda _: {},
        rival: Callable[[], Path | None] = lambda: None,
        only_plan: bool = False,
    ) -> None:
        self._directory = ledger.directory
        self._ledger = ledger
        self._locks = locks
        self._inventory = inventory
        self._makes_mig = makes_mig
        self._clock = clock
        self._names = names
        self._rival = rival
        self._only_plan = only_plan
        self._left: dict[str, DriverError] = {}

    @property
    def left(self) -> Mapping[str, DriverError]:
        """Why the last run did not take claims over, by their UIDs; key "" is for the file."""
        return self._left

    def run(self) -> bool:
        """Take over what there is; return False if another run may do more.

        The reason for a failure is logged once.
        """
        deadline = self._clock() + _LOCK_SECONDS
        try:
            # Only one process of this driver does this, and not while that driver writes.
            with self._locks.claim(FILE, deadline), self._without_them():
                return self._take_over(deadline)
        except DriverError as error:
            if str(error) != str(self._left.get("")):
                log.error(  # noqa: TRY400 (the reason is the whole of it)
                    "node not taken over from nvidia's driver",
                    file=str(self._directory / FILE),
                    reason=str(error),
                    advice=advice(error),
                )
            self._left = {"": error}
            return not _may_pass(error)

    def _take_over(self, deadline: float) -> bool:
        data = read_checkpoint(self._directory / FILE)
        if data is None:
            self._left = {}
            return True
        checkpoint = parse_checkpoint(data)
        if checkpoint.boot_id not in (None, self._ledger.boot_id):
            # Its settings are gone; the kubelet prepares the claims of pods that still exist.
            log.info("checkpoint of nvidia's driver is of an old boot", boot=checkpoint.boot_id)
            self._put_aside()
            return True
        left = self._take(checkpoint, deadline)
        taken = [claim.uid for claim in checkpoint.claims if claim.uid not in left]
        if not left and not checkpoint.unread:
            self._put_aside()
            return True
        if taken:
            self._strike(data, taken)
        self._say_left(checkpoint, left)
        return not any(map(_may_pass, left.values()))

    def _take(self, checkpoint: PeerCheckpoint, deadline: float) -> dict[str, DriverError]:
        """Make records of the claims; return the reasons why some have none, by claim UID."""
        drafts = self._drafts(checkpoint)
        records: list[ClaimRecord] = []
        on_vfio: dict[str, list[PciAddress]] = {}
        left: dict[str, DriverError] = {}
        for claim in checkpoint.claims:
            try:
                record, on_vfio[claim.uid] = drafts.of(claim), list(drafts.on_vfio(claim))
            except DriverError as error:
                left[claim.uid] = error
            else:
                records += [] if record is None else [record]
        for record in self._named(records):
            try:
                if not self._write(record, deadline):
                    left[record.ref.uid] = StateError("another claim has its GPU already")
            except DriverError as error:  # another call holds it, or the disk refused
                left[record.ref.uid] = TransientError(str(error))
        for uid, addresses in on_vfio.items():
            for address in addresses if uid not in left else ():
                back = _TO_GPU_DRIVER.format(address)
                log.warning("gpu stays with its vfio driver", address=address, advice=back)
        return left

    def _say_left(self, checkpoint: PeerCheckpoint, left: dict[str, DriverError]) -> None:
        """Log once each reason why a claim was left."""
        left = {**left, **{claim.uid: StateError(claim.reason) for claim in checkpoint.unread}}
        for peer in checkpoint.all:
            error = left.get(peer.uid)
            if error is not None and str(error) != str(self._left.get(peer.uid)):
                log.error(
                    "claim not taken over from nvidia's driver",
                    claim_uid=peer.uid[:_MOST_SAID],
                    pods=list(peer.pods),
                    reason=str(error),
                    advice=advice(error),
                )
        self._left = left

    def _named(self, records: Collection[ClaimRecord]) -> list[ClaimRecord]:
        """Return records with the names of their claims, as far as these are known.

        A claim without a name is unprepared by the kubelet, or by the driver once no pod uses it.
        """
        nameless = [record.ref.uid for record in records if not record.ref.name]
        names: Mapping[ClaimUid, ClaimRef] = {}
        try:
            names = self._names(nameless) if nameless else {}
        except TransientError as error:
            log.warning("names of claims not known", reason=str(error))
        return [replace(each, ref=names.get(each.ref.uid, each.ref)) for each in records]

    def _drafts(self, checkpoint: PeerCheckpoint) -> Drafts:
        inventory = self._inventory.current()
        if not (inventory.gpus or inventory.passthrough) and checkpoint.claims:
            raise TransientError(f"the GPUs of this node are not known: {inventory.problem}")
        return Drafts(
            checkpoint,
            inventory,
            boot_id=self._ledger.boot_id,
            mps_folder=self._directory / "mps",
            makes_mig=self._makes_mig,
        )

    def _write(self, record: ClaimRecord, deadline: float) -> bool:
        """Write a claim's record, unless it has one.

        Returns whether the claim is this driver's now; it is not if another claim has its GPU.
        """
        uid = record.ref.uid
        with self._locks.claim(uid, deadline), self._locks.gpus(record.touched_gpus, deadline):
            try:
                former = self._ledger.read(uid)
            except VersionError as error:
                log.warning("claim not taken over", claim_uid=uid, reason=str(error))
                return True
            if former is None:
                if neighbours(self._ledger, record).rival is not None:
                    return False
                if self._only_plan:
                    _say("claim would be taken over", record)
                    return True
                self._ledger.write(record)
                _say("claim taken over", record)
        return True

    def _strike(self, data: bytes, taken: Collection[str]) -> None:
        """Remove the claims that are in records from the file, so that it lists only the others.

        So a claim that has ended is not taken over again. If NVIDIA's DRA driver comes back, it
        finds the claims that are still its own.
        """
        if self._only_plan:
            return
        path = self._directory / FILE
        try:
            write_whole(
                path, without(data, taken), mode=stat.S_IMODE(path.stat().st_mode), durable=True
            )
        except OSError as error:
            raise StateError(f"it cannot be written: {error.strerror or error}") from error
        log.info("node taken over from nvidia's driver in part", claims=sorted(taken))

    def _put_aside(self) -> None:
        self._left = {}
        path = self._directory / FILE
        if self._only_plan:
            log.info("checkpoint of nvidia's driver would be put aside", file=str(path))
            return
        try:
            path.replace(self._directory / TAKEN_OVER)
            sync_folder(self._directory)
        except OSError as error:
            raise StateError(f"it cannot be renamed: {error.strerror or error}") from error
        log.info("node taken over from nvidia's driver", kept=str(self._directory / TAKEN_OVER))

    @contextmanager
    def _without_them(self) -> Iterator[None]:
        """Hold the locks under which NVIDIA's DRA driver works, unless this is only a plan.

        Raises ConflictError if it runs (it holds its locks during calls only), StateError if they
        cannot be opened.
        """
        if (socket := self._rival()) and not self._only_plan:
            raise ConflictError(f"NVIDIA's DRA driver runs on this node, and listens on {socket}")
        with ExitStack() as stack:
            for name in () if self._only_plan else _THEIR_LOCKS:
                try:
                    file = os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StateError(f"{name} cannot be opened: {error.strerror}") from error
                stack.callback(os.close, file)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise ConflictError("NVIDIA's DRA driver is at work on this node") from error
            yield


def _say(event: str, record: ClaimRecord) -> None:
    log.info(
        event,
        claim=str(record.ref),
        claim_uid=record.ref.uid,
        state=record.state,
        devices=[entry.name for entry in record.devices],
        mig_devices_made=len(made_for(record)),
        mps_deployments=[
            step.deployment for step in record.steps if isinstance(step, NvidiaMpsDaemon)
        ],
    )


def _may_pass(error: DriverError) -> bool:
    return isinstance(error, ConflictError | TransientError)


def advice(error: DriverError) -> str:
    """Return what to do about a reason for which something was not taken over."""
    if isinstance(error, ConflictError):
        return "remove NVIDIA's DRA driver from this node: this driver does not start beside it"
    if isinstance(error, TransientError):
        return "to try again, delete this driver's pod on this node"
    return STUCK
