"""Makes the GPUs of a machine from a profile: addresses, made-up identities, NVML's facts.

In: a profile and a seed, so that two machines of one profile have different UUIDs. Out: one
`SimulatedGpu` per slot, in the profile's order, and the `GpuFacts` that go into the state file.
The same profile and seed always give the same identities.
"""

import hashlib
import itertools
import uuid

from msgspec import Struct

from dra_driver.simulator import profile as profiles
from dra_driver.simulator.layout import Fact, LinkEnd, Text
from dra_driver.simulator.profile import Card, Process, Profile
from dra_driver.simulator.state import GpuFacts, LinkTo

NVIDIA_VENDOR = 0x10DE
_MIB = 1024**2
_FABRIC_COMPLETED = 3
# Performance state, XID, clock; cards with ECC add single and double bit errors, then MIG changes.
_EVENTS_ECC = 0x1 | 0x2
_EVENTS = 0x4 | 0x8 | 0x10
_EVENT_MIG = 0x100
_EVENT_RECOVERY = 0x8000
_BANKS_PER_GIB = 8
_Facts = dict[Fact, int | None]
"""None means that NVML returns NOT_SUPPORTED."""


class SimulatedGpu(Struct, frozen=True, kw_only=True):
    """One GPU of a machine.

    `pci` is the kernel's address, lower case with a four-digit domain; `bridges` are the PCI
    bridges above it, root port first. `residents` are the processes on it from boot on, `mig_mode`
    whether it boots in MIG mode, and `nvlinks` the addresses of the GPUs that its NVLinks lead to.
    """

    slot: int
    uuid: str
    serial: str
    pci: str
    bridges: tuple[str, ...]
    minor: int
    numa_node: int
    module_id: int | None
    card: Card
    residents: tuple[Process, ...] = ()
    mig_mode: bool = False
    nvlinks: tuple[str, ...] = ()

    @property
    def root_bus(self) -> str:
        """The PCIe root above the GPU, as in /sys: "domain:bus"."""
        return (self.bridges[0] if self.bridges else self.pci).rpartition(":")[0]

    @property
    def nvml_bus_id(self) -> str:
        """The address as NVML writes it: upper case with an eight-digit domain."""
        return _bus_id(self.pci)


def gpus_of(profile: Profile, seed: str) -> list[SimulatedGpu]:
    """Return the profile's GPUs with their identities."""
    return [
        SimulatedGpu(
            slot=slot,
            uuid=gpu.uuid or f"GPU-{uuid.UUID(bytes=_digest(seed, gpu.pci)[:16], version=4)}",
            serial=gpu.serial or _serial(seed, gpu.pci, profile.card_of(gpu)),
            pci=gpu.pci,
            bridges=tuple(gpu.bridges),
            minor=gpu.minor,
            numa_node=gpu.numa_node,
            module_id=gpu.module_id,
            card=profile.card_of(gpu),
            residents=tuple(gpu.processes),
            mig_mode=gpu.mig_mode,
            nvlinks=tuple(gpu.nvlinks),
        )
        for slot, gpu in enumerate(profile.gpus)
    ]


def facts_of(gpu: SimulatedGpu, profile: Profile, driver_version: str) -> GpuFacts:
    """Return everything that NVML reports about a GPU."""
    card = gpu.card
    facts: _Facts = {**_address_facts(gpu, profile), **_memory_facts(card), **_mode_facts(card)}
    facts |= _sensor_facts(card) | _power_facts(card) | _clock_facts(card)
    facts[Fact.MEMORY_USED] = sum(process.memory_mib * _MIB for process in gpu.residents)
    if gpu.mig_mode:
        facts |= {Fact.MIG_CURRENT: 1, Fact.MIG_PENDING: 1}
    if profiles.knows_recovery_action(driver_version):
        facts[Fact.RECOVERY_ACTION] = 0
        facts[Fact.EVENT_TYPES] = (facts[Fact.EVENT_TYPES] or 0) | _EVENT_RECOVERY
    switch = profile.nvswitch
    if switch is not None and switch.fabric and card.nvlink is not None:
        facts |= {
            Fact.FABRIC_STATE: _FABRIC_COMPLETED,
            Fact.FABRIC_STATUS: 0,
            Fact.FABRIC_CLIQUE: switch.clique,
            Fact.FABRIC_HEALTH: 0,
        }
    cluster = switch.cluster if switch else None
    return GpuFacts(
        facts={fact: number for fact, number in facts.items() if number is not None},
        texts=_texts(gpu, driver_version),
        links=_links(gpu, profile),
        mig=card.mig.profiles if card.mig else [],
        residents=gpu.residents,
        fabric_cluster=cluster.bytes if cluster else bytes(16),
    )


def _digest(seed: str, pci: str) -> bytes:
    return hashlib.sha256(f"{seed}/{pci}".encode()).digest()


def _serial(seed: str, pci: str, card: Card) -> str:
    if not card.serial_number:
        return ""
    return f"16{int.from_bytes(_digest(seed, pci)[16:24]) % 10**11:011d}"


def _address_facts(gpu: SimulatedGpu, profile: Profile) -> dict[Fact, int]:
    domain, bus, device = gpu.pci.partition(".")[0].split(":")
    subsystem_vendor = int(gpu.card.subsystem_vendor, 16)
    facts = {
        Fact.MINOR: gpu.minor,
        Fact.PCI_DOMAIN: int(domain, 16),
        Fact.PCI_BUS: int(bus, 16),
        Fact.PCI_DEVICE: int(device, 16),
        Fact.PCI_DEVICE_ID: int(gpu.card.device_id, 16) << 16 | NVIDIA_VENDOR,
        Fact.PCI_SUBSYSTEM_ID: int(gpu.card.subsystem_id, 16) << 16 | subsystem_vendor,
        Fact.PCIE_ROOT: int(gpu.root_bus.replace(":", ""), 16),
        Fact.HOST_NUMA_NODE: gpu.numa_node,
        Fact.CPU_FIRST: max(gpu.numa_node, 0) * profile.cpus_per_numa_node,
        Fact.CPU_COUNT: profile.cpus_per_numa_node,
        Fact.BOARD_ID: int(bus, 16) << 8,
        Fact.MULTI_GPU_BOARD: 0,
    }
    if len(gpu.bridges) > 1:  # below the root port there is a switch; its address names it
        facts[Fact.PCIE_SWITCH] = int(gpu.bridges[1].translate({ord(c): None for c in ":."}), 16)
    if gpu.module_id is not None:
        facts[Fact.MODULE_ID] = gpu.module_id
    return facts


def _memory_facts(card: Card) -> _Facts:
    facts: _Facts = {}
    if card.memory is not None:
        facts |= {
            Fact.MEMORY_TOTAL: card.memory.total_mib * _MIB,
            Fact.MEMORY_RESERVED: card.memory.reserved_mib * _MIB,
            Fact.BAR1_TOTAL: card.memory.bar1_mib * _MIB,
            Fact.BAR1_USED: _MIB,
            Fact.MEMORY_BUS_WIDTH: card.memory.bus_bits,
        }
    if card.ecc is not None:
        facts |= {Fact.ECC_CURRENT: int(card.ecc), Fact.ECC_PENDING: int(card.ecc)}
        facts |= {Fact.ECC_CORRECTED: 0, Fact.ECC_UNCORRECTED: 0}
        facts[Fact.ECC_UNCORRECTED_VOLATILE] = 0
    if card.row_remapping:
        facts |= {
            Fact.ROWS_CORRECTABLE: 0,
            Fact.ROWS_UNCORRECTABLE: 0,
            Fact.ROWS_PENDING: 0,
            Fact.ROWS_FAILED: 0,
            Fact.ROW_BANKS: (card.memory.total_mib if card.memory else 0) // 1024 * _BANKS_PER_GIB,
        }
    elif card.ecc is not None:
        facts[Fact.RETIRED_PAGES] = 0
    return facts


def _mode_facts(card: Card) -> dict[Fact, int]:
    major, minor = card.compute_capability.split(".")
    facts = {
        Fact.BRAND: profiles.BRANDS[card.brand],
        Fact.ARCHITECTURE: profiles.ARCHITECTURES[card.architecture],
        Fact.COMPUTE_MAJOR: int(major),
        Fact.COMPUTE_MINOR: int(minor),
        Fact.CORES: card.cores,
        Fact.VIRTUALIZATION_MODE: 0,
        Fact.PERSISTENCE_MODE: 0,
        Fact.COMPUTE_MODE: 0,
        Fact.DISPLAY_MODE: 0,
        Fact.DISPLAY_ACTIVE: 0,
        Fact.EVENT_TYPES: _EVENTS
        | (_EVENTS_ECC if card.ecc is not None else 0)
        | (_EVENT_MIG if card.mig else 0),
        Fact.SLOWDOWN: 0,
    }
    if card.time_slicing:
        facts[Fact.TIME_SLICE] = 0
    if card.addressing_mode is not None:
        facts[Fact.ADDRESSING_MODE] = profiles.ADDRESSING_MODES[card.addressing_mode]
    if card.mig is not None:
        facts |= {Fact.MIG_CURRENT: 0, Fact.MIG_PENDING: 0}
        facts |= {
            Fact.MIG_MAX_DEVICES: card.mig.max_devices,
            Fact.MIG_UNITS: card.mig.memory_slices,
            Fact.MIG_RESET_TO_SWITCH: int(card.mig.reset_to_switch),
            Fact.MIG_COMPUTE_REV1: int(card.mig.compute_rev1),
        }
    return facts


def _sensor_facts(card: Card) -> _Facts:
    return {
        Fact.TEMPERATURE: card.temperature.idle,
        Fact.TEMPERATURE_SHUTDOWN: card.temperature.shutdown,
        Fact.TEMPERATURE_SLOWDOWN: card.temperature.slowdown,
        Fact.PCIE_GENERATION: card.pcie_generation,
        Fact.PCIE_GENERATION_MAX: card.pcie_generation,
        Fact.PCIE_WIDTH: card.pcie_width,
        Fact.PCIE_WIDTH_MAX: card.pcie_width,
        Fact.PERFORMANCE_STATE: _idle_state(card),
        Fact.UTILIZATION_GPU: 0,
        Fact.UTILIZATION_MEMORY: 0,
        Fact.TEMPERATURE_MAX: card.temperature.maximum,
        Fact.TEMPERATURE_MEMORY: card.temperature.memory,
        Fact.TEMPERATURE_MEMORY_MAX: card.temperature.memory_maximum,
        Fact.FAN_SPEED: card.fan_percent,
    }


def _idle_state(card: Card) -> int:
    """Return the performance state at rest: cards with HBM do not lower its clock."""
    return 0 if card.idle_clocks.memory == card.clocks.memory else 8


def _power_facts(card: Card) -> _Facts:
    if card.power is None:
        return {}
    watts = {
        Fact.POWER_USAGE: card.power.idle,
        Fact.POWER_LIMIT: card.power.default,
        Fact.POWER_DEFAULT: card.power.default,
        Fact.POWER_MIN: card.power.minimum,
        Fact.POWER_MAX: card.power.maximum,
    }
    return {fact: power and power * 1000 for fact, power in watts.items()}


def _clock_facts(card: Card) -> dict[Fact, int]:
    facts = {
        Fact.CLOCK_GRAPHICS: card.idle_clocks.graphics,
        Fact.CLOCK_SM: card.idle_clocks.graphics,
        Fact.CLOCK_MEMORY: card.idle_clocks.memory,
        Fact.CLOCK_VIDEO: card.idle_clocks.video,
        Fact.MAX_CLOCK_GRAPHICS: card.clocks.graphics,
        Fact.MAX_CLOCK_SM: card.clocks.graphics,
        Fact.MAX_CLOCK_MEMORY: card.clocks.memory,
        Fact.MAX_CLOCK_VIDEO: card.clocks.video,
    }
    settable = card.clocks if card.application_clocks == "max" else card.application_clocks
    if settable != "none":
        facts[Fact.APPLICATION_GRAPHICS] = settable.graphics
        facts[Fact.APPLICATION_MEMORY] = settable.memory
    return facts


def _texts(gpu: SimulatedGpu, driver_version: str) -> dict[Text, str]:
    card = gpu.card
    inforom = card.inforom
    texts = {
        Text.UUID: gpu.uuid,
        Text.NAME: card.name,
        Text.SERIAL: gpu.serial,
        Text.PCI_BUS_ID: gpu.nvml_bus_id,
        Text.BOARD_PART_NUMBER: card.board_part_number,
        Text.VBIOS: card.vbios,
        Text.GSP_FIRMWARE: driver_version if card.gsp_firmware else None,
        Text.INFOROM_IMAGE: inforom.image if inforom else None,
        Text.INFOROM_OEM: inforom.oem if inforom else None,
        Text.INFOROM_ECC: inforom.ecc if inforom else None,
        Text.INFOROM_POWER: inforom.power if inforom else None,
    }
    return {text: value for text, value in texts.items() if value}


def _links(gpu: SimulatedGpu, profile: Profile) -> list[LinkTo]:
    """Return a card's links: to other GPUs, or spread over the switches; the rest lead nowhere."""
    if gpu.card.nvlink is None:
        return []
    ports, version = gpu.card.nvlink.links, gpu.card.nvlink.version
    ends: list[LinkTo] = []
    if gpu.nvlinks:
        devices = {each.pci: profile.card_of(each).device_id for each in profile.gpus}
        ends = [_link(version, LinkEnd.GPU, pci, devices[pci]) for pci in gpu.nvlinks]
    elif (switches := profile.nvswitch) is not None:
        device, addresses = switches.device_id, itertools.cycle(switches.addresses)
        ends = [
            _link(version, LinkEnd.SWITCH, address, device)
            for address in itertools.islice(addresses, ports)
        ]
    return ends + [LinkTo(version=version)] * (ports - len(ends))


def _bus_id(pci: str) -> str:
    domain, _, rest = pci.partition(":")
    return f"{domain:0>8}:{rest}".upper()


def _link(version: int, to: LinkEnd, pci: str, device_id: str) -> LinkTo:
    device = int(device_id, 16) << 16 | NVIDIA_VENDOR
    return LinkTo(to=to, version=version, remote=_bus_id(pci), remote_device=device)
