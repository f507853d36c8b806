"""Events about objects, as the API wants them."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from dra_driver.kube.events import Events, Regarding
from dra_driver.kube.outbox import Outbox

TIME = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
NODE = Events(None, Outbox(), controller="gpu.nvidia.com/dra-driver", node="node-1")  # type: ignore[arg-type]


def about(name: str = "claim") -> Regarding:
    return Regarding(api_version="v1", kind="Pod", namespace="default", name=name, uid="uid")


def event(name: str = "claim", **facts: Any) -> dict[str, Any]:
    what = {"reason": "Died", "action": "Restarting", "note": "it died", "time": TIME} | facts
    return dict(NODE.event(about(name), **what))


def test_an_event_names_its_object_its_reporter_and_its_time() -> None:
    assert event() == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "claim.1886caf21ca08dd8", "namespace": "default"},
        "type": "Warning",
        "reason": "Died",
        "action": "Restarting",
        "note": "it died",
        "eventTime": "2026-01-02T03:04:05.000678Z",
        "reportingController": "gpu.nvidia.com/dra-driver",
        "reportingInstance": "node-1",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "claim",
            "uid": "uid",
        },
    }


def test_the_time_is_utc_wherever_the_clock_is() -> None:
    here = TIME.astimezone(timezone(timedelta(hours=5)))
    assert event(time=here) == event()


def test_too_long_messages_are_cut_and_stay_text() -> None:
    made = event("a" * 236 + "." + "b" * 16, note="ä" * 1000)
    assert len(made["metadata"]["name"]) == 253
    assert made["metadata"]["name"].startswith("a" * 236 + ".1")
    assert made["note"] == "ä" * 512


def test_events_of_one_object_have_names_of_their_own() -> None:
    later = TIME + timedelta(microseconds=1)
    assert event(time=later)["metadata"]["name"] != event()["metadata"]["name"]


def test_events_of_a_pod_and_of_a_claim_of_its_name_have_names_of_their_own() -> None:
    claim = Regarding(
        api_version="resource.k8s.io/v1",
        kind="ResourceClaim",
        namespace="default",
        name="claim",
        uid="uid",
    )
    made = NODE.event(claim, reason="Died", action="Restarting", note="it died", time=TIME)
    assert made["metadata"] != event()["metadata"]


def test_a_long_node_name_is_cut() -> None:
    events = Events(None, Outbox(), controller="c", node="n" * 200)  # type: ignore[arg-type]
    made = events.event(about(), reason="Died", action="Restarting", note="", time=TIME)
    assert made["reportingInstance"] == "n" * 128


def test_an_event_of_what_lives_in_no_namespace_is_in_the_default_one() -> None:
    node = Regarding(api_version="v1", kind="Node", namespace="", name="node-1", uid="node-1")
    found: dict[str, Any] = dict(
        NODE.event(node, reason="Died", action="Restarting", note="it died", time=TIME)
    )
    assert found["metadata"]["namespace"] == node.event_namespace == "default"
    assert "namespace" not in found["regarding"]
