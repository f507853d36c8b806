"""From the archive of a node to a profile, so that the simulator plays that very node.

In: an archive that `dra-driver gather` wrote (dra_driver/gathered.py). Out: a profile with the
node's cards as they were reported; how a GPU differs from its card is in its part `told`. Functions
that the simulated library does not have are named. Not played: the processes themselves (there are
as many as there were), and everything of a node but its GPUs.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from dra_driver import gathered
from dra_driver.errors import ConfigError, StateError
from dra_driver.host.envelope import MALFORMED
from dra_driver.simulator import build, hardware
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.answers import (
    FUNCTION_NOT_FOUND,
    Answers,
    list_of,
    mapping_of,
    value_of,
    whole,
)
from dra_driver.simulator.gathered_cards import card_name, cards_of, links_of, mig_of
from dra_driver.simulator.layout import MAX_GPUS, Fact
from dra_driver.simulator.parts import problems
from dra_driver.simulator.profile import Profile
from dra_driver.simulator.told import Told

_LOST = 15
_FIRST_PID = 1001
_NVML = "/libnvidia-ml.so."
_OTHERS = ("firmware", "configs")
_CPU_WORDS = 64
_NVIDIA = "0x10de"
_DISPLAY, _NVSWITCH = "0x03", "0x0680"
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


def profile_of(path: Path, report: Callable[[str], None] = lambda _sentence: None) -> Profile:
    """Return the profile of the node in an archive.

    Args:
        path: the archive.
        report: gets a sentence for what of NVML is not played.

    Raises:
        StateError: the archive is damaged or not one, or newer than this program.
        ConfigError: no machine can be made of what it says.
    """
    archive = gathered.unpack(path)
    try:
        content = _content(archive.documents, _name(path))
        profile = _told(Profile.model_validate(content), archive.documents)
        unknown = _unknown(archive.documents)
    except pydantic.ValidationError as error:
        raise ConfigError(f"the archive {path}: {problems(error)}") from error
    except (StateError, *MALFORMED) as error:
        raise StateError(f"the archive {path} cannot be simulated: {error}") from error
    if unknown:
        report(f"not played, as the simulated NVML does not have it: {', '.join(unknown)}")
    return profile


def _name(path: Path) -> str:
    """Return a name for the profile."""
    name = re.sub(r"[^a-z0-9.-]+", "-", path.name.lower().partition(".tar")[0])
    return name.strip("-.") or "gathered"


def _gpus(documents: Mapping[str, Any]) -> list[Answers]:
    """Return the GPUs, in NVML's order."""
    if gathered.NVML not in documents:
        raise StateError(f"it has no {gathered.NVML}; its {gathered.MANIFEST} says why")
    nvml = mapping_of(gathered.NVML, documents[gathered.NVML])
    gpus = list_of("gpus", nvml.get("gpus", []))
    if len(gpus) > MAX_GPUS:
        raise StateError(f"it has {len(gpus)} GPUs; the simulator holds at most {MAX_GPUS}")
    return [Answers(gpu) for gpu in gpus]


def _content(documents: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the profile without the differences of its GPUs from their cards."""
    gpus = _gpus(documents)
    nvml = mapping_of(gathered.NVML, documents[gathered.NVML])
    system = mapping_of("system", nvml.get("system"))
    version = value_of(system.get("nvmlSystemGetDriverVersion"))
    cuda = value_of(system.get("nvmlSystemGetCudaDriverVersion"))
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise StateError("NVML did not report the version of the GPU driver there")
    places = _places(documents)
    addresses = _addresses(gpus, places)
    node = mapping_of(gathered.NODE, documents.get(gathered.NODE, {}))
    known = mapping_of("its GPUs", node.get("gpus", {}))
    described = list(_in_proc(gpus, addresses, known))
    cards = cards_of(described, version)
    content: dict[str, Any] = {
        "name": name,
        "description": "a gathered node",
        "driver_version": version,
        "cuda_version": _dotted(whole("CUDA's version", cuda)),
        "gpus": [
            _identity(said)
            | _gpu(gpu, card_name(gpu, said, version, cards), places.get(address, {}))
            | {"pci": address}
            for gpu, address, said in described
        ],
        "cards": cards,
        "missing_functions": _missing(gpus),
    }
    if switches := _switches(places):
        content["nvswitch"] = switches
    if gathered.FILES in documents:
        content["driver_files"] = _files(documents[gathered.FILES])
    if gpus and (count := _cpus(gpus[0])[1]):
        content["cpus_per_numa_node"] = count
    if profiles.limits_memory(version):
        content["memory_limits"] = "off" if node.get("kernelCountsGpuMemory") is True else "misc"
    return content


def _files(document: object) -> dict[str, Any] | None:
    """Return the GPU driver's files; None if NVML's library is not where the others are.

    Links out of their folder are left out.
    """
    listed = mapping_of(gathered.FILES, document)
    others = list_of("other files", listed.get("others", []))
    libraries = list_of("libraries", listed.get("libraries", []))
    paths = [str(library.get("path")) for library in libraries]
    folder = next((path.rpartition("/")[0] for path in paths if _NVML in path), None)
    if folder is None:
        return None
    links = list_of("links", listed.get("links", []))
    return {
        "folder": folder,
        "libraries": [
            {"path": library.get("path"), "soname": library.get("soname")} for library in libraries
        ],
        "links": [
            {"path": link.get("path"), "target": link.get("target")}
            for link in links
            if "/" not in str(link.get("target"))
        ],
        "programs": [other.get("path") for other in others if other.get("kind") == "programs"],
        "others": [other.get("path") for other in others if other.get("kind") in _OTHERS],
    }


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _unknown(documents: Mapping[str, Any]) -> list[str]:
    """Return functions that were answered there, and that the simulated library does not have."""
    answered = {name for gpu in _gpus(documents) for name in gpu.answered()}
    return sorted(answered - build.functions())


def _missing(gpus: Iterable[Answers]) -> list[str]:
    """Return the functions that the library there lacks, for all GPUs."""
    each = [
        {name for name, code in gpu.refusals().items() if code == FUNCTION_NOT_FOUND}
        for gpu in gpus
        if gpu.is_whole
    ]
    return sorted(set.intersection(*each) & build.functions()) if each else []


def _places(documents: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what /sys said of PCI devices, by address."""
    listed = mapping_of(gathered.PCI, documents.get(gathered.PCI, {}))
    devices = list_of("devices", listed.get("devices", []))
    return {str(device.get("address")): device for device in devices}


def _switches(places: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the machine's NVSwitches; nothing if it has none."""
    there = {
        address: place
        for address, place in sorted(places.items())
        if place.get("vendor") == _NVIDIA and str(place.get("class")).startswith(_NVSWITCH)
    }
    devices = [place.get("device") for place in there.values()]
    return {"device_id": devices[0], "addresses": [*there]} if there else {}


def _addresses(gpus: Iterable[Answers], places: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return where the GPUs are; one that did not report its place gets a free one."""
    told = [gpu.text_of("PciInfo_v3", "busId") for gpu in gpus]
    named = {_address(address) for address in told if address}
    left = [
        address
        for address, place in sorted(places.items())
        if place.get("vendor") == _NVIDIA
        and str(place.get("class")).startswith(_DISPLAY)
        and address not in named
    ]
    if len(left) < told.count(None):
        raise StateError("NVML reported no PCI address of a GPU, and /sys had none for it either")
    return [_address(address) if address else left.pop(0) for address in told]


def _in_proc(
    gpus: Iterable[Answers], addresses: Iterable[str], known: Mapping[str, Any]
) -> Iterator[tuple[Answers, str, dict[str, Any]]]:
    """Yield each GPU with its address and what /proc says of it."""
    for gpu, address in zip(gpus, addresses, strict=True):
        yield gpu, address, mapping_of("a GPU in /proc", known.get(address, {}))


def _identity(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what /proc says of a GPU about which NVML says nothing."""
    identity: dict[str, Any] = {}
    if str(said.get("Device Minor")).isdecimal():
        identity["minor"] = int(said["Device Minor"])
    if "GPU UUID" in said:
        identity["uuid"] = said["GPU UUID"]
    return identity


def _gpu(gpu: Answers, card: str, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a GPU as its own card has it, without its place."""
    content = {
        "card": card,
        "minor": gpu.number("MinorNumber"),
        "numa_node": place.get("numaNode"),
        "bridges": place.get("bridges"),
        "module_id": gpu.number("ModuleId") or None,
        "uuid": gpu.text("UUID"),
        "serial": gpu.text("Serial"),
        "mig_mode": gpu.number("MigMode", 0) == 1 and mig_of(gpu) is not None,
        "processes": list(_processes(gpu)),
    }
    return {name: value for name, value in content.items() if value is not None}


def _address(bus_id: str | None) -> str:
    """Return an address as the kernel writes it; NVML's domain has eight digits."""
    domain, _, rest = (bus_id or "").lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError as error:
        raise StateError(f"{str(bus_id)[:80]!r} in it is not a PCI address") from error


def _processes(gpu: Answers) -> Iterable[dict[str, Any]]:
    """Yield made-up processes, as many as there were on the whole GPU; their memory is a fact."""
    pid = _FIRST_PID
    for name, kind in (("Compute", "compute"), ("Graphics", "graphics")):
        count = gpu.number(f"{name}RunningProcesses_v3") or 0
        for _ in range(0 if gpu.is_divided else min(count, 16)):
            yield {"pid": pid, "memory_mib": 0, "kind": kind}
            pid += 1


def _cpus(gpu: Answers) -> tuple[int, int]:
    """Return the first of the CPUs near a GPU, and how many there are."""
    words = gpu.value("CpuAffinity")
    mask = 0
    for number, word in enumerate(words[:_CPU_WORDS] if isinstance(words, list) else []):
        mask |= whole("a mask of CPUs", word) << 64 * number
    return (mask & -mask).bit_length() - 1 if mask else 0, mask.bit_count()


def _told(profile: Profile, documents: Mapping[str, Any]) -> Profile:
    """Return the profile with the differences of each GPU from its card.

    GPUs are in the order of the numbers of their nodes for graphics, which are made in order.
    """
    made = hardware.gpus_of(profile, profile.name)
    places = _places(documents)
    told = [
        gpu.model_copy(update={"told": _difference(answers, profile, made[slot])})
        for slot, (gpu, answers) in enumerate(zip(profile.gpus, _gpus(documents), strict=True))
    ]
    in_order = sorted(told, key=lambda gpu: (_node_number(places.get(gpu.pci, {})), gpu.minor))
    return Profile.model_validate(
        profile.model_dump() | {"gpus": [gpu.model_dump() for gpu in in_order]}
    )


def _node_number(place: Mapping[str, Any]) -> int:
    """Return the number of a GPU's node for graphics, 0 if it has none."""
    names = place.get("drm") or ()
    matches = [re.fullmatch(r"renderD(\d{1,6})", str(name)) for name in names]
    return next((int(match[1]) for match in matches if match), 0)


def _difference(gpu: Answers, profile: Profile, made: hardware.SimulatedGpu) -> Told:
    of_card = hardware.facts_of(made, profile, profile.driver_version)
    facts, texts = gpu.facts(), gpu.texts()
    first, count = _cpus(gpu)
    if gpu.code("CpuAffinity") is not None:
        facts |= {Fact.CPU_FIRST: first if count else None, Fact.CPU_COUNT: count or None}
    cluster = str(gpu.value("GpuFabricInfoV", "clusterUuid") or "")
    refusals = {
        name: code
        for name, code in gpu.refusals().items()
        if name in build.functions() and name not in profile.missing_functions
    }
    codes = set(refusals.values())
    if gpu.is_mute:
        refusals = {} if codes == {_LOST} or not codes else {"*": min(codes)}
    hung = gpu.hung
    differences = {
        "lost": gpu.is_mute and codes == {_LOST},
        "facts": {
            fact.name: value for fact, value in facts.items() if of_card.facts.get(fact) != value
        },
        "texts": {
            text.name: value
            for text, value in texts.items()
            if of_card.texts.get(text) != (value or None)
        },
        "links": links_of(gpu) or None,
        "fabric_cluster": uuid.UUID(cluster) if cluster.strip("0") else None,
        "instances": _instances(gpu),
        "refusals": refusals,
        "hangs": hung if hung == "*" or hung in build.functions() else None,
    }
    return Told.model_validate(differences)


def _instances(gpu: Answers) -> list[dict[str, Any]]:
    """Return the GPU instances that were there, with the compute instances that are MIG devices."""
    devices = [
        mapping_of("a MIG device", value) | {"index": each.get("index")}
        for each in gpu.part("migDevices")
        if (value := value_of(each.get("nvmlDeviceGetMigDeviceHandleByIndex"))) is not None
    ]
    instances = []
    for entry in gpu.instances():
        for place in list_of("instances", value_of(entry.get("nvmlDeviceGetGpuInstances")) or []):
            inside = [each for each in devices if each.get("gpuInstance") == place.get("id")]
            instances.append(
                {
                    "id": place.get("id"),
                    "profile": entry.get("profile"),
                    "start": place.get("start"),
                    "compute": [
                        {
                            "id": each.get("computeInstance"),
                            **{
                                key: each.get(key)
                                for key in ("profile", "start", "size", "index", "uuid")
                            },
                        }
                        for each in inside
                    ],
                }
            )
    return instances
