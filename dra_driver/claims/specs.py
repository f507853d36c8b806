"""A claim's CDI spec, and what its devices are for those who share them out. Pure but for edits.

In: a record and the GPUs it is about. Out: a spec with one CDI device for each device of the claim,
and units: a whole GPU, or a MIG device with the GPU it is on.
"""

from collections.abc import Mapping

from dra_driver.cdi.model import Edits, Spec, SpecDevice
from dra_driver.cdi.spec import KIND, claim_device_name
from dra_driver.claims.gpus import Allocated
from dra_driver.claims.mig import mig_device
from dra_driver.claims.plans import Unit
from dra_driver.claims.ports import NodeEdits
from dra_driver.claims.record import ClaimRecord, DeviceRecord
from dra_driver.devices.model import Gpu, GpuUuid, MigDevice, MigUuid, Partition
from dra_driver.sharing.base import DeviceUuid, MigUnit


def claim_spec(
    record: ClaimRecord,
    gpus: Mapping[GpuUuid, Gpu],
    edits: NodeEdits,
    extra: Mapping[DeviceUuid, Edits],
) -> Spec:
    """Return the claim's CDI spec; `extra` is what strategies add, by device.

    Raises:
        DeviceError, TransientError: a device's files are not there.
    """
    # The same device can stand in a claim twice, with admin access and without.
    devices = {
        claim_device_name(record.ref.uid, device.name, device.share_id): device
        for device in record.devices
    }
    return Spec(
        kind=KIND,
        devices=tuple(
            SpecDevice(name=name, edits=_edits(device, gpus[device.uuid], edits, extra))
            for name, device in devices.items()
        ),
        edits=edits.common,
    )


def units(record: ClaimRecord, gpus: Mapping[GpuUuid, Gpu]) -> dict[str, Unit]:
    """Return what the devices of a record are, by name, when all of them are there."""
    return {device.name: _unit(device, gpus[device.uuid]) for device in record.devices}


def units_to_be(draft: ClaimRecord, allocated: Mapping[str, Allocated]) -> dict[str, Unit]:
    """Return what the devices of a draft will be, by name: some may have to be made yet."""
    found: dict[str, Unit] = {}
    for device in draft.devices:
        gpu, partition = allocated[device.name].gpu, allocated[device.name].partition
        if partition is not None and device.mig is not None and device.mig.uuid is None:
            found[device.name] = MigUnit(gpu=gpu, device=_yet_to_be(partition))
        else:
            found[device.name] = _unit(device, gpu)
    return found


def _unit(device: DeviceRecord, gpu: Gpu) -> Unit:
    return gpu if device.mig is None else MigUnit(gpu=gpu, device=mig_device(device, gpu))


def _edits(
    device: DeviceRecord, gpu: Gpu, edits: NodeEdits, extra: Mapping[DeviceUuid, Edits]
) -> Edits:
    own = edits.gpu(gpu) if device.mig is None else edits.mig(gpu, mig_device(device, gpu))
    added = extra.get(device.device_uuid) if device.device_uuid else None
    return own if added is None else own + added


def _yet_to_be(partition: Partition) -> MigDevice:
    """Return a MIG device whose UUID is not known yet, but is no other's."""
    slot = partition.slot
    return MigDevice(
        parent=partition.parent,
        profile=partition.profile,
        placement=partition.placement,
        gpu_instance=0,
        compute_instance=0,
        uuid=MigUuid(f"MIG-to-be-made-{slot.gpu}-{slot.profile_id}-{slot.start}"),
        made_here=True,
    )
