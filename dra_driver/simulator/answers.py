"""What a GPU of a gathered node answered (dra_driver/gathered.py), as the simulator's facts.

In: one GPU of the archive's `nvml.json`. Out: each fact that it reported, None for one that NVML
does not support, and nothing for what was not asked or was refused otherwise; refusals by function.
Each fact is what the simulated library answers that call with: the reverse of its getters
(simulator/nvml/*.c). What a GPU does not report in some states, such as remapped rows while it is
divided, counts as not asked.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dra_driver.errors import StateError
from dra_driver.simulator.layout import Fact, Text

SUCCESS, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 0, 3, 13
_GET = "nvmlDeviceGet"
_IDLE = 1
_AMPERE = 7

_FACTS: Mapping[Fact, tuple[str, str | int | None]] = MappingProxyType(
    {
        Fact.MINOR: ("MinorNumber", None),
        Fact.BRAND: ("Brand", None),
        Fact.ARCHITECTURE: ("Architecture", None),
        Fact.COMPUTE_MAJOR: ("CudaComputeCapability", 0),
        Fact.COMPUTE_MINOR: ("CudaComputeCapability", 1),
        Fact.PCI_DEVICE_ID: ("PciInfo_v3", "pciDeviceId"),
        Fact.PCI_SUBSYSTEM_ID: ("PciInfo_v3", "pciSubSystemId"),
        Fact.NUMA_NODE: ("NumaNodeId", None),
        Fact.MEMORY_TOTAL: ("MemoryInfo", "total"),
        Fact.MEMORY_RESERVED: ("MemoryInfo_v2", "reserved"),
        Fact.MEMORY_USED: ("MemoryInfo_v2", "used"),
        Fact.BAR1_TOTAL: ("BAR1MemoryInfo", "bar1Total"),
        Fact.BAR1_USED: ("BAR1MemoryInfo", "bar1Used"),
        Fact.ADDRESSING_MODE: ("AddressingMode", None),
        Fact.MODULE_ID: ("ModuleId", None),
        Fact.BOARD_ID: ("BoardId", None),
        Fact.MULTI_GPU_BOARD: ("MultiGpuBoard", None),
        Fact.VIRTUALIZATION_MODE: ("VirtualizationMode", None),
        Fact.ECC_CURRENT: ("EccMode", 0),
        Fact.ECC_PENDING: ("EccMode", 1),
        Fact.PERSISTENCE_MODE: ("PersistenceMode", None),
        Fact.COMPUTE_MODE: ("ComputeMode", None),
        Fact.MIG_CURRENT: ("MigMode", 0),
        Fact.MIG_PENDING: ("MigMode", 1),
        Fact.FABRIC_STATE: ("GpuFabricInfoV", "state"),
        Fact.FABRIC_STATUS: ("GpuFabricInfoV", "status"),
        Fact.FABRIC_CLIQUE: ("GpuFabricInfoV", "cliqueId"),
        Fact.FABRIC_HEALTH: ("GpuFabricInfoV", "healthMask"),
        Fact.EVENT_TYPES: ("SupportedEventTypes", None),
        Fact.SLOWDOWN: ("CurrentClocksThrottleReasons", None),
        Fact.TEMPERATURE: ("Temperature(0)", None),
        Fact.TEMPERATURE_SHUTDOWN: ("TemperatureThreshold(0)", None),
        Fact.TEMPERATURE_SLOWDOWN: ("TemperatureThreshold(1)", None),
        Fact.TEMPERATURE_MEMORY_MAX: ("TemperatureThreshold(2)", None),
        Fact.TEMPERATURE_MAX: ("TemperatureThreshold(3)", None),
        Fact.POWER_USAGE: ("PowerUsage", None),
        Fact.POWER_LIMIT: ("EnforcedPowerLimit", None),
        Fact.POWER_DEFAULT: ("PowerManagementDefaultLimit", None),
        Fact.POWER_MIN: ("PowerManagementLimitConstraints", 0),
        Fact.POWER_MAX: ("PowerManagementLimitConstraints", 1),
        Fact.CLOCK_GRAPHICS: ("ClockInfo(0)", None),
        Fact.CLOCK_SM: ("ClockInfo(1)", None),
        Fact.CLOCK_MEMORY: ("ClockInfo(2)", None),
        Fact.CLOCK_VIDEO: ("ClockInfo(3)", None),
        Fact.MAX_CLOCK_GRAPHICS: ("MaxClockInfo(0)", None),
        Fact.MAX_CLOCK_SM: ("MaxClockInfo(1)", None),
        Fact.MAX_CLOCK_MEMORY: ("MaxClockInfo(2)", None),
        Fact.MAX_CLOCK_VIDEO: ("MaxClockInfo(3)", None),
        Fact.APPLICATION_GRAPHICS: ("ApplicationsClock(0)", None),
        Fact.APPLICATION_MEMORY: ("ApplicationsClock(2)", None),
        Fact.PCIE_GENERATION: ("CurrPcieLinkGeneration", None),
        Fact.PCIE_GENERATION_MAX: ("MaxPcieLinkGeneration", None),
        Fact.PCIE_WIDTH: ("CurrPcieLinkWidth", None),
        Fact.PCIE_WIDTH_MAX: ("MaxPcieLinkWidth", None),
        Fact.FAN_SPEED: ("FanSpeed", None),
        Fact.PERFORMANCE_STATE: ("PerformanceState", None),
        Fact.UTILIZATION_GPU: ("UtilizationRates", "gpu"),
        Fact.UTILIZATION_MEMORY: ("UtilizationRates", "memory"),
        Fact.CORES: ("NumGpuCores", None),
        Fact.MEMORY_BUS_WIDTH: ("MemoryBusWidth", None),
        Fact.DISPLAY_MODE: ("DisplayMode", None),
        Fact.DISPLAY_ACTIVE: ("DisplayActive", None),
    }
)
"""Which call reports a fact, and in which part of its answer."""

_FIELDS: Mapping[Fact, int] = MappingProxyType(
    {
        Fact.ECC_UNCORRECTED_VOLATILE: 4,
        Fact.ECC_UNCORRECTED: 6,
        Fact.RETIRED_PAGES: 31,
        Fact.TEMPERATURE_MEMORY: 82,
        Fact.ROWS_CORRECTABLE: 142,
        Fact.ROWS_UNCORRECTABLE: 143,
        Fact.ROWS_PENDING: 144,
        Fact.ROWS_FAILED: 145,
        Fact.RECOVERY_ACTION: 230,
    }
)
_OF_THE_MOMENT = (f"{_GET}ProcessUtilization", f"{_GET}MemoryLimits_v1")
"""Calls whose refusal depends on the processes and control groups of the moment."""

_PARTS = ("nvlinks", "migProfiles", "gpuInstances", "computeProfiles", "migDevices")
"""Lists of answers beside the calls, in the order of asking."""

_FUNCTION = re.compile(r"nvml[A-Za-z0-9_]{1,59}")

_OF_ECC = (Fact.ECC_UNCORRECTED_VOLATILE, Fact.ECC_UNCORRECTED)
_OF_ROWS = (Fact.ROWS_CORRECTABLE, Fact.ROWS_UNCORRECTABLE, Fact.ROWS_PENDING, Fact.ROWS_FAILED)
_OF_LOAD = (Fact.UTILIZATION_GPU, Fact.UTILIZATION_MEMORY)

_TEXTS: Mapping[Text, str] = MappingProxyType(
    {
        Text.NAME: "Name",
        Text.SERIAL: "Serial",
        Text.BOARD_PART_NUMBER: "BoardPartNumber",
        Text.VBIOS: "VbiosVersion",
        Text.INFOROM_IMAGE: "InforomImageVersion",
        Text.INFOROM_OEM: "InforomVersion(0)",
        Text.INFOROM_ECC: "InforomVersion(1)",
        Text.INFOROM_POWER: "InforomVersion(2)",
        Text.GSP_FIRMWARE: "GspFirmwareVersion",
    }
)


class Answers:
    """The answers of one GPU. Raises StateError for what no `dra-driver gather` writes."""

    def __init__(self, gpu: object) -> None:
        self._gpu = mapping_of("a GPU", gpu)
        self._calls = mapping_of("calls", self._gpu.get("calls"))

    def part(self, name: str) -> list[dict[str, Any]]:
        """Return one of the lists beside the calls, such as nvlinks."""
        return list_of(name, self._gpu.get(name, []))

    def code(self, name: str) -> int | None:
        """Return the return code of a call nvmlDeviceGet…; None if it was not asked, or hung."""
        return code_of(self._calls.get(_GET + name, {}))

    def value(self, name: str, part: str | int | None = None) -> Any:
        """Return what a call answered, or a part of that; None if there was no answer."""
        value = value_of(self._calls.get(_GET + name, {}))
        if value is None or part is None:
            return value
        try:
            return value[part]
        except (LookupError, TypeError) as error:
            raise _error(_GET + name, value) from error

    def number(self, name: str, part: str | int | None = None) -> int | None:
        """Return a number of an answer; None if there is none."""
        value = self.value(name, part)
        return None if value is None else whole(name, value)

    def text(self, name: str) -> str | None:
        """Return the text that a call answered; None if there is none."""
        return self.text_of(name, None)

    def text_of(self, name: str, part: str | None) -> str | None:
        """Return a text of an answer; None if there is none."""
        value = self.value(name, part)
        if value is None or isinstance(value, str):
            return value
        raise _error(_GET + name, value)

    def facts(self) -> dict[Fact, int | None]:
        """Return the facts that it reported, and as None those that it does not have."""
        facts: dict[Fact, int | None] = {}
        for fact, (name, part) in _FACTS.items():
            if self.code(name) in (SUCCESS, NOT_SUPPORTED):
                facts[fact] = self.number(name, part)
        fields = self._fields()
        for fact, number in _FIELDS.items():
            if number in fields:
                facts[fact] = fields[number]
        for fact in self._kept_back(facts):
            facts.pop(fact, None)
        if Fact.MEMORY_USED not in facts:  # the older call counts what is reserved as used
            facts[Fact.MEMORY_USED] = self.number("MemoryInfo", "used")
            facts[Fact.MEMORY_RESERVED] = 0
        if facts.get(Fact.SLOWDOWN) == _IDLE:
            facts[Fact.SLOWDOWN] = 0
        return facts

    def _kept_back(self, facts: Mapping[Fact, int | None]) -> Iterator[Fact]:
        """Yield facts that the GPU may have, but does not report in its present state."""
        if facts.get(Fact.ECC_CURRENT) == 0:
            yield from _OF_ECC
        if facts.get(Fact.MIG_CURRENT) == 1:
            yield from (fact for fact in _OF_LOAD if facts.get(fact) is None)
        if self.is_divided:
            yield from (fact for fact in _OF_ROWS if facts.get(fact) is None)

    @property
    def is_mute(self) -> bool:
        """Whether no call about it succeeded, except the one for its handle."""
        codes = {call: code_of(answer) for call, answer in self._calls.items()}
        return all(
            code != SUCCESS for call, code in codes.items() if call != f"{_GET}HandleByIndex_v2"
        )

    @property
    def hung(self) -> str | None:
        """The function whose call hung, * if it was the first; nothing was asked afterwards."""
        for name, answer in self._asked():
            if mapping_of("an answer", answer).get("silent") is True:
                return "*" if self.is_mute else name
        return None

    @property
    def is_whole(self) -> bool:
        """Whether it was asked everything, and answered something."""
        return not self.is_mute and self.hung is None

    def _asked(self) -> Iterator[tuple[str, Any]]:
        """Yield all functions that were called for it, with the answers, in that order."""
        listed = [self._calls, *(each for part in _PARTS for each in self.part(part))]
        for name, answer in (item for answers in listed for item in answers.items()):
            function = name.partition("(")[0]
            if _FUNCTION.fullmatch(function):
                yield function, answer

    def answered(self) -> set[str]:
        """Return the functions that the library there has, according to the calls."""
        codes = [(name, code_of(answer)) for name, answer in self._asked()]
        return {name for name, code in codes if code not in (None, FUNCTION_NOT_FOUND)}

    @property
    def is_divided(self) -> bool:
        """Whether GPU instances are on it."""
        lists = (
            value_of(instance.get("nvmlDeviceGetGpuInstances")) for instance in self.instances()
        )
        return any(lists)

    def instances(self) -> list[dict[str, Any]]:
        """Return the GPU instances, by profile."""
        return self.part("gpuInstances")

    @property
    def ecc(self) -> bool | None:
        """Whether ECC is on; None for a card without it. Errors are counted only with ECC."""
        mode = self.number("EccMode", 0)
        counts = self._fields().get(_FIELDS[Fact.ECC_UNCORRECTED_VOLATILE]) is not None
        return bool(mode) if mode is not None else True if counts else None

    @property
    def remaps_rows(self) -> bool:
        """Whether the card replaces rows of its memory, as cards with ECC do from Ampere on."""
        if self.is_divided:
            return (self.number("Architecture") or 0) >= _AMPERE
        return self._fields().get(_FIELDS[Fact.ROWS_PENDING]) is not None

    def texts(self) -> dict[Text, str | None]:
        """Return the texts that it reported, and as None those that it does not have."""
        return {
            text: self.text(name)
            for text, name in _TEXTS.items()
            if self.code(name) in (SUCCESS, NOT_SUPPORTED)
        }

    def refusals(self) -> dict[str, int]:
        """Return by function the codes of failed calls, without those of unsupported ones."""
        codes: dict[str, set[int | None]] = {}
        for call, answer in self._calls.items():
            codes.setdefault(str(call).partition("(")[0], set()).add(code_of(answer))
        failed = {name: same.pop() for name, same in codes.items() if len(same) == 1}
        return {
            name: code
            for name, code in failed.items()
            if code is not None
            and code not in (SUCCESS, NOT_SUPPORTED)
            and (code == FUNCTION_NOT_FOUND or name not in _OF_THE_MOMENT)
        }

    def _fields(self) -> dict[int, int | None]:
        """Return the fields that it reported, None for those that it does not have."""
        numbers: dict[int, int | None] = {}
        values = value_of(self._calls.get(f"{_GET}FieldValues", {}))
        for field in list_of("fields", values or []):
            code = code_of(field)
            if code in (SUCCESS, NOT_SUPPORTED):
                number = whole("a field", field.get("field"))
                numbers[number] = whole("a field", field.get("value")) if code == SUCCESS else None
        return numbers


def code_of(answer: object) -> int | None:
    """Return the return code of an answer; None if it has none."""
    code = mapping_of("an answer", answer).get("code")
    return None if code is None else whole("a return code", code)


def value_of(answer: object) -> Any:
    """Return what a call answered; None if it did not succeed."""
    if answer is None or code_of(answer) != SUCCESS:
        return None
    return mapping_of("an answer", answer).get("value")


def mapping_of(what: str, value: object) -> dict[str, Any]:
    """Return a value that has to be a mapping."""
    if not isinstance(value, dict):
        raise _error(what, value)
    return value


def list_of(what: str, value: object) -> list[dict[str, Any]]:
    """Return a value that has to be a list of mappings."""
    if not isinstance(value, list):
        raise _error(what, value)
    return [mapping_of(what, entry) for entry in value]


def whole(what: str, value: object) -> int:
    """Return a value that has to be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise _error(what, value)
    return value


def _error(what: str, value: object) -> StateError:
    return StateError(f"{what} in it cannot be {str(value)[:80]!r}")
