"""docs/writing-pods.md: each example, pasted into a real cluster, gives containers what it says.

Beside the image, which is the local one, two things are changed: the memory that example 3 asks
for, since the machine that runs the tests may not have it, and how long shells have to end.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testbed.api import Object
from testbed.commands import wait_until
from testbed.node import GpuNode
from testbed.pods import IMAGE, explain, wait_gone

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import set_driver
from e2e.kubernetes import needs
from e2e.needs import cannot_run
from e2e.scene import NAMESPACE
from e2e.shares import config

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

PAGE = (Path(__file__).parents[2] / "docs" / "writing-pods.md").read_text()
EXAMPLES = dict(re.findall(r"^## (\d+)\. .*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
_GPU = re.compile(r"^GPU \d+: .*UUID: (GPU-[\w-]+)\)$", re.MULTILINE)
_CONTAINERS = re.compile(r"^( *)(?=containers:$)", re.MULTILINE)
_MIG = re.compile(r"^ +MIG (\S+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What all containers of an example see together."""

    containers: int = 1
    gpus: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    needs_mps: bool = False
    features: tuple[Feature, ...] = ()


EXPECTED = {
    "1": Seen(features=(Feature.EXTENDED_RESOURCE,)),
    "2": Seen(),
    "3": Seen(gpus=4),
    "4": Seen(),
    "5": Seen(),
    "6": Seen(containers=2),
    "7": Seen(containers=2, needs_mps=True),
    "8": Seen(settings={"MIG": "on-demand"}, features=(Feature.COUNTERS,)),
    "9": Seen(
        settings={"SHARE_CONFIG": "share-configs"},
        needs_mps=True,
        features=(Feature.EXTENDED_RESOURCE,),
    ),
    "10": Seen(
        settings={"CONSUMABLE_SHARES": "memory"}, needs_mps=True, features=(Feature.CONSUMABLE,)
    ),
}


def prepare(node: GpuNode, example: Seen) -> None:
    """Have the node offer what the page says that an admin has set."""
    if example.needs_mps and not node.can_run_mps:
        cannot_run("NVIDIA's MPS programs are not available")
    settings = dict(example.settings)
    if "SHARE_CONFIG" in settings:
        node.share(config("mps", 10, failRequestsGreaterThanOne=False))
        settings["SHARE_CONFIG"] = str(node.share_configs)
    set_driver(node, settings)
    if "SHARE_CONFIG" in settings:
        wait_until(lambda: any("share" in name for name in node.devices()), "shares", timeout=30)


def pods(node: GpuNode) -> list[Object]:
    return node.cluster.api.all("Pod", NAMESPACE)


def logs(node: GpuNode, example: Seen) -> list[str]:
    """Wait until each container has printed something; return it."""

    def look() -> list[str] | None:
        found = pods(node)
        if any(pod["status"].get("phase") in {None, "Pending", "Failed"} for pod in found):
            return None
        texts = [
            node.cluster.kubectl(
                *("logs", "--namespace", NAMESPACE, pod["metadata"]["name"], "-c", one["name"])
            )
            for pod in found
            for one in pod["spec"]["containers"]
        ]
        return texts if len(texts) == example.containers and all(texts) else None

    try:
        return wait_until(look, "the example's containers to print what they see", timeout=120)
    except Exception:
        for pod in pods(node):
            print(explain(node.cluster.api, pod))  # noqa: T201 (pytest shows it with the failure)
        raise


def test_every_example_of_the_page_is_pasted() -> None:
    assert EXAMPLES.keys() == EXPECTED.keys()


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=needs(*one.features)) for number, one in EXPECTED.items()]
)
def test_an_example_can_be_pasted_and_sees_what_it_asked_for(node: GpuNode, number: str) -> None:
    example = EXPECTED[number]
    text = re.sub(r"image: nvidia/cuda:\S+", f"image: {IMAGE}", EXAMPLES[number])
    text = text.replace("memory: 64Gi", "memory: 512Mi")
    objects = ("--namespace", NAMESPACE, "--filename", "-")
    # bash hears no SIGTERM while it sleeps as a container's first process.
    text = _CONTAINERS.sub(r"\1terminationGracePeriodSeconds: 1\n\1", text)
    prepare(node, example)
    node.cluster.kubectl("apply", *objects, stdin=text)
    try:
        printed = logs(node, example)
        names = [pod["metadata"]["name"] for pod in pods(node)]
    finally:
        node.cluster.kubectl("delete", "--wait=false", *objects, stdin=text)
    wait_gone(node.cluster.api, NAMESPACE, names)
    found = [uuid for one in printed for uuid in _GPU.findall(one)]
    assert len(found) == example.gpus * example.containers
    assert len(set(found)) == example.gpus  # several containers see the same GPU
    profiles = [profile for one in printed for profile in _MIG.findall(one)]
    assert profiles == (["1g.10gb"] if number == "8" else [])
    if number == "3":
        assert "64.0M" not in printed[0]  # a container's own /dev/shm
