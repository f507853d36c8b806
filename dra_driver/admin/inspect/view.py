"""What `inspect` prints: a table for people, facts for programs, or a CDI spec. Pure.

In: the inventory, what the driver would publish of it, and the edits of a CDI spec. Out: text, or
plain values.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dra_driver.admin.inspect.slices import OF_DEFAULTS, Offered
from dra_driver.admin.output import Output, aligned, for_programs
from dra_driver.cdi.model import Edits, Spec, render
from dra_driver.devices.device import Device, DeviceKind, Mig, NodeDevice, mig_of, name_of
from dra_driver.devices.model import ExcludedGpu, Gpu, Inventory, MigDevice
from dra_driver.devices.names import gpu_name
from dra_driver.devices.shares import EqualShare
from dra_driver.devices.versions import dotted
from dra_driver.errors import SetupError
from dra_driver.host.words import count
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, REQUEST_POLICY
from dra_driver.slices.offer.mig import COST_BEFORE_1_37
from dra_driver.slices.project import Projection

_GIB = 1024**3
_MIG_COLUMNS = ("MIG DEVICE", "PROFILE", "PLACEMENT", "UUID", "GPU INSTANCE", "COMPUTE INSTANCE")
_PART_COLUMNS = ("DEVICE", "CAPACITY", "TOTAL", "DEFAULT", "MINIMUM", "STEP")
_COLUMNS = ("NAME", "PRODUCT", "UUID", "PCI", "NUMA", "MEMORY", "MIG")


def spec_text(edits: Mapping[str, Edits], problems: Mapping[str, str], output: Output) -> str:
    """Return the spec of a claim of all GPUs, as JSON, or as YAML with problems as comments."""
    devices = {name: part for name, part in edits.items() if name}
    if "" not in edits or not devices:
        raise SetupError("; ".join(problems.values()) or "this node has no GPU")
    document = as_json(render(Spec(devices=devices, edits=edits[""])))
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
            f"for several claims at once, with --consumable-shares {offered.share.consumable}:",
            *aligned([_PART_COLUMNS, *rows]),
        ]
    return "\n".join(lines) + "\n"


def _not_for_machines(inventory: Inventory) -> Iterator[str]:
    """Yield why GPUs are not offered to virtual machines, each reason once."""
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


def mig_devices(gpu: Gpu) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU."""
    return tuple(each for each in gpu.mig_instances if isinstance(each, MigDevice))


def _mig_rows(gpu: Gpu) -> Iterable[tuple[str, ...]]:
    for device in mig_devices(gpu):
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
        for device in mig_devices(gpu)
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
    """Yield what all devices have in common on one line, then what else each has."""
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
    """Yield for each GPU how many placements each profile has on it at most."""
    profiles: dict[str, Counter[str]] = {}
    for part in partitions:
        if isinstance(part.device.base, Mig):
            counts = profiles.setdefault(gpu_name(part.gpu.minor), Counter())
            counts[part.device.base.profile] += 1
    for parent, counts in profiles.items():
        where = ", ".join(f"{profile} in {places}" for profile, places in counts.items())
        yield f"  on demand on {parent}, places: {where}"


def _shares(sources: Iterable[NodeDevice]) -> Iterable[str]:
    """Yield the number of shares of each divided device."""
    for source in sources:
        share = source.device.share
        if isinstance(share, EqualShare) and share.index == 0:
            division, name = share.division, name_of(source.gpu, Device(base=source.device.base))
            yield (
                f"  shares of {name}: {division.count} of {division.served_as} by "
                f"{division.strategy}"
            )


def _part_rows(device: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Yield how much claims may consume of a device that several can have, by capacity."""
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


def as_json(document: object) -> str:
    """Return a document as JSON."""
    return json.dumps(document, indent=2) + "\n"
