"""docs/share-config.md: its errors are those of the driver, its examples are right.

The files that the driver refuses, with the whole of its errors, are in tests/data.
"""

import codecs
import re
from pathlib import Path

import pytest

from dra_driver.errors import ConfigError
from dra_driver.shares.config import read_node_config
from resource_nvidia_com.device_plugin import (
    MOST_REPLICAS,
    DevicePluginFile,
    FlagsSection,
    MpsSection,
    PluginSection,
    ReplicatedResource,
    SharingSection,
)

PAGE = (Path(__file__).parents[3] / "docs" / "share-config.md").read_text()
BAD = Path(__file__).parents[2] / "data" / "bad-share-configs.tsv"
ROWS = re.findall(r"^([^#\n].*)\t(FILE:.*)$", BAD.read_text(), re.MULTILINE)
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_each_bad_file_has_its_error() -> None:
    for file, error in ROWS:
        data = codecs.decode(file, "unicode_escape").encode("latin-1")
        with pytest.raises(ConfigError) as caught:
            read_node_config(data, "FILE")
        assert str(caught.value) == error


def test_the_page_has_every_error_and_no_other() -> None:
    """The page has a piece of each, with `…` for what varies."""
    _, _, table = PAGE.partition("\n## Errors\n")
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    excerpts = [one for cell in cells for one in re.findall(r"`([^`]+)`", cell)]
    patterns = [".*".join(map(re.escape, excerpt.split("…"))) for excerpt in excerpts]
    errors = [error for _, errors in ROWS for error in errors.split("; FILE:")]
    assert [one for one in patterns if not any(re.search(one, error) for error in errors)] == []
    assert [one for one in errors if not any(re.search(pattern, one) for pattern in patterns)] == []


def test_the_examples_are_right() -> None:
    assert len(EXAMPLES) >= 2
    for text in EXAMPLES:
        config = read_node_config(text.encode(), "FILE")
        assert config.resources
        assert config.warnings == ()


def test_every_field_is_explained() -> None:
    explained = set(re.findall(r"`(?:….)?(?:resources\[\].|flags.(?:plugin.)?)?(\w+)`", PAGE))
    sections = (FlagsSection, PluginSection, SharingSection, MpsSection, ReplicatedResource)
    for model in (DevicePluginFile, *sections):
        assert model.fields().keys() - {"plugin"} <= explained
    assert f"1 to {MOST_REPLICAS}" in PAGE
