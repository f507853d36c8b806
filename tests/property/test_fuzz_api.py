"""What the API server sends, however it is broken: claims, events of watches, slices, errors."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fuzz
import make
from dra_driver.claims.model.claim import Claim, parse_claim, uid_of
from dra_driver.claims.model.config import group_by_config
from dra_driver.devices.device import DeviceKind
from dra_driver.errors import ConfigError
from dra_driver.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, Call, Resource
from dra_driver.kube.responses import WatchStream, object_in
from dra_driver.kube.watch import Changed, Listed, Watch
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import projection
from dra_driver.slices.publish.writes import Delete, differences, owner_reference, writes_for
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError
from sampling import examples

CALL = Call(verb="get", resource=RESOURCE_CLAIMS, namespace="default", name="claim")
CLAIM = make.claim_object(
    "gpu-0",
    "gpu-1",
    configs=[
        make.config("gpu", sharing={"strategy": "TimeSlicing"}),
        make.config(source="FromClass"),
    ],
)
OWNER = owner_reference(name="node-1", uid="node-uid")
PROJECTION = projection(make.inventory(make.gpu(0, mig=make.mig()), make.gpu(1)))
POOL = build_slices(
    PROJECTION.devices,
    driver="gpu.nvidia.com",
    node_name="node-1",
    counter_sets=PROJECTION.counter_sets,
)
SERVED = [
    {
        "metadata": {
            "name": POOL.slice_name(index),
            "uid": f"uid-{index}",
            "resourceVersion": "1",
            "ownerReferences": [OWNER],
        },
        "spec": json.loads(json.dumps(POOL.spec(index, generation=1))),
    }
    for index in range(len(POOL.contents))
]


@given(fuzz.bent(CLAIM))
@settings(deadline=None, max_examples=examples(400))
def test_a_claim_of_any_form_is_a_claim_or_refused(claim: Any) -> None:
    if not isinstance(claim, dict):
        return  # kube/responses.py hands out objects only
    assert uid_of(claim) is None or isinstance(uid_of(claim), str)
    found = fuzz.ours(lambda: parse_claim(claim, "gpu.nvidia.com"))
    if not isinstance(found, Claim):
        assert isinstance(found, ConfigError)
        return
    kinds = dict.fromkeys([result.device for result in found.results], DeviceKind.GPU)
    groups = fuzz.ours(lambda: group_by_config(found, kinds))
    assert isinstance(groups, list | ConfigError)
    texts: list[object] = [found.ref.uid, found.ref.namespace, found.ref.name]
    texts += [text for one in found.results for text in (one.request, one.pool, one.device)]
    texts += [one.share_id or "" for one in found.results]
    texts += [request for config in found.configs for request in config.requests]
    texts += [text for pod in found.pods for text in (pod.name, pod.uid)]
    assert all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("depth", [90, 900, 3000])
def test_a_config_nested_too_deep_is_refused(depth: int) -> None:
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"a": nested}
    for config in (nested, {"apiVersion": "resource.nvidia.com/v1beta1", "kind": nested}):
        with pytest.raises(InvalidConfigError):
            decode(config)


@given(st.integers(101, 3000), st.sampled_from(["[]", '{"a":}', '[{"a":}]']))
@settings(deadline=None, max_examples=20)
def test_a_claim_with_a_config_nested_too_deep_hides_no_other(depth: int, shape: str) -> None:
    half = len(shape) // 2 if shape == "[]" else shape.index(":") + 1
    config = shape[:half] * depth + "1" + shape[half:] * depth
    other = json.dumps(CLAIM)
    body = f'{{"items":[{{"a":"[\\"{{","parameters":{config}}},{other}]}}'.encode()
    found: Any = object_in(CALL, body)
    assert found["items"][0]["a"] == '["{'
    assert found["items"][1] == CLAIM


class Body:
    """An answer whose body comes in the chunks given."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def chunks(self) -> Iterator[bytes]:
        yield from self._chunks

    def close(self) -> None:
        pass


EVENT = {"type": "MODIFIED", "object": CLAIM}


class OneStream:
    """An API server with one list and one stream of events; then it is away."""

    def __init__(self, answer: Any, events: list[Any]) -> None:
        self.answer = answer
        self.events = events

    def list(
        self, resource: Resource, *, query: Mapping[str, str], timeout: float
    ) -> dict[str, object]:
        return object_in(CALL, fuzz.as_json(self.answer))

    def watch(self, resource: Resource, *, query: Mapping[str, str]) -> WatchStream:
        return WatchStream(CALL, Body([fuzz.as_json(event) + b"\n" for event in self.events]))


LIST = {"metadata": {"resourceVersion": "5"}, "items": [CLAIM, CLAIM]}


@given(answer=fuzz.bent(LIST), events=st.lists(fuzz.bent(EVENT), max_size=3))
@example(answer=LIST, events=[{"type": [], "object": {}}])
@settings(deadline=None)
def test_a_watch_yields_only_objects_and_survives_anything(answer: Any, events: list[Any]) -> None:
    told: list[Listed | Changed] = []
    watch = Watch(
        OneStream(answer, events),
        RESOURCE_CLAIMS,
        selectors={},
        tell=told.append,
        clock=lambda: 0.0,
        random=lambda: 0.5,
    )
    assert all(watch._turn() >= 0 for _ in range(3))
    for one in told:
        objects = one.items if isinstance(one, Listed) else (one.object,)
        assert all(isinstance(entry, dict) for entry in objects)


@given(st.lists(st.sampled_from(SERVED).flatmap(fuzz.bent), max_size=3))
@settings(deadline=None, max_examples=examples(200))
def test_slices_of_any_form_are_brought_in_line(existing: list[Any]) -> None:
    found = [entry for entry in existing if isinstance(entry, dict)]
    writes = writes_for(POOL, found, owner=OWNER)
    assert len(writes) >= len(POOL.contents) - len(found)
    for write in writes:
        assert isinstance(write.name, str)
        if not isinstance(write, Delete):
            spec: Any = write.body["spec"]
            assert isinstance(spec["pool"]["generation"], int)


@given(actual=fuzz.bent(SERVED[0]["spec"]))
@settings(deadline=None)
def test_a_stored_slice_of_any_form_can_be_compared(actual: Any) -> None:
    for difference in differences(POOL.spec(0, generation=1), actual):
        assert str(difference)


@pytest.mark.parametrize("text", fuzz.ODD_TEXTS)
def test_names_of_any_form_stay_one_part_of_a_path(text: str) -> None:
    path = RESOURCE_CLAIMS.path(text, namespace=text)
    assert path.startswith("/apis/resource.k8s.io/v1/namespaces/")
    assert path.count("/") == RESOURCE_CLAIMS.path("a", namespace="b").count("/")
    assert RESOURCE_SLICES.path(text).count("/") == RESOURCE_SLICES.path("a").count("/")
