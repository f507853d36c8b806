"""GPUs that a device plugin gives out are not offered beside it."""

from collections.abc import Callable

import pytest

import make
from dra_driver.errors import UnavailableError
from dra_driver.kube.own_node import NodeFacts
from dra_driver.slices.node import DevicePlugin
from dra_driver.slices.offer.shares import NO_SHARES
from dra_driver.slices.project import projection


class Node:
    """A Node whose allocatable resources a test sets; until then nobody knows them."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[NodeFacts], object]] = []
        self.now: NodeFacts | None = None

    def listen(self, listener: Callable[[NodeFacts], object]) -> None:
        self.listeners.append(listener)

    def current(self) -> NodeFacts:
        if self.now is None:
            raise UnavailableError("the API server is away")
        return self.now

    def set(self, **allocatable: str) -> None:
        counts = {f"nvidia.com/{name}": count for name, count in allocatable.items()}
        self.now = NodeFacts(allocatable=counts)
        for listener in self.listeners:
            listener(self.now)


def noticed(node: Node, *, heed: bool = True) -> tuple[DevicePlugin, list[str | None]]:
    changes: list[str | None] = []
    plugin = DevicePlugin(node, heed=heed, on_change=lambda: changes.append(plugin.why_withheld()))
    return plugin, changes


def test_gpus_are_withheld_until_a_device_plugin_is_gone() -> None:
    node = Node()
    plugin, changes = noticed(node)
    node.set(gpu="8")
    assert plugin.why_withheld() == (
        "a device plugin gives out this node's GPUs (nvidia.com/gpu: 8), and they would be given "
        "out twice: remove its pod from this node, or start this driver with "
        "--beside-device-plugin publish if the two have different GPUs"
    )
    node.set(gpu="8")
    node.set(gpu="0")
    assert plugin.why_withheld() is None
    assert changes == [None]


@pytest.mark.parametrize(
    ("name", "count", "withheld"),
    [
        ("gpu", "1", True),
        ("gpu.shared", "4", True),
        ("mig-1g.5gb", "2", True),
        ("gpu", "0", False),
        ("gpu", "what", True),
        ("hostdev", "2", False),
        ("pgpu", "2", False),
    ],
)
def test_gpus_and_their_parts_count_and_nothing_else(name: str, count: str, withheld: bool) -> None:
    node = Node()
    plugin, _ = noticed(node)
    node.set(**{name: count})
    assert (plugin.why_withheld() is not None) is withheld


def test_before_anything_is_known_the_api_server_is_asked() -> None:
    node = Node()
    plugin, changes = noticed(node)
    with pytest.raises(UnavailableError):
        plugin.why_withheld()
    node.now = NodeFacts(allocatable={"nvidia.com/gpu": "1"})
    assert plugin.why_withheld()
    assert changes == []


def test_a_setting_has_gpus_published_all_the_same() -> None:
    node = Node()
    plugin, _ = noticed(node, heed=False)
    assert node.listeners == []
    assert plugin.why_withheld() is None


def test_every_gpu_is_withheld_with_the_reason() -> None:
    inventory = make.inventory(make.gpu(0), make.gpu(1, mig=make.mig(make.mig_device(1))))
    found = projection(inventory, share=NO_SHARES.refusing_all(inventory, "given out twice"))
    assert found.devices == ()
    assert [one.reason for one in found.withheld] == ["given out twice"] * 2
