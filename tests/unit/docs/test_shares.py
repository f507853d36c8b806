"""The examples of docs/shares.md and docs/share-config.md are right, and installed."""

import re
from pathlib import Path

import pytest
import yaml

import make
from consuming import Scheduler
from dra_driver.admin.classes import class_name, manifest, served_names
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.devices.device import Device, Whole
from dra_driver.devices.shares import ConsumedShare, ShareStrategy
from dra_driver.shares.config import read_node_config
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.share_limits import limits_of
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from resource_nvidia_com.decode import decode
from resource_nvidia_com.quantity import quantity_bytes

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
    assert len(examples) >= 2
    for text in examples:
        config = read_node_config(text.encode(), "FILE")
        assert config.resources
        assert config.warnings == ()


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


@pytest.mark.parametrize("mode", ["memory", "unlimited", "4"])
@pytest.mark.parametrize(
    ("cores", "percent"), [({}, None), ({"cores": 20}, 20)], ids=["memory alone", "with cores"]
)
def test_a_claim_for_memory_alone_is_bounded_in_memory_and_free_in_compute(
    mode: str, cores: dict[str, int], percent: int | None
) -> None:
    (text,) = (one for one in EXAMPLES if "capacity: {requests: {memory: 10Gi}}" in one)
    example = yaml.safe_load(text)
    asked = example["requests"][0]["exactly"]["capacity"]["requests"]
    gpu = make.gpu(0)
    published = projection(make.inventory(gpu), share=ShareOffer(consumable=Consumable.of(mode)))
    requests = {name: quantity_bytes(amount) for name, amount in asked.items()} | cores
    consumed = Scheduler(published.devices[0]).take(requests)
    assert consumed is not None

    config = decode(example["config"][0]["opaque"]["parameters"])
    share = ConsumedShare(
        share_id="a",
        strategy=ShareStrategy.MPS,
        memory_mib=consumed["memory"] // 1024**2,
        cores=consumed["cores"],
    )
    device = Device(base=Whole(gpu=gpu.uuid), share=share)
    unit = Unit(name="gpu-0", request="gpu", gpu=gpu, device=device)
    limits = limits_of([Group(claim="uid", config=config, units=(unit,))], {unit.uuid})
    found = limits[unit.key]
    assert found.memory_mib == {gpu.uuid: 10 * 1024}
    assert found.active_thread_percentage == percent
