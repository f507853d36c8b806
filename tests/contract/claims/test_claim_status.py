"""The driver says in a claim's own status which devices it has: once, and to no pod's harm."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from testbed.apiserver.claim_rules import without_device_status
from testbed.apiserver.kinds import kind_of

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.report.device_health import DeviceHealth, HealthState
from dra_driver.claims.report.status_writer import MANAGER, REFUSED_RETRY, WITHDRAW_AFTER
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.ops.metrics import Metrics
from worlds.claim_status import FOREIGN, REF, Place
from worlds.process import serving_a_node


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with serving_a_node() as server, closing(Place(tmp_path, server)) as made:
        yield made


@pytest.fixture
def auckland() -> Iterator[None]:
    """A node with its clock in another zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "NZST-12")
        time.tzset()
        yield
    time.tzset()


def test_a_prepared_claim_says_which_devices_it_has(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1", "gpu-3"))
    place.look()
    first, second = place.status()
    assert (first["driver"], first["pool"], first["device"]) == (
        "gpu.nvidia.com",
        "node-1",
        "gpu-1",
    )
    assert first["data"]["version"] == "v1"
    assert first["data"]["uuid"] == make.gpu(1).uuid
    assert first["data"]["pciBusID"] == make.gpu(1).pci_address
    assert second["data"]["uuid"] == make.gpu(3).uuid
    assert {one["type"]: one["status"] for one in first["conditions"]} == {
        "Ready": "True",
        "Healthy": "True",
    }
    (claim,) = place.server.objects("resourceclaims")
    (owner,) = claim["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"], owner["subresource"]) == (
        MANAGER,
        "Apply",
        "status",
    )


UNSORTED = make.config(sharing={"strategy": "MPS", "mpsConfig": {}})
"""A config whose keys are in the order of the API's types, as clients in Go send them."""


@pytest.mark.parametrize(
    ("configs", "answers"), [([], [200, 200]), ([UNSORTED], [200, 422, 200])], ids=["none", "mps"]
)
def test_another_drivers_entries_stay_also_if_a_config_cannot_be_applied_over(
    place: Place, configs: list[Any], answers: list[int]
) -> None:
    ref = place.put("gpu-1", results=[{"request": "nic", **FOREIGN}], configs=configs)
    place.say_of_nic()
    place.driver.prepare(ref)
    place.look()
    assert [one["device"] for one in place.status()] == ["nic-0", "gpu-1"]
    assert [one.status for one in place.server.seen("patch", "resourceclaims")] == answers
    place.driver.unprepare(ref)
    place.look()
    place.look(60)
    assert place.status() == [FOREIGN]


def test_a_config_that_is_not_json_leaves_status_empty_and_logs_once(place: Place) -> None:
    place.driver.prepare(place.put("gpu-2"))
    place.look()
    config = make.config(sharing={"strategy": "<TimeSlicing>"})
    other = make.claim_object("gpu-1", uid="uid-1", name="other")
    ref = ClaimRef(uid=ClaimUid("uid-1"), namespace="default", name="other")
    place.server.put(other)
    place.driver.prepare(ref)
    kind = kind_of("resource.k8s.io/v1", "ResourceClaim")
    other["status"]["allocation"]["devices"]["config"] = [config]
    place.server.store.update(kind, "default", "other", other, status_only=True)
    with structlog.testing.capture_logs() as logs:
        place.look()
        place.look(100)
    assert [log["event"] for log in logs] == ["claim status refused"]


def test_status_of_another_driver_version_is_rewritten_once(place: Place) -> None:
    ref = place.put("gpu-1")
    place.driver.prepare(ref)
    place.look()
    (entry,) = place.status()
    (claim,) = place.server.objects("resourceclaims")
    data = {**entry["data"], "version": "v2", "uuids": ["GPU-1"]}
    claim["status"]["devices"] = [{**entry, "data": data}]
    kind = kind_of(claim["apiVersion"], claim["kind"])
    place.server.store.update(kind, "default", "claim", claim, status_only=True)
    place.restart()
    place.look()
    assert place.status() == [entry]
    writes = place.writes()
    place.look(100)
    assert place.writes() == writes


def test_an_unchanged_status_is_neither_read_nor_written(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    before = place.server.objects("resourceclaims")
    requests = len(place.server.seen())
    for _ in range(3):
        place.look(100)
    place.driver.prepare(REF)
    asked = len(place.server.seen())
    place.look()
    assert (asked, len(place.server.seen())) == (requests + 1, requests + 1)  # Prepare's own
    assert place.server.objects("resourceclaims") == before


def test_a_restarted_driver_rewrites_nothing(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    before = place.server.objects("resourceclaims")
    place.restart()
    place.look()
    assert place.writes() == 1
    assert place.server.objects("resourceclaims") == before


def test_a_condition_that_changes_is_written_and_the_rest_stays(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    (before,) = place.status()
    place.health = DeviceHealth(state=HealthState.UNHEALTHY, reason="GPULost", message="XID 79")
    place.look()
    (after,) = place.status()
    ready, healthy = after["conditions"]
    assert ready == before["conditions"][0]
    assert (healthy["type"], healthy["status"]) == ("Healthy", "False")
    assert (healthy["reason"], healthy["message"]) == ("GPULost", "XID 79")
    assert after["data"] == before["data"]


def test_an_unprepared_allocated_claim_has_no_entries(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    place.driver.unprepare(REF)
    place.look()
    assert len(place.status()) == 1
    place.look(WITHDRAW_AFTER)
    assert place.status() == []
    requests = len(place.server.seen())
    place.look(1000)
    assert len(place.server.seen()) == requests


def test_a_deallocated_claim_gets_no_status(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    place.driver.unprepare(REF)
    place.look()
    place.deallocate()
    assert place.status() == []
    place.look(60)
    assert place.writes() == 1


def test_a_claim_that_is_prepared_again_in_between_keeps_its_entries(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    place.driver.unprepare(REF)
    place.look()
    place.driver.prepare(REF)
    place.look()
    place.look(60)
    assert len(place.status()) == 1
    assert place.writes() == 1


@pytest.mark.parametrize("is_merged", [False, True], ids=["withdrawn", "merged"])
def test_a_claim_that_somebody_writes_meanwhile_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, is_merged: bool
) -> None:
    configs = [UNSORTED] if is_merged else []
    place.driver.prepare(
        place.put("gpu-1", results=[{"request": "nic", **FOREIGN}], configs=configs)
    )
    if not is_merged:
        place.look()
        place.driver.unprepare(REF)
        place.look()
    before, get = place.status(), place.client.get_claim

    def get_claim(namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        found = get(namespace, name, timeout=timeout)
        monkeypatch.undo()
        place.say_of_nic()
        return found

    monkeypatch.setattr(place.client, "get_claim", get_claim)
    place.look(WITHDRAW_AFTER)
    assert place.status() == [*before, FOREIGN]
    place.look(10)
    assert {one["device"] for one in place.status()} == {"nic-0", *(["gpu-1"] if is_merged else [])}


def test_devices_that_a_claim_lost_get_no_status(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.server.delete_all("resourceclaims")
    place.put("gpu-2")
    place.look()
    assert place.status() == []
    assert place.server.seen("patch") == []


def test_a_reallocated_claim_is_left_to_the_other_nodes_driver(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    place.driver.unprepare(REF)
    place.look()
    place.deallocate()
    (claim,) = place.server.objects("resourceclaims")
    there = make.claim_object("gpu-1", pool="node-2")["status"]
    kind = kind_of(claim["apiVersion"], claim["kind"])
    entry = {"driver": "gpu.nvidia.com", "pool": "node-2", "device": "gpu-1"}
    claim["status"] = there | {"devices": [entry]}
    place.server.store.update(kind, "default", "claim", claim, status_only=True)
    place.look(60)
    assert place.status() == [entry]
    assert place.writes() == 1


def test_another_claim_of_the_same_name_is_ignored(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    kind = kind_of("resource.k8s.io/v1", "ResourceClaim")
    place.server.store.delete(kind, "default", "claim")
    place.server.put(make.claim_object("gpu-1", uid="22222222-0000-4000-8000-000000000000"))
    place.look()
    assert place.writes() == 0


def test_times_are_utc_wherever_the_node_is(place: Place, auckland: None) -> None:
    del auckland
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    since = datetime.fromisoformat(place.status()[0]["conditions"][0]["lastTransitionTime"])
    assert abs(since - datetime.now(UTC)) < timedelta(hours=1)


def test_a_missing_permission_is_logged_once_and_retried_rarely(place: Place) -> None:
    server = place.server
    place.prepare(0, 1, 2, 3)
    server.granted = {("get", "resourceclaims.resource.k8s.io")}
    with structlog.testing.capture_logs() as logs:
        for _ in range(10):
            place.look(10)
    assert [log["event"] for log in logs] == ["claim status not written"]
    assert "grant the verb 'patch' on resourceclaims/status.resource.k8s.io" in logs[0]["reason"]
    assert len(server.seen("patch")) == 4
    # Once it is granted they are written by themselves.
    server.granted = None
    place.look(REFUSED_RETRY)
    assert len(place.have_status()) == 4


REFUSALS = {
    "a rule of the API": ({"status": 422}, "claim status refused"),
    "an admission policy": ({"status": 403}, "claim status not written"),
    "a policy with another status": ({"status": 405}, "claim status refused"),
    "a webhook that fails": ({"status": 500}, "claim status not written yet"),
    "a webhook that is slow": ({"status": 504}, "claim status not written yet"),
    "another writer": ({"status": 409}, ""),
}


@pytest.mark.parametrize(("fault", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_failure_of_one_claim_does_not_block_others_status(
    place: Place, fault: dict[str, Any], said: str
) -> None:
    names = [ref.name for ref in place.prepare(0, 1, 2, 3)]  # the bad one has the lowest UID
    place.server.fail("patch", "resourceclaims", name=names[0], times=1000, **fault)

    with structlog.testing.capture_logs() as logs:
        place.look()
        assert place.have_status() == names[1:]
        for _ in range(20):
            place.look(100)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == [said] * bool(said)
    place.server.faults.clear()
    place.look(600)
    assert place.have_status() == names


def test_an_api_server_without_the_feature_is_noticed_once(place: Place) -> None:
    place.server.store.rules.insert(0, without_device_status)
    place.prepare(2, 3)
    with structlog.testing.capture_logs() as logs:
        place.look()
        place.look(1000)
    assert [log["event"] for log in logs] == ["claim status not stored"]
    assert place.writes() == 2


def test_prepare_does_not_wait_for_status(place: Place) -> None:
    slow = place.server.fail("patch", "resourceclaims", delay=60.0, times=9)
    place.put("gpu-1")
    place.outbox.start()
    calls = ClaimCalls(
        place.driver.preparer, Metrics(driver="d", node="n", version="1"), clock=time.monotonic
    )
    for done in (calls.prepared, calls.unprepared):
        done.add(place.writer.claim_changed)
    answer = calls.prepare([REF], 10)[REF.uid]
    assert [device.name for device in answer.devices] == ["gpu-1"]
    assert not place.status()
    slow.times = 0
    slow.released.set()
    assert place.server.wait_for(lambda: bool(place.status()))
    assert calls.unprepare([REF], 10)[REF.uid].error == ""
    place.outbox.stop(10)


def test_a_claim_released_before_its_turn_is_not_read(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    requests = len(place.server.seen())
    place.writer.claim_changed(REF)

    def unprepare() -> float:
        place.driver.unprepare(REF)
        place.outbox.busy = lambda: 0.0
        return 0.001

    place.outbox.busy = unprepare
    place.outbox.deliver()
    place.look(1000)
    assert len(place.server.seen()) == requests


def test_device_health_is_written_in_the_background(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.look()
    place.health = DeviceHealth(state=HealthState.UNHEALTHY, reason="Xid79")
    place.outbox.busy = lambda: 1000.0
    place.writer.devices_changed()
    place.outbox.deliver()
    assert [one["reason"] for one in place.status()[0]["conditions"]] == ["Prepared", "Xid79"]


def test_only_claims_that_changed_are_looked_at(place: Place) -> None:
    _, other = place.prepare(1, 2)
    place.writer.claim_changed(other)
    place.outbox.deliver()
    assert place.have_status() == ["c-2"]
    place.driver.unprepare(other)
    place.writer.claim_changed(other)
    place.outbox.deliver()
    place.look(WITHDRAW_AFTER)
    assert place.have_status() == ["c-1"]


def test_before_the_first_scan_no_condition_is_removed(place: Place) -> None:
    place.driver.prepare(place.put("gpu-1"))
    place.restart(knows_devices=False)
    place.writer.claim_changed(REF)
    place.outbox.deliver()
    assert place.writes() == 0
    place.writer.devices_changed()
    place.outbox.deliver()
    assert place.writes() == 1


def test_unfinished_claims_and_those_of_another_boot_get_no_status(
    place: Place, tmp_path: Path
) -> None:
    place.driver.prepare(place.put("gpu-1"))
    record = place.driver.claims.ledger.read(REF.uid)
    assert record is not None
    place.driver.claims.ledger.write(replace(record, boot_id="boot-0"))
    place.look()
    place.look(60)
    assert place.writes() == 0
