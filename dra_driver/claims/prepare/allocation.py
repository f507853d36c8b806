"""Translates what a claim was allocated into devices of this node and the configs for them.

The scheduler allocates by name, and a name begins with a minor number (devices/names.py). At the
prepare it is translated once into a device of this node. From then on, after a reboot too, the UUID
in the record counts (dra-driver-nvidia-gpu#930). The name of a MIG device means a place on a GPU;
whether a device exists there is checked later, under a lock (claims/prepare/resolve.py). The name
of a share says how many shares there are; what that means is up to the division that holds now. A
consumed share has its device's name and a share id.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.cdi.model import claim_device_id
from dra_driver.claims.model.claim import Claim, Result
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.state.divisions import Divisions
from dra_driver.devices.device import Base, Device, DeviceKind, Vfio, Whole, kind_named, name_of
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.devices.names import (
    GpuName,
    MigName,
    ShareName,
    VfioName,
    gpu_name,
    parse_device_name,
)
from dra_driver.devices.shares import MIB, ConsumedShare, Division, EqualShare, ShareStrategy
from dra_driver.errors import ConfigError, DeviceError, DriverError, TransientError
from dra_driver.sharing.base import Group, Unit, strategy_name

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config

_Parsed = GpuName | MigName | VfioName | ShareName


class Allocation(Struct, frozen=True, kw_only=True):
    """What a claim was allocated, on this node.

    `draft` is the record that the claim will have, with devices that may not exist yet; `gpus` are
    the devices' GPUs, and `groups` the devices by the config that applies to them.
    """

    draft: ClaimRecord
    gpus: Mapping[GpuUuid, Gpu]
    groups: Sequence[Group]


def allocation_of(
    claim: Claim,
    configs: "Sequence[tuple[Config | None, Sequence[Result]]]",
    pool: str,
    inventory: Inventory,
    divisions: Divisions,
    boot_id: str,
) -> Allocation:
    """Return what a claim was allocated; `pool` is the name of this node's pool.

    `configs` are the claim's results by the config that applies to them. Raises ConfigError if a
    device is of another pool; DeviceError if this node has no such device, or its GPU is excluded;
    TransientError if a device is missing now, and this driver is still looking for it.
    """
    # Without a config, shares use time-slicing, for which nothing has to be set.
    strategies = {
        result.allocation_id: ShareStrategy.MPS
        if strategy_name(config) == ShareStrategy.MPS
        else ShareStrategy.TIME_SLICING
        for config, results in configs
        for result in results
        if result.share_id is not None
    }
    allocated = allocated_devices(claim.results, pool, inventory, divisions, strategies)
    devices = tuple(
        DeviceRecord(
            name=result.device,
            device=allocated[result.allocation_id],
            pool=result.pool,
            request_names=(result.base_request,),
            cdi_device_ids=(claim_device_id(claim.ref.uid, result.device, result.share_id),),
            admin_access=result.admin_access,
            share_id=result.share_id,
            subrequest=result.subrequest,
        )
        for result in claim.results
    )
    draft = ClaimRecord(
        ref=claim.ref,
        boot_id=boot_id,
        state=RecordState.PREPARED,
        devices=devices,
        steps=(),
        pods=claim.pods,
        groups=claim.groups,
        pod_claim_name=claim.pod_claim_name,
    )
    gpus = recorded_gpus(devices, inventory)
    groups = tuple(_group(claim, config, results, allocated, gpus) for config, results in configs)
    return Allocation(draft=draft, gpus=gpus, groups=groups)


def _group(
    claim: Claim,
    config: "Config | None",
    results: Iterable[Result],
    allocated: Mapping[str, Device],
    gpus: Mapping[GpuUuid, Gpu],
) -> Group:
    # The same device can be here twice, for two requests.
    each = {result.allocation_id: result for result in results}
    return Group(
        claim=claim.ref.uid,
        name=str(claim.ref),
        pods={pod.uid: pod.name for pod in claim.pods},
        pod_groups=tuple(group.name for group in claim.groups),
        config=config,
        units=tuple(
            Unit(
                name=result.device,
                request=result.request,
                gpu=gpus[allocated[key].gpu],
                device=allocated[key],
            )
            for key, result in each.items()
        ),
    )


def as_recorded(inventory: Inventory, record: ClaimRecord) -> Inventory:
    """Return the inventory with the numbers that a record's GPUs had when it was written.

    So a claim that is prepared again has the same GPUs, although its names would mean others now.
    """
    known = {gpu.uuid for gpu in inventory.gpus}
    names = {had.device.gpu: _gpu_named(parse_device_name(had.name)) for had in record.devices}
    minors = {uuid: name.minor for uuid, name in names.items() if name and uuid in known}
    taken = set(minors.values())
    gpus = (replace(gpu, minor=minors.get(gpu.uuid, gpu.minor)) for gpu in inventory.gpus)
    there = tuple(gpu for gpu in gpus if gpu.uuid in minors or gpu.minor not in taken)
    excluded = tuple(gpu for gpu in inventory.excluded if gpu.minor not in taken)
    bases = (had.device.base for had in record.devices)
    numbers = {base.address: base.number for base in bases if isinstance(base, Vfio)}
    cards = tuple(
        replace(card, number=numbers.get(card.gpu.pci_address, card.number))
        for card in inventory.passthrough
        if card.gpu.pci_address in numbers or card.number not in numbers.values()
    )
    return replace(inventory, gpus=there, excluded=excluded, passthrough=cards)


def allocated_devices(
    results: Sequence[Result],
    pool: str,
    inventory: Inventory,
    divisions: Divisions,
    strategies: Mapping[str, ShareStrategy],
) -> dict[str, Device]:
    """Return every allocated device by allocation id, without looking whether it exists.

    `strategies` are those of consumed shares, by allocation id; others time-slice. Raises as
    `allocation_of` does.
    """
    devices: dict[str, Device] = {}
    for result in results:
        if result.pool != pool:
            raise ConfigError(
                f'device "{result.device}" is in pool "{result.pool}", and this node serves pool '
                f'"{pool}": the claim was allocated for another node'
            )
        name = parse_device_name(result.device)
        if left_out := _excluded(name, inventory):
            raise DeviceError(
                f'device "{result.device}" is no longer offered: {left_out.why}; delete the '
                "pod and its claim so that they are scheduled again"
            )
        device = _device(name, result.device, inventory, divisions)
        if device is None:
            raise _absent(f'device "{result.device}"', kind_named(result.device), inventory)
        strategy = strategies.get(result.allocation_id, ShareStrategy.TIME_SLICING)
        devices[result.allocation_id] = consumed(device, result, strategy)
    return devices


def consumed(device: Device, result: Result, strategy: ShareStrategy) -> Device:
    """Return a device, or the part that a claim consumes if it was allocated with a share id."""
    if result.share_id is None or result.admin_access:
        return device
    if device.share is not None:
        raise DeviceError(
            f'device "{result.device}" is a share already and was allocated with share id '
            f"{result.share_id}: this driver publishes no such device; delete the pod and its claim"
        )
    share = ConsumedShare(
        share_id=result.share_id,
        strategy=strategy,
        memory_mib=result.consumed.get("memory", 0) // MIB,
        cores=result.consumed.get("cores", 0),
        shares=result.consumed.get("shares", 1),
    )
    return replace(device, share=share)


def _device(
    parsed: _Parsed | None, name: str, inventory: Inventory, divisions: Divisions
) -> Device | None:
    if parsed is None:
        return None
    if isinstance(parsed, VfioName):
        return _passthrough(parsed, inventory)
    of = parsed.of if isinstance(parsed, ShareName) else parsed
    gpu = next((known for known in inventory.gpus if known.minor == of.minor), None)
    base = None if gpu is None else _base(of, gpu)
    if gpu is None or base is None:
        return None
    device = Device(base=base)
    if isinstance(parsed, ShareName):
        division = divisions.of(base)
        if division is not None and parsed.index < division.count:
            device = Device(base=base, share=EqualShare(index=parsed.index, division=division))
        if device.share is None or name_of(gpu, device) != name:
            raise _divided_anew(name, division)
    # The whole name must match: if the card was replaced, its minor number may mean another device.
    return device if name_of(gpu, device) == name else None


def _passthrough(name: VfioName, inventory: Inventory) -> Device | None:
    for card in inventory.passthrough:
        if card.number == name.number:
            gpu = card.gpu
            return Device(base=Vfio(gpu=gpu.uuid, address=gpu.pci_address, number=name.number))
    return None


def _excluded(name: _Parsed | None, inventory: Inventory) -> ExcludedGpu | None:
    """Return the GPU that a name refers to if it is excluded."""
    of = _gpu_named(name)
    return next((gpu for gpu in inventory.excluded if of and gpu.minor == of.minor), None)


def _gpu_named(name: _Parsed | None) -> GpuName | MigName | None:
    """Return the part of a name that has its GPU's minor number; None without one."""
    of = name.of if isinstance(name, ShareName) else name
    return None if isinstance(of, VfioName) else of


def _base(name: GpuName | MigName, gpu: Gpu) -> Base | None:
    match name:
        case GpuName():
            return Whole(gpu=gpu.uuid)
        case MigName():
            return partition_named(gpu, name.profile_id, name.start)
        case _:
            assert_never(name)


def _divided_anew(name: str, division: Division | None) -> DeviceError:
    now = "not divided"
    if division is not None:
        most = "several" if division.combines else "only one"
        now = (
            f"divided into {division.count} shares by {division.strategy}, of which a request may "
            f"have {most}"
        )
    return DeviceError(
        f'device "{name}" is not on this node any more, where the device is {now}: the share '
        "config changed after the claim was allocated; delete the pod and its claim so that they "
        "are scheduled again"
    )


def recorded_gpus(devices: Iterable[DeviceRecord], inventory: Inventory) -> dict[GpuUuid, Gpu]:
    """Return the GPUs in a record by UUID, whatever their minor numbers are now.

    Raises DeviceError if one is gone, TransientError while this driver is still looking for it.
    """
    known = inventory.known()
    gpus: dict[GpuUuid, Gpu] = {}
    for entry in devices:
        gpu = known.get(entry.device.gpu)
        if gpu is None:
            what = f"{entry.device.gpu} (prepared as {entry.name})"
            raise _absent(what, entry.device.kind, inventory)
        gpus[gpu.uuid] = gpu
    return gpus


def _absent(what: str, kind: DeviceKind, inventory: Inventory) -> DriverError:
    if kind is DeviceKind.VFIO and inventory.problem is None:
        return DeviceError(
            f"{what} is not on this node any more, or GPUs are not offered to virtual machines "
            "here (--vfio); delete the pod and its claim so that they are scheduled again"
        )
    if inventory.driver_version is None:
        return TransientError(
            f"the GPU driver of this node does not answer, so {what} cannot be prepared yet; "
            "look at the log of this DRA driver on the node"
        )
    if inventory.sick:
        reasons = "; ".join(f"GPU {sick.index}: {sick.reason}" for sick in inventory.sick)
        if all(sick.is_lost for sick in inventory.sick):
            # Whichever of them it is, if any, it does not come back while this call waits.
            return DeviceError(
                f"{what} is lost ({reasons}); once the GPU is back, the pod starts by itself; to "
                "run it elsewhere, delete the pod and its claim"
            )
        return TransientError(f"{what} is not usable now ({reasons})")
    unclear = {gpu.uuid: gpu.mig.problem for gpu in inventory.gpus if gpu.mig and gpu.mig.problem}
    if unclear and kind is DeviceKind.MIG:
        reasons = "; ".join(f"{uuid}: {problem}" for uuid, problem in unclear.items())
        return TransientError(f"{what} is not usable now ({reasons})")
    names = ", ".join(gpu_name(gpu.minor) for gpu in inventory.gpus) or "no GPU"
    return DeviceError(
        f"{what} is not on this node, which has {names}; the GPUs changed after the claim was "
        "allocated: delete the pod and its claim so that they are scheduled again"
    )
