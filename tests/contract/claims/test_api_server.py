"""Prepare and reconcile with the real client, against an API server over real HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from testbed.apiserver.server import ApiServer

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.errors import ConflictError, NotFoundError, TransientError
from dra_driver.kube.kubeconfig import from_kubeconfig
from worlds.api import ClaimApi
from worlds.driver import FAST, Driver

UID = ClaimUid("11111111-0000-4000-8000-000000000000")
REF = ClaimRef(uid=UID, namespace="default", name="claim")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.put(make.claim_object("gpu-1"))
        yield running


@pytest.fixture
def driver(server: ApiServer, tmp_path: Path) -> Iterator[Driver]:
    client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
    made = Driver(tmp_path, reader=client)
    yield made
    made.close()
    client.close()


def test_a_claim_is_prepared_with_one_request(server: ApiServer, driver: Driver) -> None:
    (device,) = driver.prepare(REF)
    assert device.name == "gpu-1"
    assert [entry.verb for entry in server.seen()] == ["get"]


def test_a_claim_that_has_gone_since_is_not_answered_from_its_record(
    server: ApiServer, driver: Driver
) -> None:
    driver.prepare(REF)
    server.delete_all("resourceclaims")
    with pytest.raises(NotFoundError):
        driver.prepare(REF)


def test_a_claim_that_does_not_exist_is_refused(driver: Driver) -> None:
    gone = ClaimRef(uid=ClaimUid("u"), namespace="default", name="gone")
    with pytest.raises(NotFoundError, match="claim default/gone no longer exists"):
        driver.prepare(gone)


def test_a_claim_of_another_uid_is_refused(driver: Driver) -> None:
    other = ClaimRef(uid=ClaimUid("other"), namespace="default", name="claim")
    with pytest.raises(ConflictError, match=f"was replaced: its UID is {UID} now"):
        driver.prepare(other)


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 429}, {"hang_up": True}])
def test_a_server_in_trouble_is_asked_again(
    server: ApiServer, driver: Driver, fault: dict[str, object]
) -> None:
    server.fail("get", times=2, **fault)
    assert len(driver.prepare(REF)) == 1


def test_a_lost_answer_is_requested_again_in_the_same_call(
    server: ApiServer, tmp_path: Path
) -> None:
    client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
    driver = Driver(tmp_path, reader=client, timing=replace(FAST, read_timeout=0.2))
    lost = server.fail("get", delay=1.0)
    try:
        assert len(driver.prepare(REF)) == 1
    finally:
        driver.close()
        client.close()
    assert lost.times == 0


class Timed(ClaimApi):
    """An API server that notes how long it is given to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        self.timeouts.append(timeout)
        return super().get_claim(namespace, name, timeout=timeout)


def test_requests_end_with_the_call_and_sooner_if_the_answer_is_known(tmp_path: Path) -> None:
    api = Timed()
    timing = replace(FAST, read_timeout=9.5, repeat_timeout=1.0)
    driver = Driver(tmp_path, api=api, timing=timing)
    ref = api.add("gpu-1")
    driver.prepare(ref, seconds=9.0)
    driver.prepare(ref, seconds=9.0)
    driver.prepare(api.add("gpu-2", uid="other", name="other"), seconds=60.0)
    rival = api.add("gpu-1", uid="rival", name="rival")
    with pytest.raises(ConflictError, match="is already allocated to different claim"):
        driver.prepare(rival, seconds=9.0)
    driver.close()
    first, again, other, own, of_rival = api.timeouts
    assert 4.0 < first <= 9.0
    assert (again, other) == (1.0, 9.5)
    assert 4.0 < own <= 9.0
    assert 4.0 < of_rival <= 9.0


def test_a_server_that_is_down_is_an_error_but_not_for_a_prepared_claim(
    server: ApiServer, driver: Driver
) -> None:
    answer = driver.prepare(REF)
    server.stop()
    assert driver.prepare(REF) == answer
    other = ClaimRef(uid=ClaimUid("other"), namespace="default", name="other")
    with pytest.raises(TransientError, match="the kubelet tries again"):
        driver.prepare(other, seconds=0.2)
    assert driver.reconciler(ReconcileTiming(grace=0.0)).compare() == {UID}
    driver.unprepare(REF)
    assert driver.left() == []


def test_a_claim_deleted_from_the_server_is_unprepared(server: ApiServer, driver: Driver) -> None:
    driver.prepare(REF)
    reconciler = driver.reconciler(ReconcileTiming(grace=0.0))
    assert not reconciler.compare()
    assert driver.left() != []
    server.delete_all("resourceclaims")
    assert not reconciler.compare()
    assert driver.left() == []
