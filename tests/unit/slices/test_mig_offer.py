"""What a node offers of MIG, by settings, the peer's feature gate and the Node's labels."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

import make
from dra_driver.admin.inspect.command import mig_offer
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.kube.own_node import NodeFacts
from dra_driver.slices.node import NodeOffer
from dra_driver.slices.offer.mig import (
    MIG_MANAGER_LABEL,
    MigOffer,
    MigSettings,
    MigSource,
    named,
)
from dra_driver.slices.project import Projection, projection

LABELLED = {MIG_MANAGER_LABEL: "all-1g.10gb"}
HAND_MADE = make.mig_device(0, "3g.40gb", 4)


@pytest.mark.parametrize(
    ("mig", "gate", "labels", "source", "why"),
    [
        ("auto", None, {}, "auto", "the node has no label nvidia.com/mig.config"),
        ("auto", None, LABELLED, "existing", "label nvidia.com/mig.config=all-1g.10gb"),
        ("auto", True, LABELLED, "on-demand", "feature gate DynamicMIG is true"),
        ("auto", False, {}, "existing", "feature gate DynamicMIG is false"),
        ("on-demand", False, LABELLED, "on-demand", "--mig is on-demand"),
        ("existing", True, {}, "existing", "--mig is existing"),
        ("off", True, {}, "off", "--mig is off"),
    ],
)
def test_the_more_explicit_setting_wins(
    mig: str, gate: bool | None, labels: dict[str, str], source: str, why: str
) -> None:
    offer = MigSettings.of(mig, "", gate=gate).offer(labels, (1, 37))
    assert (offer.source, offer.profiles) == (source, frozenset())
    assert why in offer.why


class PlayedNode:
    """The Node and the version of Kubernetes, as a watch tells them."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.listeners: list[Callable[[NodeFacts], object]] = []

    def listen(self, listener: Callable[[NodeFacts], object]) -> None:
        self.listeners.append(listener)

    def tell(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        for listener in self.listeners:
            listener(NodeFacts(labels=labels))

    def current(self) -> NodeFacts:
        return NodeFacts(labels=self.labels)


def followed(node: Any, mig: str, on_change: Callable[[], None] = lambda: None) -> NodeOffer:
    return NodeOffer(node, node, MigSettings.of(mig, ""), on_change=on_change)


def test_a_repeated_label_changes_no_offer() -> None:
    node, changes = PlayedNode(LABELLED), list[MigSource]()
    offer = followed(node, "auto", lambda: changes.append(offer.current().source))
    assert offer.current().source == "existing"
    node.tell(LABELLED)
    assert changes == []
    node.tell({MIG_MANAGER_LABEL: ""})
    assert changes == ["existing"]


@pytest.mark.parametrize(
    ("mig", "expected"), [("auto", [True, True]), ("on-demand", [False, True])]
)
def test_a_mode_that_others_set_is_waited_for_where_this_driver_could_not_set_it(
    mig: str, expected: list[bool]
) -> None:
    offer = followed(PlayedNode({}), mig)
    found = [
        offer.waits_for_others(
            make.gpu(0, mig=make.mig(pending_mode=MigMode.ENABLED, needs_reset=needs_reset))
        )
        for needs_reset in (False, True)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("mig", "kubernetes", "source", "why"),
    [
        (
            "auto",
            (1, 37),
            "auto",
            f"on Kubernetes 1.37, unless the Node has label {MIG_MANAGER_LABEL}",
        ),
        ("auto", (1, 36), "existing", "--mig auto makes none on Kubernetes 1.36"),
        ("off", (1, 37), "off", "--mig is off"),
    ],
)
def test_without_a_node_the_deciding_label_is_named(
    mig: str, kubernetes: tuple[int, int], source: str, why: str
) -> None:
    offer = mig_offer(mig, "1g.10gb,2g.20gb", kubernetes)
    assert (offer.source, offer.why[: len(why)]) == (source, why)
    assert offer.profiles == {"1g.10gb", "2g.20gb"}


def test_a_version_of_kubernetes_is_named() -> None:
    assert named((1, 36)) == "Kubernetes 1.36"
    assert named(None) == "a Kubernetes of unknown version"


@pytest.mark.parametrize(
    ("kubernetes", "source"),
    [((1, 34), "existing"), ((1, 36), "existing"), (None, "existing"), ((1, 38), "auto")],
)
def test_before_1_37_auto_means_existing_with_advice(
    kubernetes: tuple[int, int] | None, source: str
) -> None:
    offer = MigSettings.of("auto", "").offer({}, kubernetes)
    assert offer.source == source
    assert offer.way_out == ("or set --mig on-demand" if source == "existing" else None)


@pytest.mark.parametrize("mig", ["on-demand", "existing", "off"])
def test_explicit_settings_apply_on_any_kubernetes(mig: str) -> None:
    assert MigSettings.of(mig, "").offer({}, (1, 34)).source == mig


@pytest.mark.parametrize(
    ("mig", "gate", "switches"),
    [
        ("auto", None, False),
        ("auto", True, True),
        ("auto", False, False),
        ("on-demand", None, True),
        ("existing", None, False),
        ("off", None, False),
    ],
)
def test_only_on_demand_switches_modes(mig: str, gate: bool | None, switches: bool) -> None:
    assert MigSettings.of(mig, "", gate=gate).switches_modes == switches


@pytest.mark.parametrize(("mig", "gate"), [("existing", None), ("auto", True)])
def test_labels_are_followed_only_where_they_decide(mig: str, gate: bool | None) -> None:
    assert MigSettings.of("auto", "").heeds_node
    assert not MigSettings.of(mig, "", gate=gate).heeds_node


def h100(*instances: Any, mode: MigMode | None = None) -> Gpu:
    mode = mode or (MigMode.ENABLED if instances else MigMode.DISABLED)
    return make.gpu(0, mig_mode=mode, mig=make.mig(*instances))


def offered(gpu: Gpu, source: MigSource, *profiles: str) -> Projection:
    offer = MigOffer(source=source, why="so it was set", profiles=frozenset(profiles))
    return projection(make.inventory(gpu), mig=offer)


def names(found: Projection) -> list[str]:
    return [str(device["name"]) for device in found.devices]


@pytest.mark.parametrize("source", [MigSource.EXISTING, MigSource.OFF])
def test_a_gpu_that_nobody_divides_is_whole_and_has_no_counters(source: MigSource) -> None:
    found = offered(h100(), source)
    assert names(found) == ["gpu-0"]
    assert found.counter_sets == ()
    assert "consumesCounters" not in found.devices[0]
    assert found.notes == (), "the log and inspect say it once for the node"


def test_devices_that_others_made_are_offered_unless_mig_is_off() -> None:
    assert names(offered(h100(HAND_MADE), MigSource.EXISTING)) == ["gpu-0-mig-3g40gb-9-4"]
    assert names(offered(h100(HAND_MADE), MigSource.OFF)) == []


@pytest.mark.parametrize("source", [MigSource.EXISTING, MigSource.OFF])
def test_a_gpu_in_mig_mode_is_not_whole_if_it_cannot_be_turned_off(source: MigSource) -> None:
    found = offered(h100(mode=MigMode.ENABLED), source)
    assert names(found) == []
    assert "MIG mode is on" in found.withheld[0].reason


def test_only_the_profiles_that_are_wished_are_offered() -> None:
    found = offered(h100(), MigSource.ON_DEMAND, "1g.10gb", "3g.40gb")
    assert names(found)[0] == "gpu-0"
    assert {name.split("-")[3] for name in names(found)[1:]} == {"1g10gb", "3g40gb"}
    assert len(found.counter_sets) == 1


def test_devices_of_claims_stay_published() -> None:
    """The scheduler counts what an allocated device consumes only if it is published."""
    before = make.mig_device(0, "2g.20gb", 2, made_here=True)
    found = offered(h100(before), MigSource.ON_DEMAND, "1g.10gb", "3g.40gb")

    assert [name for name in names(found) if "2g20gb" in name] == ["gpu-0-mig-2g20gb-14-2"]
    taken = consumed(found, "gpu-0-mig-2g20gb-14-2")
    assert taken & consumed(found, "gpu-0-mig-3g40gb-9-0")
    assert taken & consumed(found, "gpu-0-mig-1g10gb-19-3")
    assert taken & consumed(found, "gpu-0")
    assert not taken & consumed(found, "gpu-0-mig-3g40gb-9-4")


def consumed(found: Projection, name: str) -> set[str]:
    """The names of the counters that a published device consumes to keep others away."""
    (one,) = (device for device in found.devices if device["name"] == name)
    (counters,) = cast("list[dict[str, Any]]", one["consumesCounters"])
    return set(counters["counters"]) - {"memory"}


def test_a_gpu_with_none_of_the_profiles_is_whole_and_says_why() -> None:
    found = offered(h100(), MigSource.ON_DEMAND, "1g.5gb")
    assert names(found) == ["gpu-0"]
    assert found.counter_sets == ()
    assert "none of the profiles of --mig-profiles: 1g.5gb" in found.notes[0].text


def test_a_card_without_mig_needs_no_note() -> None:
    found = offered(make.gpu(0, mig_mode=MigMode.UNSUPPORTED), MigSource.EXISTING)
    assert names(found) == ["gpu-0"]
    assert found.notes == ()
