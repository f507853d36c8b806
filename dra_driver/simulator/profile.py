"""Profiles: a simulated machine as a YAML file.

In: the name of a shipped profile, or a path to a file: YAML, or an archive of `dra-driver gather`,
which has a profile of its node. Out: a validated `Profile`. A profile lists GPUs and the card of
each; cards are described in separate files (`cards/`), or in the profile itself under `cards`.
Unknown keys are errors, because a misspelt fact would be silently absent.
"""

import functools
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
import yaml

from dra_driver.errors import ConfigError
from dra_driver.simulator import archive
from dra_driver.simulator.iommu import Iommu
from dra_driver.simulator.layout import MAX_GPU_INSTANCES
from dra_driver.simulator.parts import (
    Count,
    HexWord,
    PciAddress,
    PciClass,
    Positive,
    ShortText,
    one_of,
    problems,
)

PROFILES = Path(__file__).with_name("profiles")
CARDS = Path(__file__).with_name("cards")

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, six times as fast

BRANDS = {
    "unknown": 0, "quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6,
    "quadro-rtx": 12, "nvidia-rtx": 13, "nvidia": 14, "geforce-rtx": 15, "titan-rtx": 16,
}  # fmt: skip
ARCHITECTURES = {
    "kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada": 8,
    "hopper": 9, "blackwell": 10, "rubin": 13,
}  # fmt: skip
ADDRESSING_MODES = {"none": 0, "hmm": 1, "ats": 2}

Version = Annotated[str, pydantic.StringConstraints(pattern=r"^\d+\.\d+(\.\d+)?$")]
FunctionName = Annotated[
    str, pydantic.StringConstraints(pattern=r"^nvml[A-Za-z0-9_]+$", max_length=63)
]
# Limits of the state file and of NVML.
_MOST_MIG_PROFILES = 24
_MOST_UNITS = 32
_GPU_INSTANCE_PROFILES = 18
_FIRST_WITH_MEMORY_LIMITS = 615
_FIRST_WITH_RECOVERY_ACTION = 565


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Memory(_Part):
    """Memory in MiB, as nvidia-smi shows it."""

    total_mib: Positive
    reserved_mib: Count = 0
    bar1_mib: Positive = 256
    bus_bits: Positive | None = None

    @pydantic.model_validator(mode="after")
    def _reserve_fits(self) -> Self:
        if self.reserved_mib >= self.total_mib:
            raise ValueError("reserved_mib must be less than total_mib")
        return self


class Power(_Part):
    """Power in watts: drawn at rest, the default limit, and the range of limits."""

    idle: Positive
    default: Positive | None = None
    minimum: Positive | None = None
    maximum: Positive | None = None


class ApplicationClocks(_Part):
    """Clocks in MHz that programs get by default."""

    graphics: Positive
    memory: Positive


class Clocks(_Part):
    """Clocks in MHz."""

    graphics: Positive
    memory: Positive
    video: Positive


class Temperature(_Part):
    """Temperatures in degrees Celsius: at rest, and the thresholds."""

    idle: Positive
    memory: Positive | None = None
    shutdown: Positive | None = None
    slowdown: Positive | None = None
    maximum: Positive | None = None
    memory_maximum: Positive | None = None


class Inforom(_Part):
    """Versions of the objects in the card's InfoROM."""

    image: ShortText
    oem: ShortText
    ecc: ShortText
    power: ShortText | None = None


class NvLink(_Part):
    """NVLink ports of a card and their generation."""

    links: Annotated[int, pydantic.Field(gt=0, le=36)]
    version: Positive


class MigProfile(_Part):
    """One GPU instance profile.

    `id` is its number in NVML's create calls, `index` the one in queries. `size` and `starts` are
    in memory slices. Engines are the instance's share of the card's.
    """

    id: Count
    index: Annotated[int, pydantic.Field(ge=0, lt=_GPU_INSTANCE_PROFILES)]
    name: Annotated[str, pydantic.StringConstraints(pattern=r"^[ -~]{1,31}$")]
    slices: Positive
    instances: Positive
    size: Positive
    starts: list[Count]
    memory_mib: Positive
    multiprocessors: Positive
    copy_engines: Count
    decoders: Count = 0
    encoders: Count = 0
    jpeg_engines: Count = 0
    ofa_engines: Count = 0
    graphics: bool = False


class Mig(_Part):
    """What a card can do with MIG.

    `reset_to_switch`: Ampere needs a reset to change the mode, which survives a reboot.
    `compute_rev1`: the card has the compute instance profile 1_SLICE_REV1 beside 1_SLICE.
    """

    memory_slices: Annotated[int, pydantic.Field(gt=0, le=_MOST_UNITS)]
    max_devices: Annotated[int, pydantic.Field(gt=0, le=MAX_GPU_INSTANCES)]
    reset_to_switch: bool
    compute_rev1: bool = False
    profiles: Annotated[list[MigProfile], pydantic.Field(max_length=_MOST_MIG_PROFILES)]

    @pydantic.model_validator(mode="after")
    def _profiles_differ(self) -> Self:
        for field in ("id", "index"):
            values = [getattr(profile, field) for profile in self.profiles]
            if doubled := {value for value in values if values.count(value) > 1}:
                raise ValueError(f"two MIG profiles have the same {field}: {sorted(doubled)}")
        return self

    @pydantic.model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        for profile in self.profiles:
            # The driver numbers instances by halving the card, down to eighths.
            if self.memory_slices // profile.size not in {1, 2, 4, 8}:
                raise ValueError(
                    f"{profile.name} of size {profile.size} is not the whole, a half, a quarter or "
                    f"an eighth of the card's {self.memory_slices} memory slices"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _placements_fit(self) -> Self:
        for profile in self.profiles:
            for start in profile.starts:
                if start + profile.size > self.memory_slices:
                    raise ValueError(
                        f"{profile.name} at {start} of size {profile.size} ends beyond the card's "
                        f"{self.memory_slices} memory slices"
                    )
        return self


class Card(_Part):
    """What all cards of a product have in common.

    `subsystem_vendor` is the machine's maker if the card is part of the machine. Application clocks
    are the highest ones if the card's own are unknown.
    """

    name: ShortText
    brand: str
    architecture: str
    compute_capability: Annotated[str, pydantic.StringConstraints(pattern=r"^\d+\.\d+$")]
    device_id: HexWord
    pci_class: PciClass = "0x030200"
    subsystem_id: HexWord
    subsystem_vendor: HexWord = "0x10de"
    memory: Memory | None = None
    power: Power | None = None
    idle_clocks: Clocks
    clocks: Clocks
    application_clocks: ApplicationClocks | Literal["max", "none"] = "max"
    temperature: Temperature
    cores: Positive
    pcie_generation: Positive
    pcie_width: Positive = 16
    board_part_number: ShortText | None = None
    vbios: ShortText | None = None
    inforom: Inforom | None = None
    serial_number: bool = True
    ecc: bool | None = None
    row_remapping: bool = False
    fan_percent: Count | None = None
    gsp_firmware: bool = False
    time_slicing: bool = True
    addressing_mode: Literal["none", "hmm", "ats"] | None = None
    nvlink: NvLink | None = None
    mig: Mig | None = None

    @pydantic.field_validator("brand")
    @classmethod
    def _known_brand(cls, value: str) -> str:
        return one_of(value, BRANDS)

    @pydantic.field_validator("architecture")
    @classmethod
    def _known_architecture(cls, value: str) -> str:
        return one_of(value, ARCHITECTURES)


class NvSwitch(_Part):
    """The switches that all NVLinks of the machine lead to.

    With a `fabric` each GPU joins it and reports that. `cluster` is the UUID of a fabric that
    reaches other nodes, `clique` the number of its GPUs in it.
    """

    device_id: HexWord
    addresses: Annotated[list[PciAddress], pydantic.Field(min_length=1)]
    fabric: bool = False
    cluster: uuid.UUID | None = None
    clique: Count = 0


class Process(_Part):
    """A process that is on a GPU from boot on. One that draws is, for example, a display server."""

    pid: Positive
    memory_mib: Count
    kind: Literal["graphics", "compute"] = "graphics"


class MigDevice(_Part):
    """An initial MIG device: a GPU instance with a compute instance that fills it."""

    profile: ShortText
    start: Count


class Gpu(_Part):
    """One GPU in the machine.

    `bridges` are the PCI bridges above it, the root port first; the PCIe root is the root port's
    bus. `numa_node` -1 means the machine has none. With `mig_mode` its MIG mode is on from boot on,
    as by an admin's service; `mig_devices` are those created since. UUID and serial number are made
    up from the machine's name and the address unless given. `nvlinks` are the GPUs that its NVLinks
    lead to, one for each link; without them the links lead to the machine's switches.
    """

    card: str
    pci: PciAddress
    minor: Annotated[int, pydantic.Field(ge=0, lt=255)]
    numa_node: Annotated[int, pydantic.Field(ge=-1, lt=1024)] = -1
    bridges: list[PciAddress] = []
    mig_mode: bool = False
    mig_devices: Annotated[list[MigDevice], pydantic.Field(max_length=MAX_GPU_INSTANCES)] = []
    nvlinks: list[PciAddress] = []
    processes: list[Process] = []
    module_id: Positive | None = None
    uuid: (
        Annotated[
            str,
            pydantic.StringConstraints(pattern=r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
        ]
        | None
    ) = None
    serial: ShortText | None = None


class Profile(_Part):
    """A machine: its driver, what matters of its CPUs for GPUs, and its GPUs in any order.

    `memory_limits` is what enforces memory limits of control groups from R615 on: the driver (misc,
    the default), or nothing. `mig_change_ms` is how long a card takes to make or destroy a GPU or
    compute instance; real ones take up to a second. `iommu` is true or describes it.
    """

    name: Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
    description: str = ""
    driver_version: Version
    cuda_version: Annotated[str, pydantic.StringConstraints(pattern=r"^\d+\.\d$")]
    cpus_per_numa_node: Positive = 16
    missing_functions: list[FunctionName] = []
    memory_limits: Literal["misc", "off"] | None = None
    mig_change_ms: Annotated[int, pydantic.Field(ge=0, le=3_600_000)] = 20
    nvswitch: NvSwitch | None = None
    iommu: Iommu | None = None
    cards: dict[str, Card] = {}
    gpus: Annotated[list[Gpu], pydantic.Field(max_length=32)]

    @pydantic.field_validator("memory_limits", mode="before")
    @classmethod
    def _yaml_off(cls, value: object) -> object:
        return "off" if value is False else value

    @pydantic.field_validator("iommu", mode="before")
    @classmethod
    def _yaml_on(cls, value: object) -> object:
        return ({} if value else None) if isinstance(value, bool) else value

    @pydantic.model_validator(mode="after")
    def _limits_need_r615(self) -> Self:
        if self.memory_limits == "misc" and not limits_memory(self.driver_version):
            raise ValueError(
                f"memory_limits: a driver {self.driver_version} has none; they need R615 or newer"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        for field in ("pci", "minor", "uuid"):
            values = [v for gpu in self.gpus if (v := getattr(gpu, field)) is not None]
            if doubled := {value for value in values if values.count(value) > 1}:
                raise ValueError(f"two GPUs have the same {field}: {sorted(doubled)}")
        for gpu in self.gpus:
            if gpu.card not in self.cards:
                known = ", ".join(sorted({*self.cards, *(p.stem for p in CARDS.glob("*.yaml"))}))
                raise ValueError(f"GPU {gpu.pci}: no card {gpu.card!r}; known are {known}")
            if gpu.mig_mode and self.cards[gpu.card].mig is None:
                raise ValueError(f"GPU {gpu.pci}: mig_mode is on, and its card has no MIG")
            if gpu.mig_devices and not gpu.mig_mode:
                raise ValueError(f"GPU {gpu.pci}: it has mig_devices, and mig_mode is off")
            ports = nvlink.links if (nvlink := self.cards[gpu.card].nvlink) else 0
            if len(gpu.nvlinks) > ports:
                raise ValueError(f"GPU {gpu.pci}: {len(gpu.nvlinks)} NVLinks, its card has {ports}")
        for gpu in self.gpus:
            _check_links(gpu, self.gpus)
        if self.iommu is not None:
            bridges = (bridge for gpu in self.gpus for bridge in gpu.bridges)
            self.iommu.check([gpu.pci for gpu in self.gpus], bridges)
        return self

    def card_of(self, gpu: Gpu) -> Card:
        """Return the card of one of this profile's GPUs."""
        return self.cards[gpu.card]


def limits_memory(driver_version: str) -> bool:
    """Tell whether a driver supports memory limits of control groups."""
    return int(driver_version.partition(".")[0]) >= _FIRST_WITH_MEMORY_LIMITS


def knows_recovery_action(driver_version: str) -> bool:
    """Tell whether a driver reports recovery actions."""
    return int(driver_version.partition(".")[0]) >= _FIRST_WITH_RECOVERY_ACTION


def _check_links(gpu: Gpu, gpus: Iterable[Gpu]) -> None:
    """Check that each NVLink of a GPU leads back from its other end."""
    back = {each.pci: each.nvlinks.count(gpu.pci) for each in gpus if each.pci != gpu.pci}
    for other in set(gpu.nvlinks):
        if back.get(other) != gpu.nvlinks.count(other):
            raise ValueError(
                f"GPU {gpu.pci}: {gpu.nvlinks.count(other)} NVLinks lead to {other}, and"
                f" {back.get(other, 0)} back; name each link at both of its ends"
            )


def names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load(name: str) -> Profile:
    """Load a shipped profile by name, or any file by its path.

    Raises:
        ConfigError: there is no such profile, or it is invalid; the text says where and what is
            allowed.
        StateError: the archive is damaged or has no profile. VersionError: it is too new.
    """
    is_path = re.search(r"/|\.(ya?ml|tar\.gz|tgz)$", name)
    path = Path(name) if is_path else PROFILES / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"no profile {name!r}; give the path of a YAML file, of an archive of `dra-driver"
            f" gather`, or one of {', '.join(names())}"
        )
    with path.open("rb") as file:
        is_archive = file.read(len(archive.MAGIC)) == archive.MAGIC
    text = archive.profile_in(path) if is_archive else path.read_text()
    return parse(text, origin=str(path))


def parse(text: str, *, origin: str) -> Profile:
    """Read a profile from YAML; `origin` names it in errors.

    Raises ConfigError if the text is not YAML, or not a profile.
    """
    try:
        content = _read(text)
    except (yaml.YAMLError, ValueError, RecursionError) as cause:  # such as a number too long
        raise ConfigError(f"profile {origin} is not YAML: {cause}") from cause
    if not isinstance(content, dict):
        raise ConfigError(f"profile {origin} must be a mapping, not {type(content).__name__}")
    content = {"name": Path(origin).stem, **content}
    try:
        return Profile.model_validate(_with_cards(content))
    except pydantic.ValidationError as cause:
        raise ConfigError(f"profile {origin}: {problems(cause)}") from cause


def changed(profile: Profile, changes: Mapping[str, object]) -> Profile:
    """Return a profile with other values in some of its fields, checked like a new one.

    Raises ConfigError if a value is not allowed, by itself or with the others.
    """
    try:
        return Profile.model_validate(profile.model_dump() | dict(changes))
    except pydantic.ValidationError as cause:
        raise ConfigError(f"profile {profile.name}: {problems(cause)}") from cause


def dump(profile: Profile) -> str:
    """Write a profile as YAML that `parse` reads back to an equal one."""
    content = profile.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.dump(content, Dumper=_DUMPER, sort_keys=False, width=100))


@functools.lru_cache(maxsize=64)
def _read(text: str) -> Any:
    """Read YAML, each text only once, because a machine's profile is read often.

    The result is shared, so callers must not change it.
    """
    try:
        return yaml.load(text, _LOADER)  # noqa: S506 (a safe one)
    except yaml.YAMLError:
        return yaml.safe_load(text)  # whose error shows the line


def _with_cards(content: dict[str, Any]) -> dict[str, Any]:
    """Return a profile with the shipped cards that it names but does not describe."""
    gpus, own = content.get("gpus"), content.get("cards") or {}
    if not (isinstance(gpus, list) and isinstance(own, dict)):
        return content  # pydantic refuses it
    wanted = {str(gpu.get("card")) for gpu in gpus if isinstance(gpu, dict)} - own.keys()
    shipped = {
        path.stem: _read(path.read_text())
        for path in sorted(CARDS.glob("*.yaml"))
        if path.stem in wanted
    }
    return content | {"cards": shipped | own}
