"""The demos of manifests/demos/: what each applies, and what its containers must see.

In: a folder with `demo.yaml` and `expect.yaml`. Out: what to apply, where to look, and the
complaints about what `nvidia-smi -L` showed inside the containers.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from testbed.commands import REPOSITORY, TestbedError

FOLDER = REPOSITORY / "manifests" / "demos"

Seen = Mapping[str, tuple[str, ...]]
"""`pod/container` → the UUIDs its `nvidia-smi -L` listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One folder of manifests/demos/."""

    name: str
    manifest: Path
    namespace: str
    gpus: Mapping[str, int]
    equal: tuple[tuple[str, ...], ...] = ()
    disjoint: tuple[tuple[str, ...], ...] = ()

    def pods(self) -> tuple[str, ...]:
        """The names of the pods whose containers are looked into."""
        return tuple(dict.fromkeys(container.split("/")[0] for container in self.gpus))

    def images(self) -> set[str]:
        """The images that the demo's pods name."""
        objects = yaml.safe_load_all(self.manifest.read_text())
        return {image for thing in objects for image in _images(thing)}


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
    )


def complaints(demo: Demo, seen: Seen) -> list[str]:
    """Compare what containers saw with what the demo expects; nothing wrong gives no complaint."""
    return [*_wrong_counts(demo, seen), *_unequal(demo, seen), *_overlaps(demo, seen)]


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


def _images(thing: object) -> Iterator[str]:
    """Yield every `image` of an object, however deep its pods are."""
    match thing:
        case dict():
            for field, value in thing.items():
                if field == "image" and isinstance(value, str):
                    yield value
                else:
                    yield from _images(value)
        case list():
            for item in thing:
                yield from _images(item)
