"""Which file of a folder holds: the order of the device plugin's config manager."""

from pathlib import Path

import pytest

from dra_driver.errors import ConfigError
from dra_driver.shares.choice import choose


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("version: v1\n")


def name_of(folder: Path, label: str = "", default: str = "") -> str | None:
    file = choose(folder, label=label, default=default).file
    return None if file is None else file.name


def test_a_file_leaves_no_choice(folder: Path) -> None:
    put(folder, "a", "b")
    assert name_of(folder / "b", label="a", default="a") == "b"


def test_a_path_that_is_not_there_is_a_file(folder: Path) -> None:
    assert name_of(folder / "none") == "none"


def test_the_label_wins_over_the_setting_and_this_over_the_names(folder: Path) -> None:
    put(folder, "a", "b", "default")
    assert name_of(folder, label="a", default="b") == "a"
    assert name_of(folder, default="b") == "b"
    assert name_of(folder) == "default"


def test_the_only_config_holds_without_a_name(folder: Path) -> None:
    put(folder, "a")
    assert name_of(folder) == "a"
    put(folder, "b")
    assert name_of(folder) is None


def test_a_mounted_config_map_has_no_configs_but_its_keys(folder: Path) -> None:
    (folder / "..2026_11_22").mkdir()
    put(folder / "..2026_11_22", "a100")
    (folder / "..data").symlink_to("..2026_11_22")
    (folder / "a100").symlink_to("..data/a100")
    (folder / "a folder").mkdir()
    assert name_of(folder) == "a100"


def test_the_origin_says_why(folder: Path) -> None:
    put(folder, "a", "b")
    label = "nvidia.com/device-plugin.config"
    assert choose(folder, label="a", default="").origin == f"file {folder}/a (label {label})"
    assert choose(folder, label="", default="b").origin == (
        f"file {folder}/b (setting --share-config-default)"
    )
    assert choose(folder, label="", default="").origin == (
        f"no config of folder {folder}: no label {label}, and it has a, b"
    )


@pytest.mark.parametrize(("label", "default"), [("c", "a"), ("", "c"), ("../a", ""), ("..", "")])
def test_a_name_that_no_config_has_is_an_error_that_lists_them(
    folder: Path, label: str, default: str
) -> None:
    put(folder, "a", "b")
    with pytest.raises(ConfigError, match=r"no config .* it has a, b; name one of those"):
        choose(folder, label=label, default=default)


def test_a_folder_of_many_configs_is_not_listed_to_the_end(folder: Path) -> None:
    put(folder, *(f"n{number:03}" for number in range(200)))
    with pytest.raises(ConfigError, match="n009 and 190 more; name one"):
        choose(folder, label="x", default="")


def test_a_label_has_nothing_to_choose_from_in_an_empty_folder(folder: Path) -> None:
    assert name_of(folder, label="left-behind-by-the-device-plugin") is None
    with pytest.raises(ConfigError, match=r'no config "a" in .*: it is empty; add that config$'):
        name_of(folder, label="a", default="b")
    put(folder, "a")
    with pytest.raises(ConfigError, match="it has a"):
        name_of(folder, label="left-behind-by-the-device-plugin")
