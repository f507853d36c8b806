"""The card of a GPU of a gathered node, and its NVLinks, from what the GPU answered.

In: answers (simulator/answers.py), and what /proc said. Out: plain values as in a profile. What
NVML did not report is made up here, and removed where GPU and card are compared.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.errors import StateError
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.answers import SUCCESS, Answers, list_of, mapping_of, value_of, whole

_MIB = 1024**2
_HOPPER = 9
_COMPUTE_REV1 = 7
_ENDS = {0: "gpu", 2: "switch"}


def cards_of(
    gpus: Iterable[tuple[Answers, str, dict[str, Any]]], version: str
) -> dict[str, dict[str, Any]]:
    """Return the cards of the GPUs that reported all of it, by made-up names."""
    cards: dict[str, dict[str, Any]] = {}
    for gpu, _, said in gpus:
        card = _card(gpu, said, version)
        if gpu.is_whole and card not in cards.values():
            cards[f"gathered-{len(cards) + 1}"] = card
    return cards


def card_name(
    gpu: Answers, said: Mapping[str, Any], version: str, cards: dict[str, dict[str, Any]]
) -> str:
    """Return the name of a GPU's card; for an incomplete report, a card of the same model."""
    card = _card(gpu, said, version)
    for name, known in cards.items():
        if known == card or (not gpu.is_whole and known["name"] == card["name"]):
            return name
    name = f"gathered-{len(cards) + 1}"
    cards[name] = card
    return name


def _card(gpu: Answers, said: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the card of a GPU. What NVML did not report is made up, and removed in `told`."""
    brands = {number: word for word, number in profiles.BRANDS.items()}
    architectures = {number: word for word, number in profiles.ARCHITECTURES.items()}
    modes = {number: word for word, number in profiles.ADDRESSING_MODES.items()}
    device, subsystem = (
        gpu.number("PciInfo_v3", part) or 0 for part in ("pciDeviceId", "pciSubSystemId")
    )
    serial = gpu.text("Serial")
    links = links_of(gpu)
    capability = [gpu.number("CudaComputeCapability", n) or 0 for n in (0, 1)]
    card: dict[str, Any] = {
        "name": gpu.text("Name") or said.get("Model") or "unknown",
        "brand": brands.get(gpu.number("Brand") or 0, "unknown"),
        "architecture": architectures.get(gpu.number("Architecture") or 0, "hopper"),
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "device_id": f"0x{device >> 16 & 0xFFFF:04x}",
        "subsystem_id": f"0x{subsystem >> 16 & 0xFFFF:04x}",
        "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}",
        "memory": _memory(gpu),
        "idle_clocks": _clocks(gpu, "ClockInfo"),
        "clocks": _clocks(gpu, "MaxClockInfo"),
        "power": _power(gpu),
        "temperature": {
            "idle": gpu.number("Temperature(0)") or 1,
            "shutdown": gpu.number("TemperatureThreshold(0)") or 1,
            "slowdown": gpu.number("TemperatureThreshold(1)") or 1,
            "maximum": gpu.number("TemperatureThreshold(3)") or None,
            "memory_maximum": gpu.number("TemperatureThreshold(2)") or None,
        },
        "cores": gpu.number("NumGpuCores") or 1,
        "pcie_generation": gpu.number("MaxPcieLinkGeneration") or 1,
        "serial_number": serial is not None,
        "ecc": gpu.ecc,
        "row_remapping": gpu.remaps_rows,
        "vbios": gpu.text("VbiosVersion") or None,
        "board_part_number": gpu.text("BoardPartNumber") or None,
        "addressing_mode": modes.get(gpu.number("AddressingMode") or 0),
        "gsp_firmware": gpu.text("GspFirmwareVersion") == version,
        "mig": mig_of(gpu),
    }
    if links:
        known = [link["version"] for link in links if link]
        card["nvlink"] = {"links": len(links), "version": max([*known, 1])}
    return card


def _memory(gpu: Answers) -> dict[str, Any]:
    total = gpu.number("MemoryInfo", "total") or _MIB
    reserved = gpu.number("MemoryInfo_v2", "reserved") or 0
    window = gpu.number("BAR1MemoryInfo", "bar1Total") or _MIB
    return {
        "total_mib": math.ceil(total / _MIB),
        "reserved_mib": reserved // _MIB,
        "bar1_mib": math.ceil(window / _MIB),
        "bus_bits": gpu.number("MemoryBusWidth") or None,
    }


def _power(gpu: Answers) -> dict[str, int] | None:
    """Return the card's power in watts; None if NVML did not report all of it."""
    told = {
        "idle": gpu.number("PowerUsage"),
        "default": gpu.number("PowerManagementDefaultLimit"),
        "minimum": gpu.number("PowerManagementLimitConstraints", 0),
        "maximum": gpu.number("PowerManagementLimitConstraints", 1),
    }
    watts = {word: number // 1000 for word, number in told.items() if number is not None}
    return watts if all(watts.values()) and len(watts) == len(told) else None


def _clocks(gpu: Answers, name: str) -> dict[str, int]:
    domains = {"graphics": 0, "memory": 2, "video": 3}
    return {word: gpu.number(f"{name}({number})") or 1 for word, number in domains.items()}


def mig_of(gpu: Answers) -> dict[str, Any] | None:
    """Return what the card can do with MIG."""
    cuts = [cut for entry in gpu.part("migProfiles") if (cut := _mig_profile(entry)) is not None]
    if not cuts or gpu.code("MigMode") != SUCCESS:
        return None
    most = max(cut["instances"] for cut in cuts)
    return {
        "memory_slices": max(start + cut["size"] for cut in cuts for start in cut["starts"]),
        "max_devices": gpu.number("MaxMigDeviceCount") or most,
        "compute_rev1": any(
            each.get("index") == _COMPUTE_REV1
            and value_of(each.get("nvmlGpuInstanceGetComputeInstanceProfileInfoV")) is not None
            for each in gpu.part("computeProfiles")
        ),
        "reset_to_switch": (gpu.number("Architecture") or 0) < _HOPPER,
        "profiles": sorted(cuts, key=lambda cut: int(cut["index"])),
    }


def _mig_profile(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a GPU instance profile; None if the card has neither it nor a place for it."""
    info = value_of(told.get("nvmlDeviceGetGpuInstanceProfileInfoV"))
    places = value_of(told.get("nvmlDeviceGetGpuInstancePossiblePlacements_v2"))
    if info is None or not places:
        return None
    info = mapping_of("a MIG profile", info)
    try:
        starts, sizes = zip(*places, strict=True)
    except (TypeError, ValueError) as error:
        raise StateError(f"a placement in it cannot be {str(places)[:80]!r}") from error
    name = str(info.get("name"))
    engines = {
        "multiprocessors": "multiprocessorCount", "copy_engines": "copyEngineCount",
        "decoders": "decoderCount", "encoders": "encoderCount", "jpeg_engines": "jpegCount",
        "ofa_engines": "ofaCount", "memory_mib": "memorySizeMB", "id": "id",
        "slices": "sliceCount", "instances": "instanceCount",
    }  # fmt: skip
    return {
        "index": told.get("index"),
        "name": name,
        "size": whole("a placement", sizes[0]),
        "starts": [whole("a placement", start) for start in starts],
        "graphics": "gfx" in name,
        **{ours: whole(nvmls, info.get(nvmls)) for ours, nvmls in engines.items()},
    }


def links_of(gpu: Answers) -> list[dict[str, Any] | None]:
    """Return the NVLinks up to the last existing one."""
    links: list[dict[str, Any] | None] = []
    for link in gpu.part("nvlinks"):
        there = value_of(link.get("nvmlDeviceGetNvLinkCapability")) is not None
        links.append(_link(link) if there else None)
    while links and links[-1] is None:
        links.pop()
    return links


def _link(told: Mapping[str, Any]) -> dict[str, Any]:
    remote = value_of(told.get("nvmlDeviceGetNvLinkRemotePciInfo_v2"))
    known = {} if remote is None else mapping_of("the other end of a link", remote)
    states = list_of("states", value_of(told.get("state")) or [])
    told_state = value_of(told.get("nvmlDeviceGetNvLinkState"))
    return {
        "to": _ENDS.get(value_of(told.get("nvmlDeviceGetNvLinkRemoteDeviceType")), "nothing"),
        "version": value_of(told.get("nvmlDeviceGetNvLinkVersion")) or 0,
        "remote": known.get("busId", ""),
        "remote_device": known.get("pciDeviceId", 0),
        "up": next((state.get("value") for state in states if "value" in state), told_state) == 1,
    }
