"""The demos of manifests/demos/: what each applies, and its expected result.

In: a folder with `demo.yaml`, `expect.yaml` and perhaps the node's `share-config.yaml`, and the
machine and the Kubernetes on which the demo should run. Out: what to apply, where to look, and
complaints about what was found inside the containers and on the node.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from pydantic import TypeAdapter
from testbed.commands import REPOSITORY, TestbedError
from testbed.machine import GpuSettings

from demo.machines import Fit, Needs, UnfitError, fit, parse_needs, where
from demo.versions import DEFAULT, Minor, makes_mig, switched_off
from dra_driver.simulator.profile import Profile

FOLDER = REPOSITORY / "manifests" / "demos"

Seen = Mapping[str, tuple[str, ...]]
"""`pod/container` → the UUIDs its `nvidia-smi -L` listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sick:
    """A fault of a container's GPU: an XID; and the Deployment that is scaled up meanwhile."""

    container: str
    xid: int
    grows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One folder of manifests/demos/. All expectations are by `pod/container`.

    The pods of a Deployment are numbered from 0, like those of a StatefulSet: `inference-0`.

    Attributes:
        text: its `demo.yaml`, with the machine's names of MIG profiles.
        fit: how it runs on the machine.
        share_config: the node's share config while it runs; empty for one that shares nothing.
        driver: settings that the driver has meanwhile, by their variables.
        made: profiles of the MIG devices that an admin makes before, on each divided GPU.
        gpus: how many GPUs it sees; a container that sees none has no nvidia-smi either.
        equal, disjoint: groups of containers that see the same GPUs, or none in common.
        env: variables and their values; None: not set; True: set to anything.
        mounts: paths where something is mounted.
        mig: the profiles of the MIG devices it sees. Without `env`, no two containers see the same,
            except those of a group in `same_mig`.
        node: how the GPUs it sees are set on the node, in nvidia-smi's words.
        mps: commands and what the MPS daemon that serves it answers.
        nics: how many network cards are made up for it, each below the PCIe root of a GPU, so that
            every GPU that it sees is beside one.
        passthrough: how many GPUs it has for a virtual machine.
        sick: a GPU that becomes sick after all this was seen, and recovers.
    """

    name: str
    text: str
    namespace: str
    gpus: Mapping[str, int]
    fit: Fit = field(default_factory=Fit)
    share_config: str = ""
    driver: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    nics: int = 0
    equal: tuple[tuple[str, ...], ...] = ()
    disjoint: tuple[tuple[str, ...], ...] = ()
    env: Mapping[str, Mapping[str, str | bool | None]] = field(default_factory=dict)
    mounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mig: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    same_mig: tuple[tuple[str, ...], ...] = ()
    node: Mapping[str, GpuSettings] = field(default_factory=dict)
    mps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    passthrough: Mapping[str, int] = field(default_factory=dict)
    sick: Sick | None = None

    def pods(self) -> tuple[str, ...]:
        """The names of the pods whose containers are checked."""
        return tuple(dict.fromkeys(container.split("/")[0] for container in self.gpus))

    def deployments(self) -> dict[str, int]:
        """The demo's Deployments, and how many pods each has."""
        return {
            thing["metadata"]["name"]: thing["spec"]["replicas"]
            for thing in yaml.load_all(self.text, Loader=yaml.CSafeLoader)
            if thing["kind"] == "Deployment"
        }

    def values_of(self, field_name: str) -> set[str]:
        """What the demo's objects have in a field, such as `image`, however deep it is."""
        objects = yaml.load_all(self.text, Loader=yaml.CSafeLoader)
        return {value for thing in objects for value in _values_of(field_name, thing)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The observed state of a demo, by `pod/container`, except `node`, which is by GPU UUID.

    `mig` has the profiles of MIG devices by their UUIDs, `beside_nics` the UUIDs of the GPUs that
    are below one PCIe root with a network card, `groups` the IOMMU groups in /dev/vfio.
    """

    gpus: Seen
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mig: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node: Mapping[str, GpuSettings] = field(default_factory=dict)
    mps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    beside_nics: AbstractSet[str] = frozenset()
    groups: Seen = field(default_factory=dict)


def names() -> list[str]:
    """The names of all demos."""
    return sorted(path.parent.name for path in FOLDER.glob("*/expect.yaml"))


def load(name: str, machine: Profile, kubernetes: Minor = DEFAULT) -> Demo:
    """Read a demo's folder, for a machine and a Kubernetes.

    Raises:
        TestbedError: There is no such demo; the text lists all demos.
        UnfitError: The machine's GPUs or Kubernetes lack what it needs; the text says what.
    """
    folder = FOLDER / name
    if not (folder / "expect.yaml").is_file():
        raise TestbedError(f"there is no demo '{name}'; there are: {', '.join(names())}")
    expected, (text, config) = (folder / "expect.yaml").read_text(), _texts(folder)
    fitted = fit(_needs(expected), text + config, machine)
    adapted = fitted.adapted(expected)
    expect, needs = yaml.load(adapted, Loader=yaml.CSafeLoader), _needs(adapted)
    if lacking := switched_off(needs.features, kubernetes):
        version = ".".join(map(str, kubernetes))
        raise UnfitError(f"it needs {', '.join(lacking)}, switched off in Kubernetes {version}")
    settings = {
        ctr: GpuSettings(compute_mode=values["computeMode"], time_slice=values["timeSlice"])
        for ctr, values in expect.get("node", {}).items()
    }
    worked_out = {
        "name": name,
        "text": fitted.adapted(text),
        "fit": fitted,
        "share_config": fitted.adapted(config),
        "made": needs.made or (() if makes_mig(kubernetes) else needs.existing),
        "nics": needs.nics,
        "same_mig": expect.get("sameMig", ()),
        "node": settings,
    }
    return TypeAdapter(Demo).validate_python(expect | worked_out)


def load_all(
    names: Sequence[str], machine: Profile, kubernetes: Minor = DEFAULT
) -> tuple[list[Demo], dict[str, str]]:
    """Return the demos that can run on a machine and a Kubernetes, and why the others cannot.

    Raises TestbedError if there is no such demo.
    """
    chosen, left_out = [], {}
    for name in names:
        try:
            chosen.append(load(name, machine, kubernetes))
        except UnfitError as reason:
            left_out[name] = str(reason)
    return chosen, left_out


def profiles_for(name: str) -> list[str]:
    """Return the simulator's profiles on which a demo can run."""
    folder = FOLDER / name
    return where(_needs((folder / "expect.yaml").read_text()), "".join(_texts(folder)))


def _texts(folder: Path) -> tuple[str, str]:
    """Return what a demo applies, and the node's share config for it; empty if it has none."""
    config = folder / "share-config.yaml"
    return (folder / "demo.yaml").read_text(), config.read_text() if config.exists() else ""


def _needs(expected: str) -> Needs:
    return parse_needs(yaml.load(expected, Loader=yaml.CSafeLoader)["needs"])


def complaints(demo: Demo, seen: Found) -> list[str]:
    """Compare what was found with what the demo expects; return complaints."""
    return [
        *_wrong_counts(demo, seen.gpus),
        *_unequal(demo, seen.gpus),
        *_overlaps(demo, seen.gpus),
        *_without_nics(demo, seen),
        *_wrong_variables(demo, seen.env),
        *_missing_mounts(demo, seen.mounts),
        *_wrong_migs(demo, seen),
        *_wrong_settings(demo, seen),
        *_wrong_answers(demo, seen.mps),
        *_wrong_groups(demo, seen.groups),
    ]


def _wrong_counts(demo: Demo, seen: Seen) -> Iterator[str]:
    for container, count in demo.gpus.items():
        if len(seen[container]) != count:
            yield f"{container} sees {len(seen[container])} GPUs instead of {count}"


def _wrong_groups(demo: Demo, seen: Seen) -> Iterator[str]:
    for container, count in demo.passthrough.items():
        if len(seen[container]) != count:
            yield f"{container} has {len(seen[container])} IOMMU groups instead of {count}"


def _unequal(demo: Demo, seen: Seen) -> Iterator[str]:
    for group in demo.equal:
        for first, other in itertools.pairwise(group):
            if set(seen[first]) != set(seen[other]):
                yield f"{first} and {other} should see the same GPUs, and do not"


def _overlaps(demo: Demo, seen: Seen) -> Iterator[str]:
    for group in demo.disjoint:
        for first, other in itertools.combinations(group, 2):
            if common := set(seen[first]) & set(seen[other]):
                yield f"{first} and {other} both see {', '.join(sorted(common))}"


def _without_nics(demo: Demo, seen: Found) -> Iterator[str]:
    for container, gpus in seen.gpus.items() if demo.nics else ():
        for uuid in set(gpus) - seen.beside_nics:
            yield f"{container} sees {uuid}, which is below no PCIe root with a NIC"


def _wrong_variables(demo: Demo, env: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, variables in demo.env.items():
        for name, wanted in variables.items():
            value = env[container].get(name)
            if wanted is True:
                if value is None:
                    yield f"{container} has no variable {name}"
            elif value != wanted:
                yield f"{container} has {name}={value} instead of {wanted}"


def _missing_mounts(demo: Demo, mounts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, paths in demo.mounts.items():
        for path in paths:
            if path not in mounts[container]:
                yield f"{container} has nothing mounted at {path}"


def _wrong_migs(demo: Demo, facts: Found) -> Iterator[str]:
    for container, wanted in demo.mig.items():
        profiles = sorted(facts.mig[container].values())
        if profiles != sorted(wanted):
            yield f"{container} sees MIG devices {profiles} instead of {sorted(wanted)}"
    if not demo.env:  # containers that share something see the same
        for first, other in itertools.combinations(demo.mig, 2):
            common = facts.mig[first].keys() & facts.mig[other].keys()
            if any({first, other} <= {*group} for group in demo.same_mig):
                if not common:
                    yield f"{first} and {other} should see the same MIG device, and do not"
            elif common:
                yield f"{first} and {other} both see {', '.join(sorted(common))}"


def _wrong_settings(demo: Demo, facts: Found) -> Iterator[str]:
    for container, wanted in demo.node.items():
        for uuid in facts.gpus[container]:
            seen = facts.node[uuid]
            # A card without MIG has no mode that could be off.
            here = replace(wanted, mig_mode="-") if seen.mig_mode == "-" else wanted
            if seen != here:
                yield f"{uuid} of {container} is set to {seen} instead of {here}"


def _wrong_answers(demo: Demo, mps: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, questions in demo.mps.items():
        for question, wanted in questions.items():
            answer = mps[container][question]
            if answer != wanted:
                yield f"MPS daemon of {container}: {question}: {answer!r} instead of {wanted!r}"


def _values_of(wanted: str, thing: object) -> Iterator[str]:
    """Yield every text in a field of that name, however deep its object is."""
    match thing:
        case dict():
            for field_name, value in thing.items():
                if field_name == wanted and isinstance(value, str):
                    yield value
                else:
                    yield from _values_of(wanted, value)
        case list():
            for item in thing:
                yield from _values_of(wanted, item)
