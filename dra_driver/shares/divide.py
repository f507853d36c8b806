"""How a share config divides the devices of this node. Pure.

In: the config (shares/config.py), and the inventory. Out: a division for each device that it
chooses, and why others that it chooses cannot be divided.

As with the device plugin, `nvidia.com/gpu` are the GPUs that are not in MIG mode, and
`nvidia.com/mig-<profile>` the MIG devices that exist and were made by others; under its MIG
strategy `single` these are `nvidia.com/gpu` instead. MPS serves a limited number of clients of a
device (NVIDIA's MPS documentation: 16 before Volta, then 48, 60 from CUDA 13.1; on a MIG device in
proportion to its compute slices), so a division into more shares would leave tenants without
service.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import assert_never

from msgspec import Struct

from dra_driver.devices.device import Base, Device, Mig, Whole, mig_of, place_of, profile_of
from dra_driver.devices.mig.partitions import found_by_others
from dra_driver.devices.model import Gpu, Inventory, MigDevice
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.shares.layout import ShareLayout
from resource_nvidia_com.device_plugin import (
    Compute,
    Memory,
    NodeConfig,
    SharedBy,
    SharedResource,
)
from resource_nvidia_com.resource_names import GPU, PREFIX
from resource_nvidia_com.share_devices import (
    AllDevices,
    DeviceCount,
    DeviceList,
    DeviceReference,
    GpuIndex,
    GpuUuid,
    MigIndex,
    MigUuid,
)

_VOLTA = (7, 0)
_MPS = (3, 5)
_MORE_CLIENTS = (13, 1)
_COMPUTE_SLICES = 7
_SINGLE = "single"
"""The MIG strategy under which MIG devices have the resource name of GPUs."""


class _Candidate(Struct, frozen=True, kw_only=True):
    """A device of a resource. `index` is NVML's for its GPU; `mig` is that of a MIG device."""

    gpu: Gpu
    base: Base
    mig: int | None = None

    @property
    def place(self) -> Base:
        """The key of its division."""
        return place_of(self.base)

    @property
    def uuid(self) -> str:
        """The UUID of the device."""
        return Device(base=self.base).uuid or ""


def divide(config: NodeConfig, inventory: Inventory) -> ShareLayout:
    """Return how a config divides the devices of a node."""
    divisions: dict[Base, Division] = {}
    refused: dict[Base, str] = {}
    missing: list[str] = []
    for resource in config.resources:
        candidates = list(_candidates(resource.name, config, inventory))
        if not candidates and _can_be_made(resource.name, inventory):
            missing.append(
                f"{resource.name} is not shared: its MIG devices are made on demand, for one claim "
                "each; only those that exist are shared: make them by hand (--mig existing)"
            )
        chosen = _chosen(resource, candidates, missing)
        reasons = {each: _why_not(config, resource, each, inventory) for each in chosen}
        refused |= {each.place: reason for each, reason in reasons.items() if reason is not None}
        fitting = [each for each, reason in reasons.items() if reason is None]
        division = _division(config, resource, fitting)
        divisions |= {each.place: division for each in fitting}
    serving = {
        candidate.place: GPU
        for candidate in _candidates(GPU, config, inventory)
        if candidate.mig is not None and candidate.place not in divisions
    }
    return ShareLayout(
        divisions=divisions, refused=refused, serving=serving, missing=tuple(missing)
    )


def _can_be_made(name: str, inventory: Inventory) -> bool:
    """Tell whether a GPU in MIG mode has the profile of a resource name."""
    return any(
        name == _mig_name(profile.name)
        for gpu in inventory.gpus
        if gpu.was_put_in_mig_mode and gpu.mig
        for profile in gpu.mig.profiles
    )


def _division(
    config: NodeConfig, resource: SharedResource, devices: Sequence[_Candidate]
) -> Division:
    is_mps = config.shared_by is SharedBy.MPS
    combines = not config.fail_requests_greater_than_one
    gpus = tuple(sorted(device.gpu.uuid for device in devices if isinstance(device.base, Whole)))
    return Division(
        count=resource.replicas,
        strategy=ShareStrategy.MPS if is_mps else ShareStrategy.TIME_SLICING,
        served_as=resource.served_as,
        combines=combines,
        free_compute=is_mps and config.compute is Compute.FREE,
        equal_memory=resource.memory is Memory.EQUAL,
        together=gpus if is_mps and combines and len(gpus) > 1 else (),
    )


def _candidates(name: str, config: NodeConfig, inventory: Inventory) -> Iterator[_Candidate]:
    """Yield the devices of a resource, in NVML's order."""
    is_single = config.mig_strategy == _SINGLE
    for gpu in sorted(inventory.gpus, key=lambda each: each.index):
        if name == GPU and not gpu.was_put_in_mig_mode:
            yield _Candidate(gpu=gpu, base=Whole(gpu=gpu.uuid))
        devices = [instance for instance in found_by_others(gpu) if isinstance(instance, MigDevice)]
        for index, device in enumerate(devices):
            if name == (GPU if is_single else _mig_name(device.profile.name)):
                yield _Candidate(gpu=gpu, base=mig_of(device), mig=index)


def _mig_name(profile: str) -> str:
    """Return the resource name of MIG devices of a profile, as the device plugin names it."""
    return f"{PREFIX}mig-{profile.replace('+', '.')}"


def _chosen(
    resource: SharedResource, candidates: Sequence[_Candidate], missing: list[str]
) -> Iterable[_Candidate]:
    match resource.devices:
        case AllDevices():
            return candidates
        case DeviceCount(count=count):
            if count > len(candidates):
                missing.append(f"{resource.name}: {count} to be divided, {len(candidates)} there")
            return islice(candidates, count)
        case DeviceList(references=references):
            known = {reference: _referred(reference, candidates) for reference in references}
            missing += [
                f"{resource.name}: no device {name}" for name, each in known.items() if each is None
            ]
            return {each.place: each for each in known.values() if each is not None}.values()
        case _:
            assert_never(resource.devices)


def _referred(reference: DeviceReference, candidates: Iterable[_Candidate]) -> _Candidate | None:
    for candidate in candidates:
        match reference:
            case GpuIndex(index=index):
                is_it = candidate.mig is None and candidate.gpu.index == index
            case MigIndex(gpu=gpu, mig=mig):
                is_it = (candidate.gpu.index, candidate.mig) == (gpu, mig)
            case GpuUuid(uuid=uuid) | MigUuid(uuid=uuid):
                is_it = candidate.uuid.lower() == uuid.lower()
            case _:
                assert_never(reference)
        if is_it:
            return candidate
    return None


def _why_not(
    config: NodeConfig, resource: SharedResource, chosen: _Candidate, inventory: Inventory
) -> str | None:
    if config.shared_by is not SharedBy.MPS:
        return None
    name = chosen.gpu.product_name
    if chosen.gpu.cuda_compute_capability < _MPS:
        return f"the share config wants it shared by MPS, which {name} does not support"
    most = _most_clients(chosen, inventory)
    if resource.replicas > most:
        return (
            f"the share config divides {resource.name} into {resource.replicas} replicas under "
            f"MPS, but MPS serves at most {most} clients of it ({name}): use {most} or fewer"
        )
    return None


def _most_clients(chosen: _Candidate, inventory: Inventory) -> int:
    if chosen.gpu.cuda_compute_capability < _VOLTA:
        return 16
    most = 60 if (inventory.cuda_version or (0, 0)) >= _MORE_CLIENTS else 48
    if isinstance(chosen.base, Mig):
        return max(1, most * profile_of(chosen.gpu, chosen.base).compute_slices // _COMPUTE_SLICES)
    return most
