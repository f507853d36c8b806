"""docs/share-config.md: its errors are those of the driver, its examples are right."""

import codecs
import re
from pathlib import Path

import pytest

from dra_driver.errors import ConfigError
from dra_driver.shares.config import read_node_config
from resource_nvidia_com.device_plugin import MOST_REPLICAS, DevicePluginFile
from resource_nvidia_com.problems import fields_at

PAGE = (Path(__file__).parents[3] / "docs" / "share-config.md").read_text()
ROWS = re.findall(r"^\| `(.*)` \| `(FILE:.*)` \|$", PAGE, re.MULTILINE)
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("file", "error"), ROWS)
def test_each_bad_file_has_the_error_that_the_page_says(file: str, error: str) -> None:
    data = codecs.decode(file, "unicode_escape").encode("latin-1")
    with pytest.raises(ConfigError) as caught:
        read_node_config(data, "FILE")
    assert str(caught.value) == error


def test_the_page_has_many_bad_files_and_each_once() -> None:
    assert len({file for file, _ in ROWS}) == len(ROWS) >= 70


def test_the_examples_are_right() -> None:
    assert len(EXAMPLES) >= 2
    for text in EXAMPLES:
        config = read_node_config(text.encode(), "FILE")
        assert config.resources
        assert config.warnings == ()


def test_every_field_is_explained() -> None:
    explained = set(re.findall(r"`(?:….)?(?:resources\[\].|flags.)?(\w+)`", PAGE))
    for path in [(), ("flags",), ("sharing",), ("sharing", "mps"), ("sharing", "mps", "resources")]:
        assert fields_at(DevicePluginFile, path).keys() <= explained
    assert f"1 to {MOST_REPLICAS}" in PAGE
