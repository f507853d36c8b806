"""An archive may come from anybody: it is played, or refused with a reason, and does no harm."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gathering
from dra_driver import gathered
from dra_driver.cli import main
from dra_driver.errors import ConfigError, DriverError, StateError
from dra_driver.simulator.archive import profile_of
from sampling import EVERYTHING

SOUND = Path(__file__).parents[2] / "data/archives/simulated-l4x2.tar.gz"
VALUES: tuple[Any, ...] = (
    None, -1, 2**70, 1.5, True, "", "../../../../etc/passwd", "x" * 5000, [], [[]], {}, {"code": 0},
)  # fmt: skip


def archive(tmp_path: Path, documents: dict[str, Any]) -> Path:
    path = tmp_path / "node.tar.gz"
    path.write_bytes(gathered.pack({}, documents))
    return path


@pytest.fixture
def documents() -> dict[str, Any]:
    """What a sound archive has, with one GPU of the two."""
    found: dict[str, Any] = copy.deepcopy(dict(gathered.unpack(SOUND).documents))
    del found[gathered.NVML]["gpus"][1:]
    return found


def places(document: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield (*where, key)
            yield from places(document[key], (*where, key))


def put(document: Any, where: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inside = changed
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    return changed


@pytest.mark.parametrize("shift", range(3 if EVERYTHING else 1))
def test_a_value_of_another_kind_anywhere_is_played_or_refused(
    shift: int, documents: dict[str, Any], tmp_path: Path
) -> None:
    names = (gathered.NVML, gathered.PCI, gathered.NODE, gathered.FILES)
    every = [(name, *where) for name in names for where in places(documents[name])]
    some = every[shift::3]
    refused = []
    for number, where in enumerate(some):
        value = VALUES[(number + shift * 5) % len(VALUES)]
        try:
            profile_of(archive(tmp_path, put(documents, where, value)))
        except DriverError as error:
            refused.append(str(error))
    assert 5 < len(refused) < len(some)
    assert all("node.tar.gz" in reason for reason in refused)


@pytest.mark.parametrize("name", [gathered.NVML, gathered.PCI, gathered.NODE, gathered.FILES])
def test_a_file_of_another_kind_is_refused(
    name: str, documents: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(StateError, match=rf"cannot be simulated: {name} in it cannot be"):
        profile_of(archive(tmp_path, {**documents, name: ["no mapping"]}))


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/../../../../../tmp/harm/libcuda.so.1.2",
        "/tmp/harm/libcuda.so.1.2",
        "usr/lib/libcuda.so.1.2",
        "/usr/lib/a b",
        "/dev/nvidia0",
        "/proc/driver/x",
    ],
)
@pytest.mark.parametrize("kind", ["libraries", "links", "others"])
def test_a_place_outside_of_the_drivers_folders_is_refused(
    kind: str, path: str, documents: dict[str, Any], tmp_path: Path
) -> None:
    documents[gathered.FILES][kind][0] |= {"path": path, "kind": "programs"}
    documents[gathered.FILES][kind][0].pop("kind") if kind != "others" else None
    with pytest.raises(ConfigError, match="driver_files"):
        profile_of(archive(tmp_path, documents))


@pytest.mark.parametrize("target", ["/etc", "../../x", ".hidden/../.."])
def test_a_link_out_of_its_folder_is_left_out(
    target: str, documents: dict[str, Any], tmp_path: Path
) -> None:
    documents[gathered.FILES]["links"][0]["target"] = target
    found = profile_of(archive(tmp_path, documents)).driver_files
    assert found is not None
    assert len(found.links) == len(documents[gathered.FILES]["links"]) - 1


def test_files_that_cannot_be_together_are_an_error_and_nothing_stays(
    documents: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = documents[gathered.FILES]
    below = {"path": f"{listed['libraries'][0]['path']}/below.so.1", "bytes": 1, "soname": None}
    listed["libraries"].append(below)
    root = tmp_path / "root"
    words = ["simulate", "up", "--nodes=placeholder", f"--root={root}"]

    assert main([*words, f"--from={archive(tmp_path, documents)}"]) == 1
    assert f"error: the machine {root} cannot be made: " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.tar.gz"]


def test_what_is_played_stays_below_its_root(documents: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    gathering.node(folder, profile_of(archive(tmp_path, documents)))
    assert sorted(path.name for path in folder.iterdir()) == ["gpus"]
    links = [path for path in (folder / "gpus/usr").rglob("*") if path.is_symlink()]
    assert links
    assert all(link.resolve().is_relative_to(folder) for link in links)
