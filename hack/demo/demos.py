"""The demos of manifests/demos/: what each applies, and what must be seen of it.

In: a folder with `demo.yaml` and `expect.yaml`. Out: what to apply, where to look, and the
complaints about what was found inside the containers and on the node.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from testbed.commands import REPOSITORY, TestbedError
from testbed.machine import GpuSettings

FOLDER = REPOSITORY / "manifests" / "demos"

Seen = Mapping[str, tuple[str, ...]]
"""`pod/container` → the UUIDs its `nvidia-smi -L` listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One folder of manifests/demos/. All expectations are by `pod/container`.

    Attributes:
        gpus: how many GPUs it sees.
        equal, disjoint: groups of containers that see the same GPUs, or none in common.
        env: variables and their values; None: not set.
        mounts: paths where something is mounted.
        mig: the profiles of the MIG devices it sees. Without `env`, no two containers see the same.
        node: how the GPUs it sees are set on the node, in nvidia-smi's words.
        mps: commands and what the MPS daemon that serves it answers.
    """

    name: str
    manifest: Path
    namespace: str
    gpus: Mapping[str, int]
    equal: tuple[tuple[str, ...], ...] = ()
    disjoint: tuple[tuple[str, ...], ...] = ()
    env: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    mounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mig: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    node: Mapping[str, GpuSettings] = field(default_factory=dict)
    mps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def pods(self) -> tuple[str, ...]:
        """The names of the pods whose containers are looked into."""
        return tuple(dict.fromkeys(container.split("/")[0] for container in self.gpus))

    def images(self) -> set[str]:
        """The images that the demo's pods name."""
        objects = yaml.safe_load_all(self.manifest.read_text())
        return {image for thing in objects for image in _images(thing)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found of a demo; by `pod/container`, but `node`, which is by GPU UUID.

    `mig` has the profiles of MIG devices by their UUIDs.
    """

    gpus: Seen
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mig: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node: Mapping[str, GpuSettings] = field(default_factory=dict)
    mps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def names() -> list[str]:
    """The names of all demos."""
    return sorted(path.parent.name for path in FOLDER.glob("*/expect.yaml"))


def load(name: str) -> Demo:
    """Read a demo's folder.

    Raises:
        TestbedError: There is no such demo; the text lists those that are.
    """
    folder = FOLDER / name
    if not (folder / "expect.yaml").is_file():
        raise TestbedError(f"there is no demo '{name}'; there are: {', '.join(names())}")
    expect = yaml.safe_load((folder / "expect.yaml").read_text())
    return Demo(
        name=name,
        manifest=folder / "demo.yaml",
        namespace=expect["namespace"],
        gpus=expect["gpus"],
        equal=tuple(tuple(group) for group in expect.get("equal", ())),
        disjoint=tuple(tuple(group) for group in expect.get("disjoint", ())),
        env=expect.get("env", {}),
        mounts={ctr: tuple(paths) for ctr, paths in expect.get("mounts", {}).items()},
        mig={ctr: tuple(profiles) for ctr, profiles in expect.get("mig", {}).items()},
        node={
            ctr: GpuSettings(compute_mode=one["computeMode"], time_slice=one["timeSlice"])
            for ctr, one in expect.get("node", {}).items()
        },
        mps=expect.get("mps", {}),
    )


def complaints(demo: Demo, found: Found) -> list[str]:
    """Compare what was found with what the demo expects; nothing wrong gives no complaint."""
    return [
        *_wrong_counts(demo, found.gpus),
        *_unequal(demo, found.gpus),
        *_overlaps(demo, found.gpus),
        *_wrong_variables(demo, found.env),
        *_missing_mounts(demo, found.mounts),
        *_wrong_migs(demo, found),
        *_wrong_settings(demo, found),
        *_wrong_answers(demo, found.mps),
    ]


def _wrong_counts(demo: Demo, seen: Seen) -> Iterator[str]:
    for container, count in demo.gpus.items():
        if len(seen[container]) != count:
            yield f"{container} sees {len(seen[container])} GPUs instead of {count}"


def _unequal(demo: Demo, seen: Seen) -> Iterator[str]:
    for group in demo.equal:
        for one, other in itertools.pairwise(group):
            if set(seen[one]) != set(seen[other]):
                yield f"{one} and {other} should see the same GPUs, and do not"


def _overlaps(demo: Demo, seen: Seen) -> Iterator[str]:
    for group in demo.disjoint:
        for one, other in itertools.combinations(group, 2):
            if common := set(seen[one]) & set(seen[other]):
                yield f"{one} and {other} both see {', '.join(sorted(common))}"


def _wrong_variables(demo: Demo, env: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, variables in demo.env.items():
        for name, wanted in variables.items():
            value = env[container].get(name)
            if value != wanted:
                yield f"{container} has {name}={value} instead of {wanted}"


def _missing_mounts(demo: Demo, mounts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, paths in demo.mounts.items():
        for path in paths:
            if path not in mounts[container]:
                yield f"{container} has nothing mounted at {path}"


def _wrong_migs(demo: Demo, found: Found) -> Iterator[str]:
    for container, wanted in demo.mig.items():
        profiles = sorted(found.mig[container].values())
        if profiles != sorted(wanted):
            yield f"{container} sees MIG devices {profiles} instead of {sorted(wanted)}"
    if not demo.env:  # containers that share something see the same
        for one, other in itertools.combinations(demo.mig, 2):
            if common := found.mig[one].keys() & found.mig[other].keys():
                yield f"{one} and {other} both see {', '.join(sorted(common))}"


def _wrong_settings(demo: Demo, found: Found) -> Iterator[str]:
    for container, wanted in demo.node.items():
        for uuid in found.gpus[container]:
            if found.node[uuid] != wanted:
                yield f"{uuid} of {container} is set to {found.node[uuid]} instead of {wanted}"


def _wrong_answers(demo: Demo, mps: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for container, questions in demo.mps.items():
        for question, wanted in questions.items():
            answer = mps[container][question]
            if answer != wanted:
                yield f"MPS daemon of {container}: {question}: {answer!r} instead of {wanted!r}"


def _images(thing: object) -> Iterator[str]:
    """Yield every `image` of an object, however deep its pods are."""
    match thing:
        case dict():
            for field_name, value in thing.items():
                if field_name == "image" and isinstance(value, str):
                    yield value
                else:
                    yield from _images(value)
        case list():
            for item in thing:
                yield from _images(item)
