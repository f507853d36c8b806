"""The node as a profile of the simulator (docs/simulator.md), from the answers of NVML and /sys.

In: documents of an archive (devices/nvml/survey.py, machine.py), whose identities are stand-ins
already. Out: a profile in YAML, in the format of the shipped ones, with a card of its own for each
kind of GPU. What a card does not report is left out, and so is a GPU that was lost, hung, or did
not answer a call that every card answers. Momentary values are left out, too: load, processes,
health, limits. Pure.
"""

import math
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import yaml

from dra_driver.admin.gather.reading import Missing

Document = Mapping[str, Any]

_BRANDS = {
    1: "quadro", 2: "tesla", 3: "nvs", 4: "grid", 5: "geforce", 6: "titan", 12: "quadro-rtx",
    13: "nvidia-rtx", 14: "nvidia", 15: "geforce-rtx", 16: "titan-rtx",
}  # fmt: skip
_ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada",
    9: "hopper", 10: "blackwell", 13: "rubin",
}  # fmt: skip
_ADDRESSING_MODES = {0: "none", 1: "hmm", 2: "ats"}
_AMPERE, _HOPPER = 7, 9
_UNCORRECTED, _ROWS_PENDING = 4, 144
_FUNCTION_NOT_FOUND = 13
_TO_GPU, _TO_SWITCH = 0, 2
_MIB = 1024**2
_MEMORY_LIMITS_SINCE = 615
_ENGINES = {
    "id": "id", "slices": "sliceCount", "instances": "instanceCount", "memory_mib": "memorySizeMB",
    "multiprocessors": "multiprocessorCount", "copy_engines": "copyEngineCount",
    "decoders": "decoderCount", "encoders": "encoderCount", "jpeg_engines": "jpegCount",
    "ofa_engines": "ofaCount",
}  # fmt: skip


class _Gpu:
    """What one GPU answered."""

    def __init__(self, document: Document) -> None:
        self._calls: Document = document["calls"]
        self.links: list[Document] = [
            link for link in document.get("nvlinks", ()) if _value(link, "Capability") is not None
        ]
        ends = [end for link in self.links if (end := _end(link, _TO_GPU))]
        self.peers = Counter(_address(end["busId"]) for end in ends)
        self.mig_profiles = [
            (each["index"], info, places)
            for each in document.get("migProfiles", ())
            if (info := each["nvmlDeviceGetGpuInstanceProfileInfoV"].get("value"))
            and (places := each["nvmlDeviceGetGpuInstancePossiblePlacements_v2"].get("value"))
        ]
        self.instances = [
            (each["profile"], place["start"])
            for each in document.get("gpuInstances", ())
            for place in each["nvmlDeviceGetGpuInstances"].get("value") or ()
        ]
        fields = self("FieldValues") or ()
        self.fields = {each["field"] for each in fields if "value" in each}

    def __call__(self, name: str, part: str | int | None = None) -> Any:
        """Return the answer to nvmlDeviceGet…, or a part of it; None if there is none."""
        value = self._calls.get(f"nvmlDeviceGet{name}", {}).get("value")
        return value if part is None or value is None else value[part]

    @property
    def not_found(self) -> set[str]:
        """The functions that the node's library does not have, unless its version explains it."""
        return {
            name.partition("(")[0]
            for name, answer in self._calls.items()
            if answer.get("code") == _FUNCTION_NOT_FOUND and "MemoryLimits" not in name
        }

    @property
    def address(self) -> str:
        """Its PCI address as the kernel writes it."""
        return _address(self("PciInfo_v3", "busId"))

    @property
    def is_silent(self) -> bool:
        """Whether a call hung, or something that every card answers is missing."""
        asked = ("PciInfo_v3", "MinorNumber", "UUID", "Name", "CudaComputeCapability")
        told = all(self(name) is not None for name in asked)
        return not told or any("silent" in answer for answer in self._calls.values())


def profile_of(nvml: Document, pci: Document, node: Document, missing: Missing) -> str:
    """Return the profile in YAML; GPUs that are not in it are added to `missing`.

    Args:
        nvml: what NVML answered.
        pci: the node's devices in /sys; empty if they are not known.
        node: what /proc and /sys report; empty if it is not known.
        missing: gets each GPU that is left out.
    """
    version: str = nvml["system"]["nvmlSystemGetDriverVersion"]["value"]
    cuda: int = nvml["system"]["nvmlSystemGetCudaDriverVersion"]["value"]
    gpus = [_Gpu(document) for document in nvml["gpus"]]
    for index, gpu in enumerate(gpus):
        if gpu.is_silent:
            missing.add(f"GPU {index} in the profile", "it did not answer all calls; see nvml.json")
    there = [gpu for gpu in gpus if not gpu.is_silent]
    places = {device["address"]: device for device in pci.get("devices", ())}
    cards: dict[str, Document] = {}
    described = [_gpu(gpu, cards, places.get(gpu.address, {}), version) for gpu in there]
    for gpu, content in zip(there, described, strict=True):
        content["nvlinks"] = list(_peers(gpu, there))
    lacking = [gpu.not_found for gpu in there]
    profile = {
        "name": "gathered",
        "description": "made by dra-driver gather",
        "driver_version": version,
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cpus_per_numa_node": _cpus(there[0]) if there else None,
        "missing_functions": sorted(set.intersection(*lacking)) if lacking else [],
        "memory_limits": _memory_limits(version, node),
        "nvswitch": _switches(there),
        "cards": cards,
    }
    content = {**_known(profile), "gpus": _known(described)}
    text: str = yaml.dump(
        content, Dumper=_Plain, sort_keys=False, width=100, default_flow_style=None
    )
    return text


class _Plain(yaml.SafeDumper):
    """Writes repeated values again, where YAML would refer to the first."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _gpu(gpu: _Gpu, cards: dict[str, Document], place: Document, version: str) -> dict[str, Any]:
    """Return a GPU, and add its card to the others if it is not there yet."""
    card = _known(_card(gpu, version) | {"pci_class": place.get("class")})
    names = (f"card-{number}" for number in count(1))
    name = next(name for name in names if cards.get(name, card) == card)
    cards[name] = card
    profiles = {info["id"]: info["name"] for _, info, _ in gpu.mig_profiles}
    return {
        "card": name,
        "pci": gpu.address,
        "minor": gpu("MinorNumber"),
        "numa_node": place.get("numaNode"),
        "bridges": place.get("bridges"),
        "module_id": gpu("ModuleId") or None,
        "uuid": gpu("UUID"),
        "serial": gpu("Serial"),
        "mig_mode": "mig" in card and gpu("MigMode", 0) == 1,
        "mig_devices": [
            {"profile": profiles[profile], "start": start}
            for profile, start in gpu.instances
            if profile in profiles
        ],
    }


def _peers(gpu: _Gpu, gpus: list[_Gpu]) -> Iterator[str]:
    """Yield the GPU at the other end of each NVLink, if that one reports the link, too."""
    for other in gpus:
        for _ in range(min(gpu.peers[other.address], other.peers[gpu.address])):
            yield other.address


def _card(gpu: _Gpu, version: str) -> dict[str, Any]:
    device, subsystem = gpu("PciInfo_v3", "pciDeviceId"), gpu("PciInfo_v3", "pciSubSystemId")
    capability = gpu("CudaComputeCapability")
    return {
        "name": gpu("Name"),
        "brand": _BRANDS.get(gpu("Brand"), "unknown"),
        "architecture": _ARCHITECTURES.get(gpu("Architecture"), "hopper"),
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "device_id": f"0x{device >> 16:04x}",
        "subsystem_id": f"0x{subsystem >> 16:04x}",
        "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}",
        "memory": _memory(gpu),
        "power": _power(gpu),
        "idle_clocks": _clocks(gpu, "ClockInfo"),
        "clocks": _clocks(gpu, "MaxClockInfo"),
        "application_clocks": {
            "graphics": gpu("ApplicationsClock(0)"),
            "memory": gpu("ApplicationsClock(2)"),
        }
        if gpu("ApplicationsClock(0)")
        else "none",
        "temperature": {
            "idle": gpu("Temperature(0)") or 1,
            "shutdown": gpu("TemperatureThreshold(0)") or None,
            "slowdown": gpu("TemperatureThreshold(1)") or None,
            "maximum": gpu("TemperatureThreshold(3)") or None,
            "memory_maximum": gpu("TemperatureThreshold(2)") or None,
        },
        "cores": gpu("NumGpuCores") or 1,
        "pcie_generation": gpu("MaxPcieLinkGeneration") or 1,
        "pcie_width": gpu("MaxPcieLinkWidth") or 1,
        "board_part_number": gpu("BoardPartNumber"),
        "vbios": gpu("VbiosVersion"),
        "inforom": _inforom(gpu),
        "serial_number": gpu("Serial") is not None,
        "ecc": _ecc(gpu),
        # A card that is divided does not report its rows.
        "row_remapping": _ROWS_PENDING in gpu.fields
        or (bool(gpu.instances) and (gpu("Architecture") or 0) >= _AMPERE),
        "fan_percent": gpu("FanSpeed"),
        "gsp_firmware": gpu("GspFirmwareVersion") == version,
        "addressing_mode": _ADDRESSING_MODES.get(gpu("AddressingMode")),
        "nvlink": {
            "links": len(gpu.links),
            "version": max(_value(link, "Version") or 1 for link in gpu.links),
        }
        if gpu.links
        else None,
        "mig": _mig(gpu),
    }


def _ecc(gpu: _Gpu) -> bool | None:
    """Tell whether ECC is on; None for a card without it. Errors are counted only with ECC."""
    mode = gpu("EccMode", 0)
    return bool(mode) if mode is not None else _UNCORRECTED in gpu.fields or None


def _memory(gpu: _Gpu) -> dict[str, Any] | None:
    total = gpu("MemoryInfo", "total")
    return total and {
        "total_mib": math.ceil(total / _MIB),
        "reserved_mib": (gpu("MemoryInfo_v2", "reserved") or 0) // _MIB,
        "bar1_mib": math.ceil((gpu("BAR1MemoryInfo", "bar1Total") or _MIB) / _MIB),
        "bus_bits": gpu("MemoryBusWidth"),
    }


def _power(gpu: _Gpu) -> dict[str, int] | None:
    """Return the power in watts; the present draw counts as the idle one."""
    told = {
        "idle": gpu("PowerUsage"),
        "default": gpu("PowerManagementDefaultLimit"),
        "minimum": gpu("PowerManagementLimitConstraints", 0),
        "maximum": gpu("PowerManagementLimitConstraints", 1),
    }
    watts = {word: number // 1000 for word, number in told.items() if number and number >= 1000}
    return watts if "idle" in watts else None


def _clocks(gpu: _Gpu, name: str) -> dict[str, int]:
    domains = {"graphics": 0, "memory": 2, "video": 3}
    return {word: gpu(f"{name}({number})") or 1 for word, number in domains.items()}


def _inforom(gpu: _Gpu) -> dict[str, str | None] | None:
    versions = [gpu(f"InforomVersion({number})") for number in range(3)]
    told = {"image": gpu("InforomImageVersion"), "oem": versions[0], "ecc": versions[1]}
    return {**told, "power": versions[2]} if all(told.values()) else None


def _mig(gpu: _Gpu) -> dict[str, Any] | None:
    """Return what the card can do with MIG; None if NVML did not report its placements."""
    if not gpu.mig_profiles or gpu("MigMode") is None:
        return None
    return {
        "memory_slices": max(start + size for *_, at in gpu.mig_profiles for start, size in at),
        "max_devices": gpu("MaxMigDeviceCount")
        or max(info["instanceCount"] for _, info, _ in gpu.mig_profiles),
        "reset_to_switch": (gpu("Architecture") or 0) < _HOPPER,
        "profiles": [
            {
                "index": index,
                "name": info["name"],
                "size": places[0][1],
                "starts": [start for start, _ in places],
                "graphics": "gfx" in info["name"],
                **{ours: info[nvmls] for ours, nvmls in _ENGINES.items()},
            }
            for index, info, places in gpu.mig_profiles
        ],
    }


def _switches(gpus: list[_Gpu]) -> dict[str, Any] | None:
    """Return the switches that NVLinks lead to, and the fabric that the GPUs are in."""
    ends = [end for gpu in gpus for link in gpu.links if (end := _end(link, _TO_SWITCH))]
    if not ends:
        return None
    fabrics = [info for gpu in gpus if (info := gpu("GpuFabricInfoV")) and info["state"]]
    cluster = uuid.UUID(fabrics[0]["clusterUuid"]) if fabrics else None
    return {
        "device_id": f"0x{ends[0]['pciDeviceId'] >> 16:04x}",
        "addresses": sorted({_address(end["busId"]) for end in ends}),
        "fabric": bool(fabrics),
        "cluster": str(cluster) if cluster and cluster.int else None,
        "clique": fabrics[0]["cliqueId"] if fabrics else None,
    }


def _cpus(gpu: _Gpu) -> int | None:
    """Return how many CPUs are near a GPU."""
    return sum(int(word).bit_count() for word in gpu("CpuAffinity") or ()) or None


def _memory_limits(version: str, node: Document) -> str | None:
    if int(version.partition(".")[0]) < _MEMORY_LIMITS_SINCE:
        return None
    return "off" if node.get("kernelCountsGpuMemory") else "misc"


def _address(bus_id: str) -> str:
    """Return an address as the kernel writes it; NVML's domain has eight digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _value(link: Document, name: str) -> Any:
    return link.get(f"nvmlDeviceGetNvLink{name}", {}).get("value")


def _end(link: Document, kind: int) -> Any:
    """Return what is at the other end of a link, if it is of this kind."""
    is_such = _value(link, "RemoteDeviceType") == kind
    return _value(link, "RemotePciInfo_v2") if is_such else None


def _known(content: Any) -> Any:
    """Return content without unknown values and empty lists."""
    if isinstance(content, dict):
        parts = {key: _known(part) for key, part in content.items()}
        return {key: part for key, part in parts.items() if part is not None and part != []}
    return [_known(part) for part in content] if isinstance(content, list) else content
