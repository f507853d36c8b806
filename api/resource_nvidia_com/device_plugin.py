"""The config file of NVIDIA's device plugin, which says how a node's devices are shared.

In: the file's value, as YAML or JSON has it. Out: a `NodeConfig`. Form and defaults are those of
the device plugin's `version: v1`, so that a cluster's file can stay as it is. A field without
meaning for this driver gives a warning; a field that neither knows is an error, as is anything that
can only be a mistake. This module knows no node, so it does not choose devices (shares/divide.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator

from resource_nvidia_com.model import ConfigModel, checked
from resource_nvidia_com.printable import either, plain, shown
from resource_nvidia_com.problems import (
    InvalidConfigError,
    Path,
    Problem,
    check_duplicates,
    dotted,
    hint,
)
from resource_nvidia_com.resource_names import GPU, resource_name, shareable_name
from resource_nvidia_com.share_devices import DeviceChoice, device_choice, is_whole_gpu

VERSION = "v1"
MIG_STRATEGIES = ("none", "single", "mixed")
SHARED_SUFFIX = ".shared"
"""What `renameByDefault` adds to the name of a resource."""

MOST_REPLICAS = 1024
"""This driver's own limit: each replica is a device in the node's ResourceSlices."""

_NO_RESOURCES = "no resources specified: name them under resources, or remove this part of sharing"
_OF_SHARING = ("renameByDefault", "failRequestsGreaterThanOne", "resources", "compute")
_NO_LIMIT = "has no effect without memory: equal, except where control groups limit memory (R615)"
_WITHOUT_MEANING = "has no effect on this driver"
_ONE = "one replica is the whole device: nothing is shared"
_ONE_MPS = f"{_ONE}; programs of one claim share it by MPS if the claim has a config for that"


class SharedBy(StrEnum):
    """How the replicas of a device share it."""

    TIME_SLICING = "timeSlicing"
    MPS = "mps"


class Compute(StrEnum):
    """How a device's SMs are divided under MPS."""

    DIVIDED = "divided"
    """Each share has its part of them, as with the device plugin."""

    FREE = "free"
    """Each share may use all of them, as far as others leave them idle: only memory is divided."""


class Memory(StrEnum):
    """How a device's memory is divided under time-slicing; MPS always divides it."""

    SHARED = "shared"
    """Each share may use what the others leave, as with the device plugin."""

    EQUAL = "equal"
    """Each share has its part of it."""


class AllocationPolicy(StrEnum):
    """Which device the next share is taken from."""

    DISTRIBUTED = "distributed"
    """A different device from that of the previous share, if possible."""

    PACKED = "packed"
    """The same device until it has none left, so that others stay free."""


class OverLimit(StrEnum):
    """What to do about a container that has more memory of a device than its limit."""

    REPORT = "report"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedResource:
    """Devices that are divided into replicas.

    Attributes:
        name: the resource that the devices belong to: `nvidia.com/gpu` or `nvidia.com/mig-…`.
        served_as: the resource name that pods ask for.
        devices: which of the node's devices of this name.
        replicas: how many each is divided into; at least two.
        memory: whether the memory is divided, too, where time-slicing alone would not.
        over_limit: what to do about a container above its part; None: as the node's setting says.
    """

    name: str
    served_as: str
    devices: DeviceChoice
    replicas: int
    memory: Memory = Memory.SHARED
    over_limit: OverLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What a node's config says; by default nothing is shared.

    Attributes:
        mig_strategy: `none`, `single` or `mixed`; None where the file does not say.
        shared_by: None where nothing is shared.
        fail_requests_greater_than_one: a request for several replicas is refused.
        compute: whether the SMs are divided too; without MPS they never are.
        packed: the shares of one device are given out before those of the next.
        resources: in the order of the file; empty where nothing is shared.
        warnings: the fields of the file that have no effect, each with the reason.
    """

    mig_strategy: str | None = None
    shared_by: SharedBy | None = None
    fail_requests_greater_than_one: bool = False
    compute: Compute = Compute.DIVIDED
    packed: bool = False
    resources: tuple[SharedResource, ...] = ()
    warnings: tuple[str, ...] = ()


def decode_node_config(value: object) -> NodeConfig:
    """Return what a config file says; an empty one shares nothing. Raises InvalidConfigError."""
    if value is None:
        return NodeConfig()
    check_duplicates(value)
    if not isinstance(value, Mapping):
        text = f"a device-plugin config must be an object with version: {VERSION}"
        raise InvalidConfigError([Problem(path=(), text=f"{text}, not {shown(value)}")])
    config = checked(DevicePluginFile, _without_null(value))
    problems = list(_contradictions(config.sharing))
    if problems:
        raise InvalidConfigError(problems)
    return _node_config(config)


def _without_null(value: Mapping[str, object]) -> Mapping[str, object]:
    """Return a file without a way of sharing that is null, as templates write it.

    The device plugin treats null as absent. If no other is there, it is most likely a section
    whose lines have lost their indentation, and stays an error.
    """
    sharing = value.get("sharing")
    if not isinstance(sharing, Mapping):
        return value
    ways = list(SharedBy)
    kept = {key: way for key, way in sharing.items() if way is not None or key not in ways}
    return {**value, "sharing": kept} if any(key in kept for key in ways) else value


def _version(value: object) -> str:
    if value in (None, ""):
        return VERSION
    if value != VERSION:
        raise ValueError(f"must be {VERSION}, the only version, not {shown(value)}")
    return VERSION


def _mig_strategy(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in MIG_STRATEGIES:
        near = hint(value, MIG_STRATEGIES) if isinstance(value, str) else ""
        raise ValueError(f"{near}must be {either(MIG_STRATEGIES)}, not {shown(value)}")
    return value


def _section(value: object) -> object:
    # A section whose lines are indented too little is null as well.
    if value is None:
        raise ValueError(_NO_RESOURCES)
    return value


def _some(value: object) -> object:
    if value is None or value == []:
        raise ValueError(_NO_RESOURCES)
    return value


_NAME = Field(strict=False)
"""Names are parsed from text, which a strict enumeration would refuse."""


class ReplicatedResource(ConfigModel):
    """One entry under `resources`, as written."""

    name: Annotated[str, PlainValidator(shareable_name)]
    rename: Annotated[str | None, PlainValidator(resource_name)] = None
    devices: Annotated[DeviceChoice, PlainValidator(device_choice)] = "all"
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
    memory: Annotated[Memory | None, _NAME] = None
    over_limit: Annotated[OverLimit | None, _NAME] = None

    def served_as(self, *, rename_by_default: bool) -> str:
        """Return the resource name that pods ask for."""
        return self.rename or (self.name + SHARED_SUFFIX if rename_by_default else self.name)


class ReplicatedSection(ConfigModel):
    """`sharing.timeSlicing` or `sharing.mps`."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: Annotated[list[ReplicatedResource], BeforeValidator(_some)] = Field(
        default_factory=list, validate_default=True
    )


class MpsSection(ReplicatedSection):
    """`sharing.mps`, with a field of this driver's own."""

    compute: Annotated[Compute, _NAME] = Compute.DIVIDED


class SharingSection(ConfigModel):
    """`sharing`."""

    time_slicing: Annotated[ReplicatedSection | None, BeforeValidator(_section)] = None
    mps: Annotated[MpsSection | None, BeforeValidator(_section)] = None


class PluginSection(ConfigModel):
    """`flags.plugin`; `model_extra` has the other flags."""

    model_config = ConfigDict(extra="allow")

    shared_devices_allocation_policy: Annotated[AllocationPolicy | None, _NAME] = None


class FlagsSection(ConfigModel):
    """`flags`: what the plugin's command line says otherwise; `model_extra` has the others."""

    model_config = ConfigDict(extra="allow")

    mig_strategy: Annotated[str | None, PlainValidator(_mig_strategy)] = None
    plugin: PluginSection | None = None


class DevicePluginFile(ConfigModel):
    """The file as written."""

    version: Annotated[str, PlainValidator(_version)] = VERSION
    flags: FlagsSection | None = None
    resources: Any = None
    imex: Any = None
    sharing: SharingSection | None = None


def _contradictions(sharing: SharingSection | None) -> Iterator[Problem]:
    """Yield contradictions between fields that are valid by themselves."""
    sections = _sections(sharing)
    if all(section for _, section in sections):
        text = "timeSlicing and mps exclude each other: remove one of them"
        yield Problem(path=("sharing",), text=f"sharing: {text}")
    for kind, section in sections:
        if section is not None:
            path: Path = ("sharing", str(kind), "resources")
            for below, text in _resource_problems(section, kind):
                where = (*path, *below)
                yield Problem(path=where, text=f"{dotted(where)}: {text}")


def _resource_problems(section: ReplicatedSection, by: SharedBy) -> Iterator[tuple[Path, str]]:
    """Yield (path below the resources, what is wrong)."""
    served: dict[str, str] = {}
    chosen: dict[str, set[str] | None] = {}
    for index, resource in enumerate(section.resources):
        name = resource.served_as(rename_by_default=section.rename_by_default)
        try:
            resource_name(name)
        except ValueError as error:
            yield (index,), str(error)
        if resource.memory is not None and by is SharedBy.MPS:
            yield (index, "memory"), "mps always divides memory: remove this field"
        listed = resource.devices if isinstance(resource.devices, tuple) else ()
        for reference in filter(is_whole_gpu, listed if resource.name != GPU else ()):
            text = f"{reference} is a whole GPU, but {resource.name} is a MIG device"
            how = 'name it by indexes such as "0:1" (GPU:MIG) or by its MIG UUID'
            yield (index, "devices"), f"{text}: {how}"
        owner = served.setdefault(name, resource.name)
        if owner != resource.name:
            text = f"{resource.name} is served as {name}, and so is {owner}"
            yield (index,), f"{text}: rename one of them"
        if wrong := _chosen_before(resource, chosen):
            yield (index,), f"{resource.name} is listed twice{wrong}"


def _chosen_before(resource: ReplicatedResource, chosen: dict[str, set[str] | None]) -> str:
    """Return what is wrong with another choice of a resource's devices; empty if nothing is.

    `chosen` are the previous choices: their lists, or None for one that is not a list.
    """
    listed = resource.devices if isinstance(resource.devices, tuple) else None
    if resource.name not in chosen:
        chosen[resource.name] = None if listed is None else set(listed)
        return ""
    known = chosen[resource.name]
    if known is None or listed is None:
        return ": keep one, or give each a list of devices of its own"
    both = [reference for reference in listed if reference in known]
    known.update(listed)
    return f" with {', '.join(both[:3])}: name each device once" if both else ""


def _node_config(config: DevicePluginFile) -> NodeConfig:
    warnings = list(_warnings(config))
    used = (one for one in _sections(config.sharing) if one[1] is not None)
    kind, section = next(used, (None, None))
    resources: list[SharedResource] = []
    for index, resource in enumerate(section.resources if section else ()):
        where = dotted(("sharing", str(kind), "resources", index))
        name = resource.served_as(rename_by_default=bool(section and section.rename_by_default))
        if resource.replicas == 1:
            warnings.append(f"{where}: {_ONE_MPS if kind is SharedBy.MPS else _ONE}")
            continue
        is_whole_too = resource.devices != "all" and name == resource.name
        if is_whole_too and all(name != known.served_as for known in resources):
            how = "a pod may get either: rename the shares, or divide all devices"
            warnings.append(f"{where}: any other device is {name} as a whole, so {how}")
        is_sliced = kind is SharedBy.TIME_SLICING and resource.memory is not Memory.EQUAL
        if is_sliced and resource.over_limit is not None:
            warnings.append(f"{where}.overLimit: {_NO_LIMIT}")
        resources.append(
            SharedResource(
                name=resource.name,
                served_as=name,
                devices=resource.devices,
                replicas=resource.replicas,
                memory=resource.memory or Memory.SHARED,
                over_limit=resource.over_limit,
            )
        )
    plugin = config.flags and config.flags.plugin
    return NodeConfig(
        mig_strategy=config.flags.mig_strategy if config.flags else None,
        shared_by=kind if resources else None,
        fail_requests_greater_than_one=bool(resources) and _fails_at_two(kind, section),
        compute=section.compute if isinstance(section, MpsSection) else Compute.DIVIDED,
        packed=bool(plugin and plugin.shared_devices_allocation_policy is AllocationPolicy.PACKED),
        resources=tuple(resources),
        warnings=tuple(warnings),
    )


def _sections(
    sharing: SharingSection | None,
) -> tuple[tuple[SharedBy, ReplicatedSection | None], ...]:
    slicing, mps = (sharing.time_slicing, sharing.mps) if sharing else (None, None)
    return (SharedBy.TIME_SLICING, slicing), (SharedBy.MPS, mps)


def _fails_at_two(kind: SharedBy | None, section: ReplicatedSection | None) -> bool:
    said = section.fail_requests_greater_than_one if section else None
    return kind is SharedBy.MPS if said is None else said


def _warnings(config: DevicePluginFile) -> Iterator[str]:
    flags = (config.flags and config.flags.model_extra) or {}
    if config.flags and config.flags.plugin and (others := config.flags.plugin.model_extra):
        flags = {**flags, "plugin": others}
    for name, value in flags.items():
        # The plugin has groups of flags: its own, and those of feature discovery.
        inner = [f"{plain(name)}.{plain(key)}" for key in value] if isinstance(value, dict) else ()
        meant = ""
        if name in _OF_SHARING:
            kind = SharedBy.MPS if config.sharing and config.sharing.mps else SharedBy.TIME_SLICING
            meant = f": did you mean sharing.{kind}.{name}?"
        for flag in inner or [plain(name)]:
            yield f"flags.{flag}: {_WITHOUT_MEANING}{meant}"
    for name, part in (("resources", config.resources), ("imex", config.imex)):
        if part is not None:
            yield f"{name}: {_WITHOUT_MEANING}"
