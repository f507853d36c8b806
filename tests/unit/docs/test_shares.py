"""The examples of docs/shares.md and docs/share-config.md are right, and installed."""

import re
from pathlib import Path

import yaml

from dra_driver.admin.classes import class_name, manifest, served_names
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.shares.config import read_node_config

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "shares.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def config_map() -> str:
    (found,) = (text for text in EXAMPLES if "kind: ConfigMap" in text)
    return found


def test_the_example_is_the_config_map_that_the_daemon_set_mounts() -> None:
    metadata = yaml.safe_load(config_map())["metadata"]
    installed = yaml.safe_load_all((REPOSITORY / "manifests" / "install.yaml").read_text())
    (daemon_set,) = (
        one
        for one in installed
        if (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "dra-driver")
    )
    volumes = daemon_set["spec"]["template"]["spec"]["volumes"]
    (mounted,) = (volume["configMap"] for volume in volumes if "configMap" in volume)
    assert metadata["name"] == mounted["name"]
    assert metadata["namespace"] == daemon_set["metadata"]["namespace"]
    assert mounted["optional"]


def test_the_examples_of_files_are_right() -> None:
    page = (REPOSITORY / "docs" / "share-config.md").read_text()
    examples = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    configs = [read_node_config(text.encode(), "FILE") for text in examples]
    assert len(configs) >= 2
    assert all(config.resources and config.warnings == () for config in configs)


def test_the_example_is_right_and_served_by_a_class_that_comes_with_the_driver(
    tmp_path: Path,
) -> None:
    report = check_manifest(config_map())
    assert (report.configs, list(report.findings)) == (1, [])
    file = tmp_path / "share-configs.yaml"
    file.write_text(config_map())
    assert served_names(str(file)) == ["nvidia.com/gpu"]
    shipped = (REPOSITORY / "deviceclasses" / "extended-resources.yaml").read_text()
    assert manifest({"nvidia.com/gpu": None}) in shipped
    assert class_name("nvidia.com/gpu") in PAGE
