"""Kubernetes' own readers of device metadata find in the driver's files what our reader finds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from testbed.commands import TestbedError

import device_metadata as ours
import metadata_readers as theirs
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.devices.shares import ShareStrategy
from readiness import lacks
from worlds.node import Node

SLICED = {"count": 4, "strategy": ShareStrategy.TIME_SLICING}
NEWEST = "1.37"


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    """The readers."""
    try:
        return theirs.fetch()
    except TestbedError as error:
        lacks("metadata", str(error))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a reader must find: devices and some attributes of theirs, by request."""

    devices: Mapping[str, list[str]]
    of_each: Mapping[str, str]


Make = Callable[[Node], tuple[ClaimRef, Expected]]


def whole_gpus(node: Node) -> tuple[ClaimRef, Expected]:
    names = ["gpu-1", "gpu-2"]
    return node.claim(*names), Expected(devices={"gpu": names}, of_each={"type": "gpu"})


def alternatives(node: Node) -> tuple[ClaimRef, Expected]:
    ref = node.driver.api.add("gpu-3", "gpu-4", uid="uid-claim", requests=["one", "two/any"])
    wanted = {"one": ["gpu-3"], "two/any": ["gpu-4"]}
    return ref, Expected(devices=wanted, of_each={"type": "gpu"})


def mig_on_demand(node: Node) -> tuple[ClaimRef, Expected]:
    name = node.name("1g.10gb", 3)
    attributes = {"type": "mig", "profile": "1g.10gb", "parentUUID": node.uuid(0)}
    return node.claim(name), Expected(devices={"gpu": [name]}, of_each=attributes)


def mig_made_by_hand(node: Node) -> tuple[ClaimRef, Expected]:
    node.machine.set_mig_mode(node.uuid(0), enabled=True)
    made = node.machine.create_mig(node.uuid(0), "2g.20gb", 2)
    node.look()
    name = node.name("2g.20gb", 2)
    attributes = {"type": "mig", "profile": "2g.20gb", "uuid": made}
    return node.claim(name), Expected(devices={"gpu": [name]}, of_each=attributes)


def share(node: Node) -> tuple[ClaimRef, Expected]:
    node.divide(0, **SLICED)
    name = "gpu-0-single-share-2-of-4"
    attributes = {"resourceName": "nvidia.com/gpu", "uuid": node.uuid(0)}
    return node.claim(name), Expected(devices={"gpu": [name]}, of_each=attributes)


def part(node: Node) -> tuple[ClaimRef, Expected]:
    ref = node.claim_parts("one", name="claim", configs=())
    return ref, Expected(devices={"gpu": ["gpu-0"]}, of_each={"uuid": node.uuid(0)})


def by_admin_access(node: Node) -> tuple[ClaimRef, Expected]:
    ref = node.claim("gpu-5")
    node.driver.api.results(ref)[0]["adminAccess"] = True
    return ref, Expected(devices={"gpu": ["gpu-5"]}, of_each={"uuid": node.uuid(5)})


KINDS: tuple[Make, ...] = (
    whole_gpus,
    alternatives,
    mig_on_demand,
    mig_made_by_hand,
    share,
    part,
    by_admin_access,
)


def mounted(node: Node, ref: ClaimRef) -> dict[str, str]:
    """What a container with all of a claim finds: texts by path."""
    return {
        mount["containerPath"]: Path(mount["hostPath"]).read_text()
        for device in node.driver.spec(ref)["devices"]
        for mount in device["containerEdits"].get("mounts", ())
        if mount["containerPath"].startswith(ours.FOLDER)
    }


@pytest.mark.parametrize("kind", ["claim", "template"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_each_kind_of_device_is_found_by_all_readers_and_where_they_look(
    node: Node, programs: Mapping[str, Path], make: Make, kind: str
) -> None:
    ref, expected = make(node)
    name = ref.name
    if kind == "template":
        name = "mine"
        claim = node.driver.api.claims[ref.namespace, ref.name]
        said = {"resource.kubernetes.io/pod-claim-name": name}
        claim["metadata"]["annotations"] = said
    node.driver.prepare(ref)
    files = mounted(node, ref)
    paths = {
        theirs.where(programs[NEWEST], kind, name, request.partition("/")[0]): request
        for request in expected.devices
    }
    assert files.keys() == paths.keys()
    for path, request in paths.items():
        for minor, known in theirs.KNOWN.items():
            said = theirs.read(programs[minor], files[path])
            assert (said.version, said.invalid) == (known[0], "")
            assert said.found == ours.content(ours.read(files[path], known=known))
            assert said.found.get("podClaimName") == ("mine" if kind == "template" else None)
            assert said.found["metadata"]["uid"] == ref.uid
            (one,) = said.found["requests"]
            assert one["name"] == request
            assert [device["name"] for device in one["devices"]] == expected.devices[request]
            for device in one["devices"]:
                for attribute, value in expected.of_each.items():
                    assert device["attributes"][attribute] == {"string": value}
    node.driver.unprepare(ref)


# Files that no driver of today writes


def document(version: str = "v1beta1", **changes: Any) -> dict[str, Any]:
    """What a file says in one version."""
    return {
        "kind": "DeviceMetadata",
        "apiVersion": f"{ours.GROUP}/{version}",
        "metadata": {"name": "claim", "namespace": "default", "uid": "uid", "generation": 1},
        "podClaimName": "mine",
        "requests": [{"name": "gpu", "devices": [device()]}],
        **changes,
    }


def device(**changes: Any) -> dict[str, Any]:
    facts = {"driver": "gpu.nvidia.com", "pool": "node-1", "name": "gpu-0"}
    return {**facts, "attributes": {"type": {"string": "gpu"}}, **changes}


def of_device(**changes: Any) -> str:
    return json.dumps(document(requests=[{"name": "gpu", "devices": [device(**changes)]}]))


def of_attributes(attributes: object) -> str:
    return of_device(attributes=attributes)


def stream(*found: Mapping[str, Any]) -> str:
    return "\n".join(map(json.dumps, found))


FUTURE = document("v2", metadata="as nobody knows it yet", requests={"gpu": 7})
OTHER = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1"}

STREAMS: Mapping[str, str] = {
    "both versions": stream(document(), document("v1alpha1")),
    "in the other order": stream(document("v1alpha1"), document()),
    "a future version first": stream(FUTURE, document(), document("v1alpha1")),
    "a future version last": stream(document(), document("v1alpha1"), FUTURE),
    "a future version alone": stream(FUTURE),
    "another API first": stream(OTHER, document("v1alpha1")),
    "without blanks between them": json.dumps(FUTURE) + json.dumps(document("v1alpha1")),
    "nothing": "",
    "blanks": " \n",
    "no object": "[]",
    "cut off": stream(document("v1alpha1"))[:-9],
    "cut off behind the first": stream(document("v1alpha1")) + '{"kind": ',
    "cut off behind one of the future": stream(FUTURE) + '{"kind": ',
    "another kind": stream(document("v1alpha1", kind="Other"), document("v1alpha1")),
    "no kind": stream({"apiVersion": f"{ours.GROUP}/v1alpha1"}, document("v1alpha1")),
    "no version": stream({"kind": "DeviceMetadata"}, document("v1alpha1")),
    "requests of another type": stream(document("v1alpha1", requests={"gpu": 7})),
}


@pytest.mark.parametrize("minor", theirs.KNOWN)
@pytest.mark.parametrize("name", STREAMS)
def test_of_any_stream_all_readers_take_the_same_object_or_none(
    programs: Mapping[str, Path], name: str, minor: str
) -> None:
    known = theirs.KNOWN[minor]
    try:
        said = theirs.read(programs[minor], STREAMS[name])
    except TestbedError:
        with pytest.raises((AssertionError, ValueError)):
            ours.read(STREAMS[name], known=known)
    else:
        found = ours.read(STREAMS[name], known=known)
        assert found["apiVersion"] == f"{ours.GROUP}/{said.version}"
        assert said.found == ours.content(found)


def test_readers_pass_over_versions_of_the_future_and_say_so_if_there_is_none_else(
    programs: Mapping[str, Path],
) -> None:
    for minor, known in theirs.KNOWN.items():
        later = STREAMS["a future version first"]
        assert theirs.read(programs[minor], later).version == known[0]
        with pytest.raises(TestbedError, match=rf"unknown versions: {ours.GROUP}/v2"):
            theirs.read(programs[minor], STREAMS["a future version alone"])


LONGEST = {
    "attributes": {f"a{number}": {"int": number} for number in range(32)},
    "value": {"type": {"string": "x" * 64}},
    "name": {f"a.example.com/{'x' * 32}": {"version": "1.2.3-rc.1"}},
}

FLAWS: Mapping[str, str] = {
    "33 attributes": of_attributes(LONGEST["attributes"] | {"b": {"int": 1}}),
    "no value": of_attributes({"type": {}}),
    "two values": of_attributes({"type": {"string": "gpu", "int": 1}}),
    "a device with a capital": of_device(name="Gpu-0"),
    "a device too long": of_device(name="x" * 64),
    "no device": of_device(name=""),
    "no pool": of_device(pool=""),
    "a pool too long": of_device(pool="/".join(["x" * 60] * 5)),
    "no driver": of_device(driver=""),
    "a claim's name with a dot": json.dumps(document(podClaimName="a.b")),
    "a claim's name that is empty": json.dumps(document(podClaimName="")),
    "a request without a name": json.dumps(document(requests=[{"name": "", "devices": []}])),
}


@pytest.mark.parametrize("name", FLAWS)
def test_what_the_apis_validation_finds_our_reader_finds(
    programs: Mapping[str, Path], name: str
) -> None:
    assert theirs.read(programs[NEWEST], FLAWS[name]).invalid != ""
    with pytest.raises((AssertionError, ValueError)):
        ours.read(FLAWS[name])


@pytest.mark.parametrize("name", LONGEST)
def test_what_is_as_long_as_it_may_be_is_valid_for_both(
    programs: Mapping[str, Path], name: str
) -> None:
    data = of_attributes(LONGEST[name])
    said = theirs.read(programs[NEWEST], data)
    assert said.invalid == ""
    assert said.found == ours.content(ours.read(data))
