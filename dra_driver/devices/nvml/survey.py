"""What NVML says about a machine, call by call with return codes; part of the adapter to pynvml.

In: the open library. Out: one document of plain values, for people who are not at the machine
(`dra-driver gather`). Nothing is interpreted and nothing is changed: an answer is
`{"code": 0, "value": …}`, a refusal is `{"code": 3}` (nvmlReturn_t), and a call that hung, or that
is about a GPU that hangs, is `{"silent": true}`. Calls are named as the library exports them, with
the arguments after the handle in parentheses. The calls are those that the driver makes, and those
behind what nvidia-smi shows about a card. Processes are only counted.
"""

from collections.abc import Callable, Iterable, Iterator
from ctypes import byref, c_uint
from typing import Any

import pynvml

from dra_driver.devices.nvml.calls import NVML, NvmlCalls
from dra_driver.devices.nvml.health import field_number
from dra_driver.devices.nvml.load import memory_v2
from dra_driver.devices.nvml.mig import gpu_instances
from dra_driver.devices.nvml.nvlink import fabric_info
from dra_driver.errors import SilenceError

Answer = dict[str, Any]
Document = dict[str, Any]

_SUCCESS = pynvml.NVML_SUCCESS
_SILENT: Answer = {"silent": True}
_PLAIN = (
    "Name", "UUID", "Serial", "BoardPartNumber", "VbiosVersion", "InforomImageVersion",
    "GspFirmwareVersion", "MinorNumber", "Brand", "Architecture", "CudaComputeCapability",
    "ModuleId", "BoardId", "MultiGpuBoard", "NumaNodeId", "VirtualizationMode", "PersistenceMode",
    "ComputeMode", "NumGpuCores", "MemoryBusWidth", "AddressingMode", "EccMode", "DisplayMode",
    "DisplayActive", "PowerUsage", "EnforcedPowerLimit", "PowerManagementDefaultLimit",
    "PowerManagementLimitConstraints", "CurrPcieLinkGeneration", "MaxPcieLinkGeneration",
    "CurrPcieLinkWidth", "MaxPcieLinkWidth", "FanSpeed", "PerformanceState", "MigMode",
    "MaxMigDeviceCount", "SupportedEventTypes", "CurrentClocksThrottleReasons", "RemappedRows",
)  # fmt: skip
"""Calls nvmlDeviceGet… about a GPU that answer with numbers or texts."""

_NUMBERED = (
    ("InforomVersion", range(3)),
    ("Temperature", range(1)),
    ("TemperatureThreshold", range(4)),
    ("ClockInfo", range(4)),
    ("MaxClockInfo", range(4)),
    ("ApplicationsClock", (0, 2)),
)
"""Calls nvmlDeviceGet… with one more argument, and its values."""

_STRUCTURES = (
    ("PciInfo_v3", ("busId", "pciDeviceId", "pciSubSystemId")),
    ("MemoryInfo", ("total", "used")),
    ("BAR1MemoryInfo", ("bar1Total", "bar1Used")),
    ("UtilizationRates", ("gpu", "memory")),
)
"""Calls nvmlDeviceGet… that answer with a structure, and which of its fields are kept."""

_PROCESSES = ("Compute", "Graphics", "MPSCompute")
_FIELDS = (
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    pynvml.NVML_FI_DEV_REMAPPED_COR,
    pynvml.NVML_FI_DEV_REMAPPED_UNC,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
)
_CPU_WORDS = 16
_PROFILE = (
    "id", "sliceCount", "instanceCount", "multiprocessorCount", "copyEngineCount", "decoderCount",
    "encoderCount", "jpegCount", "ofaCount", "memorySizeMB",
)  # fmt: skip


def survey(calls: NvmlCalls) -> Document:
    """Return what NVML says about the driver and each GPU, by index. The library must be open."""
    asked = _Asked(calls, NVML)
    for name in ("DriverVersion", "NVMLVersion", "CudaDriverVersion"):
        asked(f"nvmlSystemGet{name}", getattr(pynvml, f"nvmlSystemGet{name}"))
    number = asked("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount).get("value", 0)
    return {
        "system": asked.answers,
        "gpus": [_Gpu(calls, index).look() for index in range(number)],
        "topology": list(_topology(calls, number)),
    }


def _topology(calls: NvmlCalls, number: int) -> Iterator[Answer]:
    def level(first: int, other: int) -> int:
        handles = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (first, other))
        return int(pynvml.nvmlDeviceGetTopologyCommonAncestor(*handles))

    for here in range(number):
        asked = _Asked(calls, str(here))
        for other in range(here + 1, number):
            answer = asked("", level, here, other)
            yield {"gpus": [here, other], "nvmlDeviceGetTopologyCommonAncestor": answer}


class _Asked:
    """Makes calls about one subject and keeps the answers; a call that hangs is given up on."""

    def __init__(self, calls: NvmlCalls, subject: str) -> None:
        self._calls = calls
        self._subject = subject
        self.answers: dict[str, Answer] = {}

    def __call__(self, name: str, call: Callable[..., Any], *args: object) -> Answer:
        """Return the answer to a call, and keep it by its name if it has one."""
        try:
            value = self._calls.about(self._subject, lambda: _plain(call(*args)))
            answer: Answer = {"code": _SUCCESS, "value": value}
        except SilenceError:
            answer = _SILENT
        except pynvml.NVMLError as error:
            answer = {"code": int(error.value)}
        if name:
            self.answers[name] = answer
        return answer


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _part(structure: Any, names: Iterable[str]) -> Document:
    return {name: _plain(getattr(structure, name)) for name in names}


class _Gpu:
    """One GPU. If it has no handle, it is asked nothing else."""

    def __init__(self, calls: NvmlCalls, index: int) -> None:
        self._index = index
        self._asked = _Asked(calls, str(index))
        self._handle: Any = None

    def look(self) -> Document:
        """Return the GPU's part of the document."""
        handle = self._asked("nvmlDeviceGetHandleByIndex_v2", self._find)
        document: Document = {"index": self._index, "calls": self._asked.answers}
        if handle.get("code") != _SUCCESS:
            return document
        self._ask_plain()
        document["fields"] = self._asked(
            "nvmlDeviceGetFieldValues", _field_values, self._handle, _FIELDS
        )
        document["nvlinks"] = list(self._links())
        document["migProfiles"] = list(self._profiles())
        document["gpuInstances"] = list(self._gpu_instances(document["migProfiles"]))
        document["computeProfiles"] = list(self._compute_profiles(document["gpuInstances"]))
        document["migDevices"] = list(self._mig_devices())
        return document

    def _find(self) -> None:
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)

    def _ask_plain(self) -> None:
        asked, gpu = self._asked, self._handle
        for name in _PLAIN:
            call = f"nvmlDeviceGet{name}"
            asked(call, getattr(pynvml, call), gpu)
        for name, numbers in _NUMBERED:
            call = f"nvmlDeviceGet{name}"
            for number in numbers:
                asked(f"{call}({number})", getattr(pynvml, call), gpu, number)
        for name, fields in _STRUCTURES:
            asked(f"nvmlDeviceGet{name}", _structure, name, fields, gpu)
        asked("nvmlDeviceGetMemoryInfo_v2", _memory, gpu)
        asked("nvmlDeviceGetCpuAffinity", _cpus, gpu)
        asked("nvmlDeviceGetTotalEnergyConsumption", _told, "TotalEnergyConsumption", gpu)
        asked("nvmlDeviceGetGpuFabricInfoV", _fabric, gpu)
        asked("nvmlDeviceGetMemoryLimits_v1", _memory_limits, gpu)
        asked("nvmlDeviceGetProcessUtilization", _told, "ProcessUtilization", gpu, 0)
        for kind in _PROCESSES:
            asked(f"nvmlDeviceGet{kind}RunningProcesses_v3", _processes, kind, gpu)

    def _ask(self, call: Callable[..., Any], *args: object) -> Answer:
        """Return an answer that has a place of its own in the document."""
        return self._asked("", call, self._handle, *args)

    def _links(self) -> Iterator[Document]:
        """Yield the links by number, up to the first that no card has."""
        wanted = pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED
        for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
            can = self._ask(pynvml.nvmlDeviceGetNvLinkCapability, number, wanted)
            if can.get("code") == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                return
            link: Document = {"number": number, "nvmlDeviceGetNvLinkCapability": can}
            if can.get("code") == _SUCCESS:
                field = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
                link["state"] = self._ask(_field_values, [(field, number)])
                for name in ("State", "Version", "RemoteDeviceType"):
                    call = f"nvmlDeviceGetNvLink{name}"
                    link[call] = self._ask(getattr(pynvml, call), number)
                link["nvmlDeviceGetNvLinkRemotePciInfo_v2"] = self._ask(_remote, number)
            yield link

    def _profiles(self) -> Iterator[Document]:
        """Yield the GPU instance profiles, by NVML's enumeration."""
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._ask(_profile, number)
            profile = {"index": number, "nvmlDeviceGetGpuInstanceProfileInfoV": info}
            if info.get("code") == _SUCCESS:
                places = self._ask(_placements, info["value"]["id"])
                profile["nvmlDeviceGetGpuInstancePossiblePlacements_v2"] = places
            yield profile

    def _gpu_instances(self, profiles: Iterable[Document]) -> Iterator[Document]:
        for profile in profiles:
            value = profile["nvmlDeviceGetGpuInstanceProfileInfoV"].get("value")
            if value is not None:
                answer = self._ask(_instances, value["id"], value["instanceCount"])
                yield {"profile": value["id"], "nvmlDeviceGetGpuInstances": answer}

    def _compute_profiles(self, instances: Iterable[Document]) -> Iterator[Document]:
        """Yield what each GPU instance can be divided into, by NVML's enumeration."""
        lists = (answers["nvmlDeviceGetGpuInstances"].get("value") or () for answers in instances)
        for number in sorted(instance["id"] for each in lists for instance in each):
            for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                answer = self._ask(_compute_profile, number, index)
                yield {
                    "gpuInstance": number,
                    "index": index,
                    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": answer,
                }

    def _mig_devices(self) -> Iterator[Document]:
        most = self._asked.answers["nvmlDeviceGetMaxMigDeviceCount"].get("value") or 0
        for number in range(most):
            answer = self._ask(_mig_device, number)
            device = {"index": number, "nvmlDeviceGetMigDeviceHandleByIndex": answer}
            if answer.get("code") == _SUCCESS:
                device["nvmlDeviceGetMemoryInfo_v2"] = self._ask(_mig_memory, number)
            yield device


def _structure(name: str, fields: Iterable[str], handle: Any) -> Document:
    return _part(getattr(pynvml, f"nvmlDeviceGet{name}")(handle), fields)


def _cpus(handle: Any) -> list[int]:
    return [int(word) for word in pynvml.nvmlDeviceGetCpuAffinity(handle, _CPU_WORDS)]


def _told(name: str, handle: Any, *args: object) -> bool:
    """Ask, but keep only that there is an answer: its value changes from moment to moment."""
    getattr(pynvml, f"nvmlDeviceGet{name}")(handle, *args)
    return True


def _memory(handle: Any) -> Document:
    return _part(memory_v2(handle), ("total", "reserved", "used"))


def _processes(kind: str, handle: Any) -> int:
    return len(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle))


def _fabric(handle: Any) -> Document:
    info = fabric_info(handle)
    cluster = bytes(info.clusterUuid).hex()
    return {**_part(info, ("state", "status", "cliqueId", "healthMask")), "clusterUuid": cluster}


def _memory_limits(handle: Any) -> None:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup")
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)


def _field_values(handle: Any, wanted: Iterable[Any]) -> list[Document]:
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(wanted))
    fields = []
    for value in values:
        field: Document = {"field": int(value.fieldId), "code": int(value.nvmlReturn)}
        if value.nvmlReturn == _SUCCESS:
            field["value"] = field_number(value)
        fields.append(field)
    return fields


def _remote(handle: Any, number: int) -> Document:
    info = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number)
    return _part(info, ("busId", "pciDeviceId"))


def _profile(handle: Any, number: int) -> Document:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
    return {"name": str(info.name).removeprefix("MIG "), **_part(info, _PROFILE)}


def _placements(handle: Any, profile: int) -> list[list[int]]:
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, byref(array), byref(count))
    return sorted([int(place.start), int(place.size)] for place in array[: count.value])


def _instances(handle: Any, profile: int, most: int) -> list[Document]:
    infos = sorted(gpu_instances(handle, profile, most), key=lambda info: int(info.id))
    return [
        {"id": int(info.id), "start": int(info.placement.start), "size": int(info.placement.size)}
        for info in infos
    ]


def _compute_profile(handle: Any, gpu_instance: int, number: int) -> Document:
    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance),
        number,
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
    )
    return _part(info, ("id", "sliceCount", "instanceCount", "multiprocessorCount"))


def _mig_memory(handle: Any, number: int) -> Document:
    return _memory(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))


def _mig_device(handle: Any, number: int) -> Document:
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    parent = int(pynvml.nvmlDeviceGetGpuInstanceId(device))
    compute = int(pynvml.nvmlDeviceGetComputeInstanceId(device))
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, parent)
    info = pynvml.nvmlComputeInstanceGetInfo(
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, compute)
    )
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    return {
        "uuid": _plain(pynvml.nvmlDeviceGetUUID(device)),
        "gpuInstance": parent,
        "computeInstance": compute,
        "profile": int(info.profileId),
        "start": int(info.placement.start),
        "size": int(info.placement.size),
        **_part(attributes, ("gpuInstanceSliceCount", "computeInstanceSliceCount")),
    }
