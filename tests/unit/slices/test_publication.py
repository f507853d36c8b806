"""Which devices depend on fields that an API server may drop, and what a publication refuses."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

import make
from dra_driver.errors import UnavailableError
from dra_driver.kube.resource import Resource
from dra_driver.ops.metrics import SliceWrite
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.project import Note, Projection, Withheld, projection
from dra_driver.slices.publish.publication import Publication, _feature, features
from dra_driver.slices.publish.writes import Difference, Kind, Path

NODE: dict[str, object] = {"metadata": {"uid": "node-uid"}}


class Silent:
    """An observer that counts nothing."""

    def published(self, *, slices: int, devices: int) -> None: ...

    def slice_written(self, write: SliceWrite) -> None: ...

    def publish_failed(self) -> None: ...

    def fields_dropped(self, count: int) -> None: ...


class Answers:
    """An API server that gives fixed answers."""

    def __init__(
        self, *, node: dict[str, object], listed: object, stored: dict[str, object]
    ) -> None:
        self._node, self._listed, self._stored = node, listed, stored

    def get_node(self, name: str, *, timeout: float) -> dict[str, object]:
        return self._node

    def list(
        self, resource: Resource, *, query: Mapping[str, str], timeout: float
    ) -> dict[str, object]:
        return {"items": self._listed}

    def create(
        self, resource: Resource, body: Mapping[str, object], *, timeout: float
    ) -> dict[str, object]:
        return self._stored

    def update(
        self, resource: Resource, name: str, body: Mapping[str, object], *, timeout: float
    ) -> dict[str, object]:
        raise AssertionError(name)

    def delete(
        self, resource: Resource, name: str, *, preconditions: Mapping[str, str], timeout: float
    ) -> None:
        raise AssertionError(name)

    def watch(self, resource: Resource, *, query: Mapping[str, str]) -> Any:
        raise AssertionError(resource)


def publication(answers: Answers) -> Publication:
    return Publication(
        answers, driver="gpu.nvidia.com", node_name="n1", observer=Silent(), project=projection
    )


def test_the_features_of_a_device_are_its_fields_beyond_the_basic_ones() -> None:
    device: dict[str, object] = {
        "name": "gpu-0",
        "attributes": {"taints": {"bool": True}},
        "capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}},
        "consumesCounters": [],
        "allowMultipleAllocations": True,
    }
    assert features(device) == {"consumesCounters", "allowMultipleAllocations", "requestPolicy"}
    assert features({"name": "gpu-0"}) == frozenset()


@pytest.mark.parametrize(
    ("path", "feature"),
    [
        (("sharedCounters",), "consumesCounters"),
        (("devices", 3, "consumesCounters"), "consumesCounters"),
        (("devices", 3, "allowMultipleAllocations"), "allowMultipleAllocations"),
        (("devices", 3, "taints"), "taints"),
        (("devices", 3, "capacity", "memory", "requestPolicy"), "requestPolicy"),
        (("devices", 3, "capacity", "memory", "value"), None),
        (("devices", 3, "attributes", "uuid"), None),
        (("pool", "generation"), None),
    ],
)
def test_a_dropped_field_makes_the_devices_unsafe_that_rely_on_it(
    path: Path, feature: str | None
) -> None:
    assert _feature(Difference(kind=Kind.DROPPED, path=path)) == feature
    assert _feature(Difference(kind=Kind.CHANGED, path=path)) is None


@pytest.mark.parametrize("node", [{}, {"metadata": None}, {"metadata": {"name": "n1"}}])
def test_a_node_without_uid_cannot_own_slices(node: dict[str, object]) -> None:
    answers = Answers(node=node, listed=[], stored={})
    with pytest.raises(UnavailableError, match="no uid"):
        publication(answers).publish(make.inventory())


def test_an_answer_that_is_not_a_slice_is_an_error() -> None:
    answers = Answers(node=NODE, listed=[], stored={"kind": "Status"})
    with pytest.raises(UnavailableError, match="has no spec"):
        publication(answers).publish(make.inventory())


def test_slices_of_others_are_not_deleted_even_if_the_server_lists_them() -> None:
    theirs = [
        {"metadata": {"name": "a"}, "spec": {"driver": "nic.example.com", "nodeName": "n1"}},
        {"metadata": {"name": "b"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "n2"}},
        {"metadata": {"name": "c"}},
    ]
    answers = Answers(node=NODE, listed=theirs, stored={"spec": {"devices": []}})
    assert publication(answers).publish(make.inventory()) == 1


class Stores(Answers):
    """An API server that takes whatever it is given and keeps nothing."""

    def create(
        self, resource: Resource, body: Mapping[str, object], *, timeout: float
    ) -> dict[str, object]:
        return dict(body)


def test_omissions_are_logged_again_only_for_the_changed_gpu() -> None:
    def found(*notes: Note, withheld: tuple[Withheld, ...] = ()) -> Projection:
        omitted = (Omitted(device="gpu-7", attribute="numaNode", reason="unknown"),)
        return Projection(devices=(), notes=notes, withheld=withheld, omitted=omitted)

    notes = [Note(index=index, text="it is an older card") for index in range(8)]
    lost = Withheld(index=3, reason="it is lost")
    other = Note(index=4, text="it has an instance made by hand")
    looks = [
        found(*notes),
        found(*notes[:3], *notes[4:], withheld=(lost,)),
        found(*notes[:3], other, *notes[5:], withheld=(lost,)),
        found(*notes),
    ]
    rest = iter(looks)
    publisher = Publication(
        Stores(node=NODE, listed=[], stored={}),
        driver="gpu.nvidia.com",
        node_name="n1",
        observer=Silent(),
        project=lambda _, with_counters, with_consumables: next(rest),
    )
    told = []
    for _ in looks:
        with capture_logs() as logs:
            publisher.publish(make.inventory())
        told.append(
            [
                (line["event"], line.get("index"))
                for line in logs
                if line["event"] != "slices published"
            ]
        )
    part = "gpu published in part"
    assert told == [
        [*((part, index) for index in range(8)), ("attribute omitted", None)],
        [("gpu withheld", 3)],
        [(part, 4)],
        [(part, 3), (part, 4)],
    ]
