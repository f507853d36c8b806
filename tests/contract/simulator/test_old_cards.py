"""Cards before Turing: what NVML says of them, and what it answers where they lack a fact."""

from collections.abc import Callable, Iterator

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine, Nvml
from dra_driver.errors import ConfigError, SetupError
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine

Ask = Callable[[object], object]

PAIR = """
driver_version: 535.261.03
cuda_version: "12.2"
gpus:
  - {card: v100-sxm2-16gb, pci: "0000:06:00.0", minor: 0, nvlinks: %s}
  - {card: v100-sxm2-16gb, pci: "0000:07:00.0", minor: 1, nvlinks: %s}
"""
MX150_LACKS: dict[str, Ask] = {
    "power draw": pynvml.nvmlDeviceGetPowerUsage,
    "power limit": pynvml.nvmlDeviceGetPowerManagementLimit,
    "enforced power limit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "power limits": pynvml.nvmlDeviceGetPowerManagementLimitConstraints,
    "power management": pynvml.nvmlDeviceGetPowerManagementMode,
    "ECC mode": pynvml.nvmlDeviceGetEccMode,
    "ECC errors": lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
    "retired pages": lambda handle: pynvml.nvmlDeviceGetRetiredPages(handle, 0),
    "remapped rows": pynvml.nvmlDeviceGetRemappedRows,
    "serial number": pynvml.nvmlDeviceGetSerial,
    "part number": pynvml.nvmlDeviceGetBoardPartNumber,
    "InfoROM": pynvml.nvmlDeviceGetInforomImageVersion,
    "ECC object": lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, 1),
    "fan": pynvml.nvmlDeviceGetFanSpeed,
    "application clock": lambda handle: pynvml.nvmlDeviceGetApplicationsClock(handle, 0),
    "default clock": lambda handle: pynvml.nvmlDeviceGetDefaultApplicationsClock(handle, 2),
    "boost clock": lambda handle: pynvml.nvmlDeviceGetMaxCustomerBoostClock(handle, 0),
    "highest temperature": lambda handle: pynvml.nvmlDeviceGetTemperatureThreshold(handle, 3),
    "module": pynvml.nvmlDeviceGetModuleId,
    "MIG mode": pynvml.nvmlDeviceGetMigMode,
    "MIG profiles": lambda handle: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0),
    "addressing mode": pynvml.nvmlDeviceGetAddressingMode,
    "NVLink": lambda handle: pynvml.nvmlDeviceGetNvLinkState(handle, 0),
    "GSP firmware": pynvml.nvmlDeviceGetGspFirmwareVersion,
    "JPEG engine": pynvml.nvmlDeviceGetJpgUtilization,
    "optical flow": pynvml.nvmlDeviceGetOfaUtilization,
}


@pytest.fixture
def laptop(make_machine: MakeMachine, nvml: Nvml) -> Iterator[Machine]:
    machine = make_machine("laptop")
    with nvml(machine):
        yield machine


@pytest.mark.parametrize("fact", MX150_LACKS)
def test_a_laptop_gpu_does_not_support_most_facts(laptop: Machine, fact: str) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        MX150_LACKS[fact](handle)


def test_a_laptop_gpu_says_what_it_is(laptop: Machine) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA GeForce MX150"
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (0x1D1010DE, 0x17011D72)
    assert pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle) == 4
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 2 << 30
    assert pynvml.nvmlDeviceGetTemperature(handle, 0) == 41
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 8
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    assert pynvml.nvmlDeviceGetComputeMode(handle) == 0
    ecc = pynvml.nvmlEventTypeSingleBitEccError | pynvml.nvmlEventTypeDoubleBitEccError
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle) & ecc == 0


@pytest.mark.parametrize(("name", "mib"), [("v100x8", 32768), ("v100-16x8", 16384)])
def test_eight_v100_are_joined_by_nvlink_as_in_a_dgx_1(
    name: str, mib: int, make_machine: MakeMachine, nvml: Nvml
) -> None:
    with nvml(make_machine(name)):
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        addresses = [pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles]
        for index, handle in enumerate(handles):
            assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (7, 0)
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == mib << 20
            assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [150000, 300000]
            assert pynvml.nvmlDeviceGetEccMode(handle) == [1, 1]
            assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
            for absent in (
                pynvml.nvmlDeviceGetMigMode,
                pynvml.nvmlDeviceGetRemappedRows,
                pynvml.nvmlDeviceGetAddressingMode,
                pynvml.nvmlDeviceGetJpgUtilization,
                lambda one: pynvml.nvmlDeviceGetNvLinkState(one, 6),
            ):
                with pytest.raises(pynvml.NVMLError_NotSupported):
                    absent(handle)  # type: ignore[operator]
            peers = {
                pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId for link in range(6)
            }
            assert {pynvml.nvmlDeviceGetNvLinkVersion(handle, link) for link in range(6)} == {2}
            assert {
                pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) for link in range(6)
            } == {pynvml.NVML_NVLINK_DEVICE_TYPE_GPU}
            assert len(peers) == 4
            for other, address in enumerate(addresses):
                if other != index:
                    status = pynvml.nvmlDeviceGetP2PStatus(
                        handle, handles[other], pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                    )
                    assert (status == pynvml.NVML_P2P_STATUS_OK) == (address in peers)


def states(index: int) -> list[int]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return [pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in range(6)]


def test_a_link_goes_down_at_both_of_its_ends(make_machine: MakeMachine, nvml: Nvml) -> None:
    machine = make_machine("v100x8")
    first, second = machine.find("0").uuid, machine.find("1").uuid
    with nvml(machine):
        machine.set_nvlink(first, 0, is_up=False)
        assert (states(0), states(1)) == ([0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1])
        one, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        joined = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        assert joined == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        machine.set_nvlink(second, 0, is_up=True)
        assert states(0) == states(1) == [1] * 6
        machine.set_nvlink(second, 0, is_up=False)
        machine.reset_gpu(first)
        assert states(0) == states(1) == [1] * 6
        with pytest.raises(SetupError, match="the card has no NVLink 6; it has 6"):
            machine.set_nvlink(first, 6, is_up=False)


@pytest.mark.parametrize(("name", "switched"), [("h100x8", 18), ("v100x8", 0)])
def test_a_field_counts_the_links_to_switches(
    name: str, switched: int, make_machine: MakeMachine, nvml: Nvml
) -> None:
    with nvml(make_machine(name)):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        field = pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
        assert (value.nvmlReturn, value.value.uiVal) == (pynvml.NVML_SUCCESS, switched)


def test_an_nvlink_has_to_be_named_at_both_ends() -> None:
    text = PAIR % ('["0000:07:00.0"]', "[%s]")
    assert len(profiles.parse(text % '"0000:06:00.0"', origin="pair").gpus) == 2
    with pytest.raises(ConfigError, match=r"1 NVLinks lead to 0000:07:00\.0, and 0 back"):
        profiles.parse(text % "", origin="half")
    with pytest.raises(ConfigError, match="7 NVLinks, its card has 6"):
        profiles.parse(text % ", ".join(['"0000:06:00.0"'] * 7), origin="many")
