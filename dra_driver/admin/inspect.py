"""`dra-driver inspect`: what this node has, and what the driver would publish and inject.

In: settings, the driver root and NVML; no cluster. Out: on stdout a table for people, or YAML or
JSON for programs; with `--cdi` the CDI spec that a claim of all GPUs would get. Nothing is changed.
It looks in the way the driver looks, so what is missing here is missing there.
"""

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from dra_driver import common_settings
from dra_driver.admin.output import OUTPUT, Output, for_programs, is_for_programs
from dra_driver.admin.table import aligned
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Edits, Spec
from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.cdi.spec import render
from dra_driver.claims.state.ownership import Ownership
from dra_driver.command_line import CommandSettings, changed, option
from dra_driver.common_settings import MigSetting, WholeGpusBesideShares
from dra_driver.devices.device import Device, DeviceKind, Mig, NodeDevice, mig_of, name_of, whole
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.model import (
    ExcludedGpu,
    Gpu,
    GpuUuid,
    Inventory,
    MigDevice,
    MigMode,
    Refusal,
)
from dra_driver.devices.names import DRIVER_NAME, gpu_name
from dra_driver.devices.session import DriverSession
from dra_driver.devices.shares import EqualShare
from dra_driver.devices.versions import dotted
from dra_driver.errors import ConfigError, DeviceError, SetupError, StateError, TransientError
from dra_driver.gpu_words import gpu_words
from dra_driver.host.boot import read_boot_id
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.shares.config import read_node_config
from dra_driver.shares.divide import divide
from dra_driver.shares.last_good import FILE, kept
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, REQUEST_POLICY, Consumable
from dra_driver.slices.offer.mig import COST_BEFORE_1_37, MigSettings, release_of
from dra_driver.slices.offer.shares import ShareOffer, WholeBesideShares
from dra_driver.slices.project import OF_DEFAULTS, Offered, Projection
from dra_driver.words import count
from resource_nvidia_com.device_plugin import NodeConfig

T = TypeVar("T")

_GIB = 1024**3
_MIG_COLUMNS = ("MIG DEVICE", "PROFILE", "PLACEMENT", "UUID", "GPU INSTANCE", "COMPUTE INSTANCE")
_PART_COLUMNS = ("DEVICE", "CAPACITY", "THERE IS", "WITHOUT A REQUEST", "AT LEAST", "IN STEPS OF")
_COLUMNS = ("NAME", "PRODUCT", "UUID", "PCI", "NUMA", "MEMORY", "MIG")


class Inspect(CommandSettings):
    """Show this node's GPUs and what the driver would publish."""

    example = "dra-driver inspect -o yaml"

    output: Output = OUTPUT
    cdi: bool = option(
        default=False,
        help="Print the CDI spec that a claim for all GPUs would get instead.",
    )
    nvidia_driver_root: Path = common_settings.NVIDIA_DRIVER_ROOT
    container_driver_root: Path | None = common_settings.CONTAINER_DRIVER_ROOT
    nvidia_dev_root: Path | None = common_settings.NVIDIA_DEV_ROOT
    container_dev_root: Path | None = common_settings.CONTAINER_DEV_ROOT
    nvidia_cdi_hook_path: str = common_settings.NVIDIA_CDI_HOOK_PATH
    sys_root: Path = common_settings.SYS_ROOT
    proc_root: Path = common_settings.PROC_ROOT
    mig: MigSetting = common_settings.MIG
    mig_profiles: str = common_settings.MIG_PROFILES
    kubernetes: str = common_settings.KUBERNETES
    whole_gpus_beside_shares: WholeGpusBesideShares = common_settings.WHOLE_GPUS_BESIDE_SHARES
    exclude_gpus: str = common_settings.EXCLUDE_GPUS
    memory_counters: bool = common_settings.MEMORY_COUNTERS
    consumable_shares: str = common_settings.CONSUMABLE_SHARES
    vfio: bool = common_settings.VFIO
    kubelet_plugins_directory_path: Path = changed(
        common_settings.KUBELET_PLUGINS_DIRECTORY_PATH,
        help="Folder with the driver's notes about MIG devices that it made for claims.",
    )

    def cli_cmd(self) -> None:
        """Look and print."""
        roots = roots_of(self)
        directory = self.kubelet_plugins_directory_path / DRIVER_NAME
        inventory, refused = look(roots, directory, gpu_words(self.exclude_gpus), vfio=self.vfio)
        edits, problems = edits_of(
            inventory.gpus,
            EditsCache(
                roots,
                hook_path=self.nvidia_cdi_hook_path,
                kernel_release=platform.release(),
                clock=time.monotonic,
                nvml_version=lambda: inventory.driver_version,
            ),
        )
        kubernetes = release_of(self.kubernetes)
        offer = MigSettings.of(self.mig, self.mig_profiles).offer_of_any_node(kubernetes)
        beside_shares = WholeBesideShares(self.whole_gpus_beside_shares)
        share = replace(
            shares_of(directory, inventory),
            consumable=Consumable.of(self.consumable_shares),
            alone=beside_shares.why_alone(lambda: kubernetes),
        )
        offered = Offered(
            mig=offer,
            refused=refused,
            share=share,
            memory_counters=self.memory_counters,
        )
        if self.cdi:
            sys.stdout.write(spec_text(edits, problems, self.output))
        elif is_for_programs(self.output):
            told = report(inventory, problems, offered)
            sys.stdout.write(for_programs(_json(told), self.output))
        else:
            sys.stdout.write(table(inventory, problems, offered))


def look(
    roots: Roots, data_directory: Path, excluded: Collection[str], *, vfio: bool = False
) -> tuple[Inventory, Mapping[GpuUuid, Refusal]]:
    """Look at the GPUs once, and at the driver's notes of those that refuse MIG mode."""
    at = data_directory, roots.proc
    session = DriverSession(
        driver_root=roots.driver,
        dev=roots.dev,
        proc_root=roots.proc,
        sys_root=roots.sys,
        made_here=lambda: _noted(lambda notes: notes.made().keys(), frozenset(), at),
        turned_on=lambda: _noted(lambda notes: set(notes.gpus_turned_on()), set(), at),
        leave_out=lambda there: without_excluded(there, excluded),
        with_passthrough=passthrough_gpus(roots).look if vfio else lambda inventory: inventory,
    )
    try:
        return session.look(), _noted(Ownership.refusals, {}, at)
    finally:
        session.close()


def _noted(question: Callable[[Ownership], T], nothing: T, at: tuple[Path, Path]) -> T:
    """Read the driver's notes in a directory and a procfs; without permission there are none."""
    directory, proc = at
    try:
        return question(Ownership(directory, read_boot_id(proc)))
    except (SetupError, StateError):
        return nothing


def shares_of(data_directory: Path, inventory: Inventory) -> ShareOffer:
    """Return what the driver's last good share config makes of a node whose shares nobody has."""
    stored = kept(data_directory / FILE)
    try:
        config = read_node_config(stored.data, stored.origin) if stored else NodeConfig()
    except ConfigError:
        config = NodeConfig()  # of another version
    return ShareOffer(**asdict(divide(config, inventory)))


def edits_of(gpus: Sequence[Gpu], content: EditsCache) -> tuple[dict[str, Edits], dict[str, str]]:
    """Return edits by device name, common ones under an empty name, and why others have none."""
    if not gpus:
        return {}, {}  # there need not even be a GPU driver
    try:
        node = content.look()
    except (DeviceError, TransientError) as error:
        return {}, {"": str(error)}
    edits = {"": node.common}
    problems: dict[str, str] = {}
    for device in (each for gpu in gpus for each in _devices(gpu)):
        name = name_of(device.gpu, device.device)
        try:
            edits[name] = node.device(device)
        except (DeviceError, TransientError) as error:
            problems[name] = str(error)
    return edits, problems


def _devices(gpu: Gpu) -> Iterable[NodeDevice]:
    """Yield the GPU, unless MIG mode keeps containers off the whole of it, and its MIG devices."""
    if gpu.mig_mode is not MigMode.ENABLED:
        yield NodeDevice(gpu=gpu, device=whole(gpu))
    for device in _mig_devices(gpu):
        yield NodeDevice(gpu=gpu, device=Device(base=mig_of(device)))


def spec_text(edits: Mapping[str, Edits], problems: Mapping[str, str], output: Output) -> str:
    """Return the spec of a claim of all GPUs, as JSON, or as YAML with problems as comments."""
    devices = {name: part for name, part in edits.items() if name}
    if "" not in edits or not devices:
        raise SetupError("; ".join(problems.values()) or "this node has no GPU")
    document = _json(render(Spec(devices=devices, edits=edits[""])))
    if output == "json":
        return document
    comments = [f"# {name} is left out: {problem}\n" for name, problem in problems.items()]
    return "".join(comments) + for_programs(document, "yaml")


def report(
    inventory: Inventory,
    problems: Mapping[str, str],
    offered: Offered = OF_DEFAULTS,
) -> dict[str, object]:
    """Return what was found, and as `devices` what would be published, for programs."""
    published = offered.projection(inventory)
    return {
        "driver": {
            "version": inventory.driver_version,
            "cudaVersion": _cuda(inventory),
        },
        "mig": {"source": offered.mig.source.value, "why": offered.mig.why},
        "consumableShares": str(offered.share.consumable),
        "gpus": [_facts(gpu, problems) for gpu in inventory.gpus],
        "sick": [{"index": gpu.index, "reason": gpu.reason} for gpu in inventory.sick],
        "excluded": [_excluded_facts(gpu) for gpu in inventory.excluded],
        "excludedWithoutEffect": list(inventory.unmatched),
        "withheld": [{"index": gpu.index, "reason": gpu.reason} for gpu in published.withheld],
        "notes": [
            *({"index": note.index, "text": note.text} for note in published.notes),
            *({"index": None, "text": text} for text in _not_for_machines(inventory)),
        ],
        "counterSets": list(published.counter_sets),
        "devices": list(published.devices),
    }


def table(
    inventory: Inventory,
    problems: Mapping[str, str],
    offered: Offered = OF_DEFAULTS,
) -> str:
    """Return what was found and what would be published, for people."""
    published = offered.projection(inventory)
    version, cuda = inventory.driver_version or "not loaded", _cuda(inventory) or "unknown"
    lines = [f"driver {version}, CUDA {cuda}", ""]
    if inventory.gpus:
        lines += aligned([_COLUMNS, *map(_row, inventory.gpus)])
    else:
        lines += ["no usable GPU"]
    rows = [row for gpu in inventory.gpus for row in _mig_rows(gpu)]
    if rows:
        lines += ["", *aligned([_MIG_COLUMNS, *rows])]
    if any(gpu.mig is not None for gpu in inventory.gpus):
        lines += ["", f"MIG devices for claims: {offered.mig.source} ({offered.mig.why})"]
        if offered.mig.way_out is not None:
            lines += [f"--mig on-demand makes them, at a cost: {COST_BEFORE_1_37}"]
    faults = [
        *(f"left out: {gpu}: {gpu.why}" for gpu in inventory.excluded),
        *inventory.unmatched,
        *(f"not published: GPU {gpu.index}: {gpu.reason}" for gpu in published.withheld),
        *(
            f"left out: {each.attribute} of {each.device}: {each.reason}"
            for each in published.omitted
        ),
        *(f"GPU {note.index}: {note.text}" for note in published.notes),
        *_not_for_machines(inventory),
        *(
            f"cannot be prepared: {name or 'any GPU'}: {problem}"
            for name, problem in problems.items()
        ),
    ]
    if faults:
        lines += ["", *faults]
    lines += ["", *_published(published)]
    if rows := [row for device in published.devices for row in _part_rows(device)]:
        lines += [
            "",
            f"for several claims at a time, with --consumable-shares {offered.share.consumable}:",
            *aligned([_PART_COLUMNS, *rows]),
        ]
    return "\n".join(lines) + "\n"


def _not_for_machines(inventory: Inventory) -> Iterator[str]:
    """Yield what keeps GPUs from virtual machines, each reason once."""
    by_problem: dict[str, list[str]] = {}
    for card in inventory.passthrough:
        if card.problem is not None:
            by_problem.setdefault(card.problem, []).append(card.gpu.pci_address)
    for problem, addresses in by_problem.items():
        yield f"not offered to virtual machines: {', '.join(addresses)}: {problem}"


def _row(gpu: Gpu) -> tuple[str, ...]:
    return (
        str(gpu_name(gpu.minor)),
        gpu.product_name,
        gpu.uuid,
        gpu.pci_address,
        "-" if gpu.numa_node is None else str(gpu.numa_node),
        "-" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _GIB:.1f} GiB",
        gpu.mig_mode,
    )


def _mig_devices(gpu: Gpu) -> tuple[MigDevice, ...]:
    return () if gpu.mig is None else gpu.mig.devices


def _mig_rows(gpu: Gpu) -> Iterable[tuple[str, ...]]:
    for device in _mig_devices(gpu):
        place = device.placement
        yield (
            name_of(gpu, Device(base=mig_of(device))),
            device.profile.name,
            f"{place.start}-{place.start + place.size - 1}",
            device.uuid,
            str(device.gpu_instance),
            str(device.compute_instance),
        )


def _mig_facts(gpu: Gpu) -> list[dict[str, object]]:
    return [
        {
            "name": name_of(gpu, Device(base=mig_of(device))),
            "uuid": device.uuid,
            "profile": device.profile.name,
            "profileID": device.profile.id,
            "start": device.placement.start,
            "size": device.placement.size,
            "gpuInstance": device.gpu_instance,
            "computeInstance": device.compute_instance,
        }
        for device in _mig_devices(gpu)
    ]


def _facts(gpu: Gpu, problems: Mapping[str, str]) -> dict[str, object]:
    name = str(gpu_name(gpu.minor))
    return {
        "name": name,
        "index": gpu.index,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "pciAddress": gpu.pci_address,
        "pcieRoot": gpu.pcie_root,
        "numaNode": gpu.numa_node,
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": dotted(gpu.cuda_compute_capability),
        "memoryBytes": gpu.memory_bytes,
        "migMode": str(gpu.mig_mode),
        "migDevices": _mig_facts(gpu),
        "addressingMode": gpu.addressing_mode,
        "problem": problems.get(name, problems.get("")),
    }


def _excluded_facts(gpu: ExcludedGpu) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pciAddress": gpu.pci_address,
        "productName": gpu.product_name,
        "why": gpu.why,
    }


def _published(published: Projection) -> Iterable[str]:
    """Yield what all devices have in common on one line, then what each has beside it."""
    each = list(zip(published.devices, published.sources, strict=True))
    partitions = [source for _, source in each if not source.device.exists]
    made = [(wire, source.device) for wire, source in each if source.device.exists]
    undivided = [(wire, device.kind) for wire, device in made if device.share is None]
    yield f"would publish {count(len(published.devices), 'device')}"
    yield from _summary(partitions)
    yield from _shares(published.sources)
    yield from _values_of("all", [wire for wire, kind in undivided if kind is not DeviceKind.VFIO])
    for_machines = [wire for wire, kind in undivided if kind is DeviceKind.VFIO]
    yield from _values_of("all for virtual machines", for_machines)


def _values_of(all_of_them: str, devices: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    values = [_values(device) for device in devices]
    if len(devices) > 1:
        shared = [value for value in values[0] if all(value in other for other in values)]
        yield f"  {all_of_them}: {', '.join(shared)}"
        values = [[value for value in own if value not in shared] for own in values]
    for device, own in zip(devices, values, strict=True):
        yield f"  {device['name']}: {', '.join(own)}"


def _summary(partitions: Iterable[NodeDevice]) -> Iterable[str]:
    """Yield for each GPU how many placements of each profile are possible on it, at most."""
    profiles: dict[str, Counter[str]] = {}
    for part in partitions:
        if isinstance(part.device.base, Mig):
            counts = profiles.setdefault(gpu_name(part.gpu.minor), Counter())
            counts[part.device.base.profile] += 1
    for parent, counts in profiles.items():
        where = ", ".join(f"{profile} in {places}" for profile, places in counts.items())
        yield f"  on demand on {parent}, places: {where}"


def _shares(sources: Iterable[NodeDevice]) -> Iterable[str]:
    """Yield for each divided device into how many shares it is divided."""
    for source in sources:
        share = source.device.share
        if isinstance(share, EqualShare) and share.index == 0:
            division, name = share.division, name_of(source.gpu, Device(base=source.device.base))
            yield (
                f"  shares of {name}: {division.count} of {division.served_as} by "
                f"{division.strategy}"
            )


def _part_rows(device: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Yield what claims consume of a device that several can have, capacity by capacity."""
    if not device.get(ALLOWS_MULTIPLE):
        return
    for name, capacity in device["capacity"].items():
        policy = capacity[REQUEST_POLICY]
        if within := policy.get("validRange"):
            yield (
                device["name"],
                name,
                capacity["value"],
                policy["default"],
                within["min"],
                within.get("step", "-"),
            )


def _values(device: Mapping[str, Any]) -> list[str]:
    """Return a device's attributes and capacities as `name=value`."""
    attributes = device.get("attributes", {}).items()
    # An attribute is an object with one member, which names its type.
    shown = [f"{name}={next(iter(value.values()))}" for name, value in attributes]
    return shown + [
        f"{name}={capacity['value']}" for name, capacity in device.get("capacity", {}).items()
    ]


def _cuda(inventory: Inventory) -> str | None:
    return None if inventory.cuda_version is None else dotted(inventory.cuda_version)


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
