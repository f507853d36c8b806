"""How a share config divides the devices of this node. Pure.

In: the config (shares/config.py), and the inventory. Out: a division for each device that it
chooses, and why others that it chooses cannot be divided.

As with the device plugin, `nvidia.com/gpu` are the GPUs that are not in MIG mode, and
`nvidia.com/mig-<profile>` the MIG devices that exist and were made by others; under its MIG
strategy `single` these are `nvidia.com/gpu` instead. MPS serves a limited number of clients of a
device (NVIDIA's MPS documentation: 16 before Volta, then 48, 60 from CUDA 13.1; on a MIG device in
proportion to its compute slices), so a division into more shares would leave tenants without
service. Before Volta, MPS limits neither memory nor SMs of a client (ibid.;
dra-driver-nvidia-gpu#974), so MPS divides such a card only if the config lists it in `devices`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from dra_driver.devices.device import Base, Device, Mig, Whole, mig_of, place_of, profile_of
from dra_driver.devices.mig.partitions import found_by_others
from dra_driver.devices.model import Gpu, Inventory, MigDevice
from dra_driver.devices.shares import LIMITS_SINCE, MPS_SINCE, Division, ShareStrategy
from dra_driver.shares.layout import ShareLayout
from resource_nvidia_com.device_plugin import (
    Compute,
    Memory,
    NodeConfig,
    SharedBy,
    SharedResource,
)
from resource_nvidia_com.resource_names import GPU, PREFIX

_MORE_CLIENTS = (13, 1)
_COMPUTE_SLICES = 7
_NO_LIMITS = "MPS limits neither memory nor SMs on cards older than Volta"
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

    @property
    def words(self) -> str:
        """The name of its GPU, for people."""
        return f"GPU {self.gpu.index} ({self.gpu.product_name})"


def divide(config: NodeConfig, inventory: Inventory) -> ShareLayout:
    """Return how a config divides the devices of a node."""
    divisions: dict[Base, Division] = {}
    refused: dict[Base, str] = {}
    unserved: dict[Base, str] = {}
    remarks: list[str] = []
    for resource in config.resources:
        candidates = list(_candidates(resource.name, config, inventory))
        if not candidates and _can_be_made(resource.name, inventory):
            remarks.append(
                f"{resource.name} is not shared: its MIG devices are made on demand, for one claim "
                "each; only those that exist are shared: make them by hand (--mig existing)"
            )
        unlimited = [each for each in candidates if _is_unlimited(config, each)]
        if not isinstance(resource.devices, tuple):
            remarks += (_left_whole(resource, each) for each in unlimited)
            candidates = [each for each in candidates if each not in unlimited]
            if resource.served_as == resource.name:
                unserved |= dict.fromkeys((each.place for each in unlimited), resource.name)
        chosen = list(_chosen(resource, candidates, remarks))
        reasons = {each: _why_not(config, resource, each, inventory) for each in chosen}
        refused |= {each.place: reason for each, reason in reasons.items() if reason is not None}
        fitting = [each for each, reason in reasons.items() if reason is None]
        divisions |= dict.fromkeys((each.place for each in fitting), _division(config, resource))
        remarks += _of_several(config, resource, fitting)
        remarks += (
            f"{resource.name}: each tenant can use all of {each.words}: {_NO_LIMITS}"
            for each in fitting
            if each in unlimited
        )
    serving = {
        candidate.place: GPU
        for candidate in _candidates(GPU, config, inventory)
        if candidate.mig is not None and candidate.place not in divisions
    }
    return ShareLayout(
        divisions=divisions,
        packed=config.packed,
        refused=refused,
        serving=serving,
        unserved=unserved,
        remarks=tuple(remarks),
    )


def _can_be_made(name: str, inventory: Inventory) -> bool:
    """Tell whether a GPU in MIG mode has the profile of a resource name."""
    return any(
        name == _mig_name(profile.name)
        for gpu in inventory.gpus
        if gpu.was_put_in_mig_mode and gpu.mig
        for profile in gpu.mig.profiles
    )


def _division(config: NodeConfig, resource: SharedResource) -> Division:
    is_mps = config.shared_by is SharedBy.MPS
    return Division(
        count=resource.replicas,
        strategy=ShareStrategy.MPS if is_mps else ShareStrategy.TIME_SLICING,
        served_as=resource.served_as,
        combines=not config.fail_requests_greater_than_one,
        free_compute=is_mps and config.compute is Compute.FREE,
        equal_memory=resource.memory is Memory.EQUAL,
    )


def _is_unlimited(config: NodeConfig, candidate: _Candidate) -> bool:
    """Tell whether the config asks for MPS on a card on which MPS limits nothing."""
    return config.shared_by is SharedBy.MPS and candidate.gpu.cuda_compute_capability < LIMITS_SINCE


def _left_whole(resource: SharedResource, candidate: _Candidate) -> str:
    users = "only claims" if resource.served_as == resource.name else "pods"
    return (
        f"{resource.name}: {candidate.words} is not divided, because {_NO_LIMITS}: {users} can "
        "have it, as a whole; to divide it all the same, list this node's GPUs in `devices`"
    )


def _of_several(
    config: NodeConfig, resource: SharedResource, devices: Sequence[_Candidate]
) -> Iterator[str]:
    """Yield advice on requests for several shares, if this node cannot serve all of them."""
    is_mps = config.shared_by is SharedBy.MPS
    if is_mps and not config.fail_requests_greater_than_one and len(devices) > 1:
        yield (
            f"{resource.served_as}: several shares of one request have to be of one device under"
            f" MPS, and this node divides {len(devices)}: the scheduler does not know that for"
            " requests in a container's limits, which belong on nodes with one divided device;"
            " here, use claims with `constraints: [{matchAttribute: gpu.nvidia.com/uuid}]`"
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
    resource: SharedResource, candidates: Sequence[_Candidate], remarks: list[str]
) -> Iterable[_Candidate]:
    devices = resource.devices
    if devices == "all":
        return candidates
    if isinstance(devices, int):
        if devices > len(candidates):
            remarks.append(f"{resource.name}: {devices} to be divided, {len(candidates)} there")
        return islice(candidates, devices)
    known = {name: _referred(name, candidates) for name in devices}
    remarks += [
        f"{resource.name}: no device {name}" for name, each in known.items() if each is None
    ]
    return {each.place: each for each in known.values() if each is not None}.values()


def _referred(name: str, candidates: Iterable[_Candidate]) -> _Candidate | None:
    for each in candidates:
        index = f"{each.gpu.index}" if each.mig is None else f"{each.gpu.index}:{each.mig}"
        if name.lower() in (index, each.uuid.lower()):
            return each
    return None


def _why_not(
    config: NodeConfig, resource: SharedResource, chosen: _Candidate, inventory: Inventory
) -> str | None:
    if config.shared_by is not SharedBy.MPS:
        return None
    name = chosen.gpu.product_name
    if chosen.gpu.cuda_compute_capability < MPS_SINCE:
        return f"the share config wants it shared by MPS, which {name} does not support"
    most = _most_clients(chosen, inventory)
    if resource.replicas > most:
        return (
            f"the share config divides {resource.name} into {resource.replicas} replicas under "
            f"MPS, but MPS serves at most {most} clients of it ({name}): use {most} or fewer"
        )
    return None


def _most_clients(chosen: _Candidate, inventory: Inventory) -> int:
    if chosen.gpu.cuda_compute_capability < LIMITS_SINCE:
        return 16
    most = 60 if (inventory.cuda_version or (0, 0)) >= _MORE_CLIENTS else 48
    if isinstance(chosen.base, Mig):
        return max(1, most * profile_of(chosen.gpu, chosen.base).compute_slices // _COMPUTE_SLICES)
    return most
