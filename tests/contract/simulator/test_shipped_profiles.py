"""Every shipped profile through pynvml: each card says what its file says, and lacks the rest."""

from collections.abc import Callable

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.simulator import profile as profiles


def said(question: Callable[[object], object], handle: object) -> object:
    """NVML's answer, or None for what the card does not have."""
    try:
        return question(handle)
    except pynvml.NVMLError_NotSupported:
        return None


@pytest.mark.parametrize("name", profiles.names())
def test_every_shipped_profile_answers_every_fact(
    name: str, make_machine: MakeMachine, nvml: Nvml
) -> None:
    machine = make_machine(name)
    in_order = sorted(machine.gpus, key=lambda gpu: gpu.pci)
    with nvml(machine):
        assert pynvml.nvmlSystemGetDriverVersion() == machine.description.driver_version
        major, minor = machine.description.profile.cuda_version.split(".")
        assert pynvml.nvmlSystemGetCudaDriverVersion() == 1000 * int(major) + 10 * int(minor)
        assert pynvml.nvmlDeviceGetCount() == len(in_order)
        for index, gpu in enumerate(in_order):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            card = gpu.card
            assert pynvml.nvmlDeviceGetIndex(handle) == index
            assert pynvml.nvmlDeviceGetMinorNumber(handle) == gpu.minor
            assert pynvml.nvmlDeviceGetUUID(handle) == gpu.uuid
            assert pynvml.nvmlDeviceGetName(handle) == card.name
            assert said(pynvml.nvmlDeviceGetSerial, handle) == (gpu.serial or None)
            assert said(pynvml.nvmlDeviceGetBoardPartNumber, handle) == card.board_part_number
            assert pynvml.nvmlDeviceGetBrand(handle) == profiles.BRANDS[card.brand]
            assert (
                pynvml.nvmlDeviceGetArchitecture(handle)
                == profiles.ARCHITECTURES[card.architecture]
            )
            assert (
                "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))
                == card.compute_capability
            )
            pci = pynvml.nvmlDeviceGetPciInfo(handle)
            assert pci.busId == gpu.nvml_bus_id
            assert pci.busIdLegacy == gpu.pci.upper()
            assert pci.pciDeviceId == int(card.device_id, 16) << 16 | 0x10DE
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            assert memory.total == second.total == card.memory.total_mib << 20
            assert memory.used == second.reserved + second.used
            assert second.reserved == card.memory.reserved_mib << 20
            assert second.used == sum(resident.memory_mib * 1024**2 for resident in gpu.residents)
            assert memory.free + memory.used == memory.total
            assert pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total == (
                card.memory.bar1_mib << 20
            )
            assert said(pynvml.nvmlDeviceGetEccMode, handle) == (
                None if card.ecc is None else [card.ecc, card.ecc]
            )
            assert pynvml.nvmlDeviceGetVirtualizationMode(handle) == 0
