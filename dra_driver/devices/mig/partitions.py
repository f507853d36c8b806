"""What this driver can divide a GPU into, and what stands in the way. Pure.

What is on the GPU now makes no difference. Only profiles whose compute instance takes the whole GPU
instance count. A card that changes its MIG mode by a reset (Ampere) is divided only while the mode
is on, because nobody resets a GPU of a running node. Other cards change it without a reset, but
only while no process has the GPU open, including this one. A vGPU, which a host gives to a virtual
machine, is divided by the host.
"""

from dra_driver.devices.device import Mig, mig_at
from dra_driver.devices.model import Gpu, Instance, MigMode


def why_not_partitioned(gpu: Gpu) -> str | None:
    """Return why this driver makes no MIG devices on a GPU that supports MIG; None if it does.

    Also None for a card without MIG, which needs no reason.
    """
    mig = gpu.mig
    if mig is None:
        return None
    if mig.problem is not None:
        return mig.problem
    if mig.is_virtual:
        return "it is a vGPU, which only its host can divide"
    if not mig.profiles:
        return "NVML reports no MIG profile for it"
    if mig.needs_reset and gpu.mig_mode is not MigMode.ENABLED:
        return (
            "MIG mode is enabled, but takes effect only after a reset; end what uses the GPU and"
            f" reset it (nvidia-smi -i {gpu.pci_address} --gpu-reset), or reboot the node"
            if mig.pending_mode is MigMode.ENABLED
            else "MIG mode is off, and this card changes it only by a reset; to divide it, drain"
            f" the node, run nvidia-smi -i {gpu.pci_address} -mig 1 and reset the GPU"
        )
    return None


def awaits_reset(gpu: Gpu) -> bool:
    """Tell whether somebody has set another MIG mode that a reset of the GPU puts in force."""
    return gpu.mig is not None and gpu.mig.needs_reset and awaits_mode(gpu)


def awaits_mode(gpu: Gpu) -> bool:
    """Tell whether somebody has set another MIG mode that is not in force yet, for any reason."""
    mig = gpu.mig
    return mig is not None and not mig.is_virtual and mig.pending_mode is not gpu.mig_mode


def is_partitioned(gpu: Gpu) -> bool:
    """Tell whether this driver makes MIG devices on the GPU when claims ask for them."""
    return gpu.mig is not None and why_not_partitioned(gpu) is None


def is_whole(gpu: Gpu) -> bool:
    """Tell whether an empty GPU can be given out whole, after turning off MIG mode if need be."""
    if gpu.mig_mode is not MigMode.ENABLED:
        return True
    return gpu.mig is not None and not gpu.mig.needs_reset and is_partitioned(gpu)


def partitions(gpu: Gpu) -> tuple[Mig, ...]:
    """Return every MIG device that could be made on an empty GPU; none if it is not partitioned."""
    if gpu.mig is None or not is_partitioned(gpu):
        return ()
    return tuple(
        mig_at(gpu.uuid, profile, placement)
        for profile in gpu.mig.profiles
        for placement in profile.placements
    )


def found_by_others(gpu: Gpu) -> tuple[Instance, ...]:
    """Return the GPU instances that this driver did not make."""
    return tuple(entry for entry in gpu.mig_instances if not entry.made_here)


def made_here(gpu: Gpu) -> tuple[Instance, ...]:
    """Return the GPU instances that this driver made for claims, or is making."""
    return tuple(entry for entry in gpu.mig_instances if entry.made_here)


def partition_named(gpu: Gpu, profile_id: int, start: int) -> Mig | None:
    """Return the MIG device that a device name refers to, made or not; None if the card has none.

    Static instances on GPUs that this driver does not divide are found too.
    """
    profiles = () if gpu.mig is None else gpu.mig.profiles
    for profile in profiles:
        for placement in profile.placements:
            if (profile.id, placement.start) == (profile_id, start):
                return mig_at(gpu.uuid, profile, placement)
    return None
