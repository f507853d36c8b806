"""Whatever a call waits for, it ends at its deadline, not before and not after, and says why.

Time passes only where the driver waits (tests/virtual_time.py).
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed.commands import wait_until

import make
from clock import Clock
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.prepare.preparer import PrepareTiming
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.errors import (
    DeviceError,
    DriverError,
    SilenceError,
    TransientError,
    UnavailableError,
)
from dra_driver.host.ofd_lock import NamedLock
from dra_driver.mps.domain import Domain, DomainDevice, DomainId, State, Status, encode
from dra_driver.mps.files import MpsFiles, write_file
from dra_driver.mps.requests import DomainRequests
from virtual_time import virtual_time
from worlds.configs import MPS
from worlds.driver import Driver

TIMING = PrepareTiming()
LATE = 0.1
"""Seconds that an API server gets at least, however late it is."""

seconds = st.floats(0.0, 60.0)
Obstacle = Callable[[Driver, Clock, ClaimRef], AbstractContextManager[None]]


@contextmanager
def silent_api(driver: Driver, clock: Clock, _: ClaimRef) -> Iterator[None]:
    """The API server takes all the time that it is given, and says nothing."""
    real = driver.api.get_claim

    def get_claim(namespace: str, name: str, *, timeout: float) -> dict[str, Any]:
        real(namespace, name, timeout=timeout)
        clock.now += timeout
        raise UnavailableError("the API server does not answer")

    driver.api.get_claim = get_claim  # type: ignore[method-assign]
    yield


@contextmanager
def busy_api(driver: Driver, _: Clock, __: ClaimRef) -> Iterator[None]:
    """The API server asks for time."""

    def refuse(_: str) -> None:
        raise UnavailableError("the API server is busy", retry_after=7.0)

    driver.api.trouble = refuse
    yield


@contextmanager
def other_call(driver: Driver, clock: Clock, ref: ClaimRef) -> Iterator[None]:
    """Another process of this driver works on the claim."""
    other = Driver(driver.root, api=driver.api)
    with closing(other), other.locks.claim(ref.uid, clock.now):
        yield


@contextmanager
def other_claims_call(driver: Driver, clock: Clock, _: ClaimRef) -> Iterator[None]:
    """Another process of this driver works on the GPU."""
    other = Driver(driver.root, api=driver.api)
    with closing(other), other.locks.gpus([make.gpu(1).uuid], clock.now):
        yield


@contextmanager
def claim_before(driver: Driver, _: Clock, __: ClaimRef) -> Iterator[None]:
    """A claim that is no more still has the GPU, until the kubelet unprepares it."""
    former = driver.api.add("gpu-1", uid="former", name="former")
    driver.preparer.prepare(former, deadline=1e9)
    driver.api.claims.pop(("default", "former"))
    yield


@contextmanager
def busy_gpu(driver: Driver, _: Clock, __: ClaimRef) -> Iterator[None]:
    driver.sharing.refuse_apply = TransientError("the GPU is busy")
    yield


@contextmanager
def busy_daemon(driver: Driver, _: Clock, __: ClaimRef) -> Iterator[None]:
    driver.sharing.refuse_uphold = TransientError("the daemon is busy")
    yield


OBSTACLES: dict[str, Obstacle] = {
    "the API server does not answer": silent_api,
    "the API server is busy": busy_api,
    "another call for claim UID uid-1 in another process": other_call,
    "another claim's call for GPU": other_claims_call,
    "still prepared for claim default/former": claim_before,
    "the GPU is busy": busy_gpu,
    "the daemon is busy": busy_daemon,
}
"""What keeps a Prepare waiting, by what it says then."""


@contextmanager
def driver_at(clock: Clock) -> Iterator[Driver]:
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), timing=TIMING, survives_reboot=True)
        try:
            yield driver
        finally:
            driver.close()


@pytest.mark.parametrize("said", OBSTACLES)
@settings(max_examples=10, deadline=None)
@given(seconds)
def test_a_prepare_ends_at_its_deadline_with_the_reason(said: str, patience: float) -> None:
    with virtual_time() as clock, driver_at(clock) as driver:
        ref = driver.api.add("gpu-1", uid="uid-1", name="one", configs=[MPS])
        with OBSTACLES[said](driver, clock, ref):
            began = clock.now
            with pytest.raises(DriverError, match=said):
                driver.preparer.prepare(ref, deadline=began + patience)
            waited = max(0.0, min(patience - TIMING.margin, TIMING.longest))
            assert waited - 1e-6 <= clock.now - began <= waited + LATE + 1e-6


@settings(max_examples=10, deadline=None)
@given(seconds)
def test_an_unprepare_ends_at_its_deadline_while_another_call_goes_on(patience: float) -> None:
    with virtual_time() as clock, driver_at(clock) as driver:
        ref = driver.api.add("gpu-1", uid="uid-1", name="one", configs=[MPS])
        driver.preparer.prepare(ref, deadline=1e9)
        with other_call(driver, clock, ref):
            began = clock.now
            with pytest.raises(DriverError, match="another call for claim UID uid-1 in another"):
                driver.preparer.unprepare(ref, deadline=began + patience)
            waited = max(0.0, min(patience - TIMING.margin, TIMING.longest))
            assert clock.now - began == pytest.approx(waited)


STATES = st.sampled_from([None, State.STARTING, State.STOPPING])


@settings(max_examples=20, deadline=None)
@given(seconds, st.booleans(), STATES)
def test_an_mps_daemon_is_waited_for_until_the_deadline(
    patience: float, is_supervised: bool, state: State | None
) -> None:
    """Or, where no supervisor ever was, for as long as one may take to come."""
    with tempfile.TemporaryDirectory() as folder, virtual_time() as clock:
        domain = Domain(id=DomainId("uid-1"), devices=(DomainDevice(uuid=make.gpu(1).uuid),))
        files, requests = MpsFiles(root=Path(folder)), DomainRequests(Path(folder), clock)
        requests.write_desired(domain)
        if state is not None:
            status = Status(id=domain.id, state=state, supervisor="one", reason="it takes long")
            write_file(files.status(domain.id), encode(status), durable=False)
        lock = NamedLock(files.lock)
        if is_supervised:
            assert lock.take("one")
        began = clock.now
        with pytest.raises(DeviceError) as caught:
            requests.wait_ready(domain, began + patience)
        assert clock.now - began == pytest.approx(patience if is_supervised else min(patience, 5.0))
        why = "it takes long" if state else "the MPS supervisor has not started on it"
        assert (why if is_supervised else "the MPS supervisor is not running") in str(caught.value)
        lock.release()
        requests.stop()


@settings(max_examples=10, deadline=None)
@given(st.floats(0.1, 60.0))
def test_an_nvml_call_that_hangs_is_given_up_on_when_its_time_is_over(longest: float) -> None:
    answers = threading.Event()
    with virtual_time() as clock:
        calls = NvmlCalls(clock=clock, answer_seconds=longest)
        began = clock.now
        with pytest.raises(SilenceError, match=f"NVML was given {longest:.0f} s"):
            calls.about("GPU-1", answers.wait)
        assert clock.now - began == pytest.approx(longest)
        with pytest.raises(SilenceError, match="has not answered since"):
            calls.about("GPU-1", answers.wait)
        assert clock.now - began == pytest.approx(longest), "the next one is refused at once"
        answers.set()
    wait_until(lambda: not calls.silent, "the answer", timeout=10, interval=0.001)
