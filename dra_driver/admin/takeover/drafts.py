"""Converts claims that NVIDIA's DRA driver prepared to records of this driver. Pure.

In: its claims (admin/takeover/nvidia_checkpoint.py), and the GPUs of this node. Out: one record
for each claim, with exactly what that driver would undo at the claim's end. A MIG device was made
for a claim if the checkpoint has its parent's UUID instead of its own; then that driver makes them
on demand. Otherwise the checkpoint leaves it open: they count as made for claims if this driver is
set to make them too, and no GPU has one without a claim or waits in MIG mode for one. In doubt they
stay: a device that is kept needlessly can be used, and one that is destroyed is lost for good.

A GPU of a virtual machine stays with the VFIO driver that it is bound to (`--vfio`), because this
driver binds none. So a claim that was only about to get one leaves nothing to undo.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dra_driver.admin.takeover.nvidia_checkpoint import (
    PeerCheckpoint,
    PeerClaim,
    PeerDevice,
    PeerMig,
    PeerVfio,
)
from dra_driver.cdi.model import claim_device_id
from dra_driver.claims.model.claim import Claim, ClaimRef, ClaimUid, Result, parse_claim
from dra_driver.claims.model.config import group_by_config
from dra_driver.claims.model.record import (
    ClaimRecord,
    DeviceRecord,
    MakeMigDevices,
    RecordState,
    TurnMigModeOn,
)
from dra_driver.claims.prepare.allocation import consumed
from dra_driver.devices.device import (
    Base,
    Device,
    Mig,
    MigIds,
    Vfio,
    Whole,
    kind_named,
    mig_of,
    place_of,
)
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import (
    BareInstance,
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigMode,
    MigSlot,
    PassthroughGpu,
    PciAddress,
)
from dra_driver.devices.names import DRIVER_NAME, GpuName, MigName, VfioName, parse_device_name
from dra_driver.devices.passthrough.bus import is_vfio
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConfigError, StateError, TransientError
from dra_driver.sharing.passthrough import wishes
from dra_driver.sharing.steps import (
    NvidiaMpsDaemon,
    PassThrough,
    SharingStep,
    TimeSlice,
)
from resource_nvidia_com.v1beta1.names import Interval, SharingStrategy

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config


class Drafts:
    """Makes records of the claims in one checkpoint.

    `mps_folder` is where that driver keeps a folder for each of its MPS daemons, and `makes_mig`
    tells whether MIG devices are made for claims on this node.
    """

    def __init__(
        self,
        checkpoint: PeerCheckpoint,
        inventory: Inventory,
        *,
        boot_id: str,
        mps_folder: Path,
        makes_mig: bool,
    ) -> None:
        self._gpus = inventory.gpus
        self._cards = inventory.passthrough
        self._boot_id = boot_id
        self._mps_folder = mps_folder
        self._makes_mig = makes_mig
        migs = [
            device.device
            for claim in checkpoint.claims
            for group in claim.groups
            for device in group.devices
            if isinstance(device.device, PeerMig)
        ]
        self._claimed = {live.uuid for _, live in map(self._find, migs) if live is not None}
        self._is_on_demand = any(mig.is_made_for_claims for mig in migs)
        self._begun = {
            MigSlot(gpu=gpu.uuid, profile_id=name.profile_id, start=name.start)
            for claim in checkpoint.claims
            if not claim.is_prepared
            for _, gpu, name in self._begun_if_readable(claim)
            if isinstance(name, MigName)
        }

    def of(self, claim: PeerClaim) -> ClaimRecord | None:
        """Return the record of a claim; None if nothing was prepared for it.

        Raises StateError if its entry contradicts itself, TransientError if a GPU does not answer
        now.
        """
        parsed = parsed_claim(claim)
        if not claim.is_prepared:
            return self._begun_record(claim, parsed)
        devices, sharing = self._prepared(claim, parsed)
        if not devices:
            return None
        return self._record(claim, parsed, devices, sharing, RecordState.PREPARED)

    def on_vfio(self, claim: PeerClaim) -> Iterator[PciAddress]:
        """Yield the addresses of a claim's GPUs that are bound to a VFIO driver.

        Raises StateError if GPUs are not offered to virtual machines here, or one is not there.
        """
        for result in parsed_claim(claim).results:
            name = parse_device_name(result.device)
            if isinstance(name, VfioName):
                card = self._card(name, None)
                if is_vfio(card.driver):
                    yield card.gpu.pci_address

    # Claims that were reported to the kubelet

    def _prepared(
        self, claim: PeerClaim, parsed: Claim
    ) -> tuple[list[DeviceRecord], list[SharingStep]]:
        configs = _configs(claim, parsed)
        unused = list(parsed.results)
        devices: list[DeviceRecord] = []
        steps: list[SharingStep] = []
        for group in claim.groups:
            entries = [self._prepared_entry(device, unused) for device in group.devices]
            devices += entries
            mine = [entry for entry in entries if not entry.admin_access]
            if group.mps_daemon is not None:
                steps.append(self._mps_daemon(group.mps_daemon, mine))
            elif group.time_sliced:
                steps += _time_slices(mine, configs)
            steps += self._passthroughs(mine, configs)
        return devices, steps

    def _prepared_entry(self, peer: PeerDevice, unused: list[Result]) -> DeviceRecord:
        """Return the record of a device, and remove its result from `unused`."""
        asked = (
            entry
            for entry in unused
            if entry.device == peer.name
            and (entry.request in peer.requests or entry.base_request in peer.requests)
        )
        result = next(asked, None)
        if result is None:
            raise StateError(
                f"it was prepared with device {peer.name!r} for a request to which it was not "
                "allocated"
            )
        unused.remove(result)
        kind = parse_device_name(peer.name)
        if isinstance(peer.device, PeerMig) and isinstance(kind, MigName):
            base: Base = self._mig(peer.device, kind)
        elif isinstance(peer.device, PeerVfio) and isinstance(kind, VfioName):
            base = self._vfio(kind, peer.device.address)
        elif isinstance(kind, GpuName) and isinstance(peer.device, str):
            base = Whole(gpu=peer.device)
        else:
            raise StateError(f"its device {peer.name} is of another kind than its name says")
        return _entry(result, base, peer.pool, peer.cdi_device_ids)

    def _mig(self, mig: PeerMig, name: MigName) -> Mig:
        gpu, live = self._find(mig)
        partition = None if gpu is None else partition_named(gpu, name.profile_id, name.start)
        if gpu is None or partition is None:
            raise TransientError(
                f"the GPU of MIG device {_words(mig)} is not present now, or does not report its "
                "profiles"
            )
        is_there = live is not None and live.slot == partition.slot
        uuid = mig.uuid or (live.uuid if live is not None and is_there else None)
        if uuid is None:
            raise StateError(
                f"its MIG device, {_words(mig)}, no longer exists: delete its pod, which has "
                "lost it"
            )
        compute_instance = live.compute_instance if live else None
        ids = MigIds(
            gpu_instance=_known(mig.gpu_instance, live.gpu_instance if live else None),
            compute_instance=_known(mig.compute_instance, compute_instance),
            uuid=uuid,
            made_here=is_there and (mig.is_made_for_claims or self._was_made()),
        )
        return replace(partition, instance=ids)

    def _gpu(self, uuid: GpuUuid) -> Gpu | None:
        return next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)

    def _find(self, mig: PeerMig) -> tuple[Gpu | None, MigDevice | None]:
        """Return the GPU of a MIG device, and the device if it still exists."""
        for gpu in self._gpus:
            for instance in gpu.mig_instances:
                if isinstance(instance, MigDevice) and _is_noted(instance, mig):
                    return gpu, instance
        return None if mig.parent is None else self._gpu(mig.parent), None

    def _was_made(self) -> bool:
        """Tell whether that driver made the MIG devices for claims."""
        return self._is_on_demand or (self._makes_mig and all(map(self._is_of_claims, self._gpus)))

    def _is_of_claims(self, gpu: Gpu) -> bool:
        """Tell whether a GPU is in MIG mode only for claims, or not at all.

        That driver turns the mode off with the last device, if that needs no reset.
        """
        if gpu.mig_mode is not MigMode.ENABLED or gpu.mig is None:
            return True
        if not gpu.mig.instances:
            return gpu.mig.needs_reset
        return all(
            instance.slot in self._begun
            or (isinstance(instance, MigDevice) and instance.uuid in self._claimed)
            for instance in gpu.mig.instances
        )

    def _vfio(self, name: VfioName, address: PciAddress | None) -> Vfio:
        card = self._card(name, address)
        return Vfio(gpu=card.gpu.uuid, address=card.gpu.pci_address, number=name.number)

    def _card(self, name: VfioName, address: PciAddress | None) -> PassthroughGpu:
        if not self._cards:
            raise StateError(
                "it has a GPU that is passed through to a virtual machine, which this driver takes "
                "over only with --vfio"
            )
        for card in self._cards:
            if (card.gpu.pci_address == address) if address else (card.number == name.number):
                return card
        where = f" at {address}" if address else ""
        raise StateError(
            f"its GPU{where}, gpu-vfio-{name.number}, is no longer on the PCI bus: delete its "
            "pod, which has lost it"
        )

    def _passthroughs(
        self, entries: Iterable[DeviceRecord], configs: "Mapping[str, Config | None]"
    ) -> Iterator[PassThrough]:
        """Yield steps for GPUs of virtual machines."""
        for entry in entries:
            base = entry.device.base
            if not isinstance(base, Vfio):
                continue
            card = self._card(VfioName(number=base.number), base.address)
            wants_iommufd, wants_api = wishes(configs.get(entry.name))
            yield PassThrough(
                devices=(entry.device,),
                address=base.address,
                driver=card.driver or "no driver",
                group=card.group,
                iommufd=wants_iommufd and card.has_iommufd,
                api_device=wants_api,
            )

    # Claims that were about to be prepared

    def _begun_record(self, claim: PeerClaim, parsed: Claim) -> ClaimRecord | None:
        entries = (self._begun_entry(claim, *there) for there in self._begun_on(parsed))
        devices = [entry for entry in entries if entry is not None]
        if not devices:
            return None
        configs = _configs(claim, parsed)
        steps: list[SharingStep] = list(_time_slices(devices, configs))
        folders = sorted(self._mps_folder.glob(f"{claim.uid}-?????"))
        steps += [self._mps_daemon(folder.name, devices) for folder in folders]
        return self._record(claim, parsed, devices, steps, RecordState.PREPARING)

    def _begun_if_readable(
        self, claim: PeerClaim
    ) -> Iterator[tuple[Result, Gpu, GpuName | MigName]]:
        """Yield what `_begun_on` does, or nothing for an unreadable claim, which `of` reports."""
        with suppress(StateError):
            yield from self._begun_on(parsed_claim(claim))

    def _begun_on(self, parsed: Claim) -> Iterator[tuple[Result, Gpu, GpuName | MigName]]:
        """Yield the results of a claim on GPUs that exist."""
        for result in parsed.results:
            name = parse_device_name(result.device)
            if isinstance(name, GpuName | MigName):
                gpus = (gpu for gpu in self._gpus if gpu.minor == name.minor)
                if gpu := next(gpus, None):
                    yield result, gpu, name

    def _begun_entry(
        self, claim: PeerClaim, result: Result, gpu: Gpu, name: GpuName | MigName
    ) -> DeviceRecord | None:
        base: Base = Whole(gpu=gpu.uuid)
        if isinstance(name, MigName):
            partition = partition_named(gpu, name.profile_id, name.start)
            if partition is None:
                return None
            base = self._half_made(gpu, partition)
        cdi_device_id = claim_device_id(claim.uid, result.device, None)
        return _entry(result, base, result.pool, (cdi_device_id,))

    def _half_made(self, gpu: Gpu, place: Mig) -> Mig:
        live = next(
            (instance for instance in gpu.mig_instances if instance.slot == place.slot), None
        )
        if not isinstance(live, MigDevice) or live.uuid in self._claimed:
            return place
        return mig_of(replace(live, made_here=self._was_made()))

    # Claims of both kinds

    def _record(
        self,
        claim: PeerClaim,
        parsed: Claim,
        devices: Sequence[DeviceRecord],
        sharing: Sequence[SharingStep],
        state: RecordState,
    ) -> ClaimRecord:
        return ClaimRecord(
            ref=ClaimRef(uid=claim.uid, namespace=claim.namespace, name=claim.name),
            boot_id=self._boot_id,
            state=state,
            devices=tuple(devices),
            steps=(*self._making(devices, claim.uid), *sharing),
            pods=parsed.pods,
            groups=parsed.groups,
        )

    def _making(
        self, devices: Iterable[DeviceRecord], claim: ClaimUid
    ) -> Iterator[TurnMigModeOn | MakeMigDevices]:
        """Yield the steps by which that driver made the devices exist, by GPU.

        A mode that changes without a reset counts as turned on for the claim.
        """
        by_gpu: dict[GpuUuid, dict[Base, None]] = {}
        for entry in devices:
            base = entry.device.base
            if not entry.admin_access and isinstance(base, Mig) and self._is_making(base):
                by_gpu.setdefault(base.gpu, {})[place_of(base)] = None
        for uuid, places in by_gpu.items():
            gpu, made = self._gpu(uuid), tuple(Device(base=place) for place in places)
            if gpu and gpu.mig and not gpu.mig.needs_reset:
                yield TurnMigModeOn(devices=made, claim=claim)
            yield MakeMigDevices(devices=made, claim=claim)

    def _is_making(self, mig: Mig) -> bool:
        """Tell whether that driver made a MIG device for its claim, or began to.

        It may have been killed between making a GPU instance and its compute instance.
        """
        if mig.instance is not None:
            return mig.instance.made_here
        gpu = self._gpu(mig.gpu)
        there = () if gpu is None else gpu.mig_instances
        is_there = any(bare.slot == mig.slot and isinstance(bare, BareInstance) for bare in there)
        return is_there and self._was_made()

    def _mps_daemon(self, daemon: str, entries: Sequence[DeviceRecord]) -> NvidiaMpsDaemon:
        return NvidiaMpsDaemon(
            devices=tuple(entry.device for entry in entries),
            daemon=daemon,
            folder=str(self._mps_folder / daemon),
        )


def _is_noted(device: MigDevice, mig: PeerMig) -> bool:
    if mig.uuid is not None:
        return device.uuid == mig.uuid
    ids = (device.parent, device.gpu_instance, device.compute_instance)
    return ids == (mig.parent, mig.gpu_instance, mig.compute_instance)


def _words(mig: PeerMig) -> str:
    if mig.uuid is not None:
        return str(mig.uuid)
    return (
        f"GPU instance {mig.gpu_instance} and compute instance {mig.compute_instance} of "
        f"{mig.parent}"
    )


def _time_slices(
    entries: Iterable[DeviceRecord], configs: "Mapping[str, Config | None]"
) -> Iterator[TimeSlice]:
    """Yield the steps of time-slices that were set; the earlier one counts as the default."""
    for entry in entries:
        base, config = entry.device.base, configs.get(entry.name)
        if config is None or config.kind != "GpuConfig" or not isinstance(base, Whole):
            continue
        sharing = config.sharing
        if sharing is not None and sharing.strategy is SharingStrategy.TIME_SLICING:
            settings = sharing.time_slicing_config
            yield TimeSlice(
                devices=(Device(base=base),),
                interval=(settings.interval if settings else None) or Interval.DEFAULT,
                card=f"{entry.name} ({base.gpu})",
            )


def _entry(result: Result, base: Base, pool: str, cdi_device_ids: tuple[str, ...]) -> DeviceRecord:
    return DeviceRecord(
        name=result.device,
        # That driver shares only by time-slicing.
        device=consumed(Device(base=base), result, ShareStrategy.TIME_SLICING),
        pool=pool,
        request_names=(result.base_request,),
        cdi_device_ids=cdi_device_ids,
        admin_access=result.admin_access,
        share_id=result.share_id,
    )


def _known(noted: int | None, live: int | None) -> int:
    return noted if noted is not None else live or 0


def parsed_claim(claim: PeerClaim) -> Claim:
    """Return a claim parsed as if the API server had sent it; raises StateError."""
    uid, name = claim.uid, claim.name or "of an unknown name"
    metadata = {"uid": uid, "namespace": claim.namespace, "name": name}
    try:
        return parse_claim({"metadata": metadata, "status": claim.status}, DRIVER_NAME)
    except ConfigError as error:
        raise _unfit(uid, error) from error


def _configs(claim: PeerClaim, parsed: Claim) -> "dict[str, Config | None]":
    """Return the config of each device, by device name."""
    kinds = {result.device: kind_named(result.device) for result in parsed.results}
    try:
        # A config that NVIDIA's DRA driver ignored has no effect on what runs.
        groups = group_by_config(parsed, kinds, all_hold=False)
    except ConfigError as error:
        raise _unfit(claim.uid, error) from error
    return {result.device: config for config, results in groups for result in results}


def _unfit(uid: ClaimUid, error: ConfigError) -> StateError:
    return StateError(f"its entry for claim UID {uid} cannot be read: {error}")
