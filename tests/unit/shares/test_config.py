"""The text of a share config; its errors one by one are in tests/data/bad-share-configs.tsv."""

import codecs
import json
import re
from pathlib import Path

import pytest

from dra_driver.admin.inspect.command import named_config
from dra_driver.errors import ConfigError
from dra_driver.shares.config import LARGEST, read_node_config
from resource_nvidia_com.device_plugin import NodeConfig

TEXT = """\
# how our GPUs are divided
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def refusal(data: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read_node_config(data, "/etc/shares/a100")
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}", "version: v1", "null"])
def test_an_empty_file_shares_nothing(text: str) -> None:
    assert read_node_config(text.encode(), "f") == NodeConfig()


def test_yaml_json_and_other_line_ends_are_read_the_same() -> None:
    resource = {"name": "nvidia.com/gpu", "replicas": 4}
    as_json = json.dumps({"sharing": {"timeSlicing": {"resources": [resource]}}})
    read = {
        read_node_config(text.encode(), "f")
        for text in (TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, as_json)
    }
    assert [one.resources[0].replicas for one in read] == [4]


def test_each_problem_has_its_line_and_column() -> None:
    text = TEXT.replace("replicas: 4", "replicas: '4'").replace("nvidia.com/gpu", "cpu")
    assert refusal(text.encode()) == (
        "/etc/shares/a100:6:7: sharing.timeSlicing.resources[0].name: nvidia.com/cpu cannot be "
        "divided: must be nvidia.com/gpu or a MIG profile such as nvidia.com/mig-1g.5gb; "
        "/etc/shares/a100:7:7: sharing.timeSlicing.resources[0].replicas: must be a whole number, "
        'not "4"'
    )


def test_a_second_document_is_refused_where_it_begins() -> None:
    assert refusal(b"version: v1\n---\nversion: v1\n") == (
        "/etc/shares/a100:3:1: a second document: write one share config in each file"
    )


def test_five_of_many_problems_are_shown() -> None:
    told = refusal("".join(f"field{number}: 1\n" for number in range(1000)).encode())
    assert told.count("unknown field") == 5
    assert told.endswith("; and 995 more")


def test_a_file_that_is_too_large_is_not_parsed() -> None:
    assert refusal(b"[" * (LARGEST + 1)) == (
        "/etc/shares/a100:1:1: it has 131073 bytes; a share config must have at most 131072"
    )


def test_invalid_yaml_is_refused_with_its_error() -> None:
    assert refusal(b"version: [v1\n") == (
        "/etc/shares/a100:2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"
    )


def test_a_file_that_a_person_names_is_read_and_named_in_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "shares.yaml"
    with pytest.raises(ConfigError, match=f"there is no file {file}: name the share config's"):
        named_config(file)
    file.write_text(TEXT)
    assert named_config(file) == read_node_config(TEXT.encode(), "f")
    file.write_text("versions: v1")
    with pytest.raises(ConfigError, match=f"{file}:1:1: unknown field"):
        named_config(file)
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read: "):
        named_config(tmp_path)


FILE_OF_BAD = Path(__file__).parents[2] / "data" / "bad-share-configs.tsv"
BAD = re.findall(r"^([^#\n].*)\t(FILE:.*)$", FILE_OF_BAD.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("file", "error"), BAD)
def test_each_bad_file_has_its_error(file: str, error: str) -> None:
    data = codecs.decode(file, "unicode_escape").encode("latin-1")
    with pytest.raises(ConfigError) as caught:
        read_node_config(data, "FILE")
    assert str(caught.value) == error
