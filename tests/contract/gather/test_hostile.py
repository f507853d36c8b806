"""An archive may come from anybody: it is simulated, or refused with a reason, and does no harm."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gathering
from dra_driver.admin.gather.reading import PROFILE, pack
from dra_driver.cli import main
from dra_driver.errors import ConfigError, DriverError
from dra_driver.simulator import profile as profiles
from sampling import EVERYTHING

VALUES: tuple[Any, ...] = (
    None, -1, 2**70, 1.5, True, "", "../../../../etc/passwd", "x" * 5000, [], [[]], {}, {"code": 0},
)  # fmt: skip


def archive(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "node.tar.gz"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(pack({}, {PROFILE: text}))
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The profile in a sound archive, with one GPU of each kind of NVLinks and MIG."""
    node = gathering.node(tmp_path_factory.mktemp("sound"), "h100x8-mig")
    node.machine.create_mig(node.machine.find("4").uuid, "1g.10gb")
    found: dict[str, Any] = yaml.safe_load(gathering.unpack(node.gathered()).documents[PROFILE])
    found["gpus"] = found["gpus"][3:5]
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
def test_a_value_of_another_kind_anywhere_is_read_or_refused(
    shift: int, sound: dict[str, Any], tmp_path: Path
) -> None:
    some = list(places(sound))[shift::3]
    refused = []
    for number, where in enumerate(some):
        value = VALUES[(number + shift * 5) % len(VALUES)]
        try:
            profiles.load(str(archive(tmp_path, put(sound, where, value))))
        except DriverError as error:
            refused.append(str(error))
    assert 5 < len(refused) < len(some)
    assert all("node.tar.gz" in reason for reason in refused)


@pytest.mark.parametrize(
    "change",
    [
        {"missing_functions": ["nvmlInit_v2; }; { global: *"]},
        {"driver_version": "535.261.03/../../x"},
        {"name": "../../x"},
        {"cpus_per_numa_node": 2**40},
    ],
)
def test_values_for_paths_and_files_are_validated(
    change: dict[str, Any], sound: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        profiles.load(str(archive(tmp_path, {**sound, **change})))


def test_a_kernel_drivers_name_is_not_a_path(sound: dict[str, Any], tmp_path: Path) -> None:
    audio = {"pci": "0000:9d:00.1", "beside": "0000:9d:00.0", "device": "0x10f8"}
    iommu = {"functions": [{**audio, "driver": "../../../../tmp/harm"}]}
    with pytest.raises(ConfigError, match="driver: String should match"):
        profiles.load(str(archive(tmp_path, {**sound, "iommu": iommu})))


def test_a_cards_name_cannot_control_a_terminal(sound: dict[str, Any], tmp_path: Path) -> None:
    place = ("cards", sound["gpus"][0]["card"], "name")
    with pytest.raises(ConfigError, match="name: String should match"):
        profiles.load(str(archive(tmp_path, put(sound, place, "H100\x1b[2J"))))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &one [1]\nb: *one\n", "its profile.yaml has aliases"),
        ("a: [", "is not YAML"),
        ("a: '", "its profile.yaml is not YAML"),
        ("[" * 99_999, "is nested too deeply"),
        ("- " * 99_999, "is nested too deeply"),
        ("a: " + "9" * 9999, "is not YAML"),
        ("a: 2001-99-99", "is not YAML"),
        ("x" * 300_000, "more than 256 KiB"),
        ("!!python/object/apply:os.system [true]", "is not YAML"),
        ("[]", "must be a mapping"),
    ],
)
def test_a_text_that_is_not_a_profile_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=reason):
        profiles.load(str(archive(tmp_path, text)))


def test_an_impossible_machine_fails_and_leaves_nothing(
    sound: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "up", "--nodes=placeholder", "--userspace=stand-in"]
    for where, value in (
        (("gpus", 0, "bridges"), ["0000:15:01.0"] * 400),
        (("gpus", 1, "mig_devices"), [{"profile": "1g.10gb", "start": 0}] * 2),
    ):
        path = archive(tmp_path, put(sound, where, value))
        assert main([*words, f"--root={tmp_path / 'root'}", f"--profile={path}"]) == 1
        assert "error: " in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["node.tar.gz"]
