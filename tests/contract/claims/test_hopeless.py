"""What can no longer succeed is said at once, and what may pass is waited for."""

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.devices.model import SickGpu
from dra_driver.errors import DeviceError
from dra_driver.host.ofd_lock import NamedLock
from dra_driver.mps.domain import DomainId, State, Status, encode
from dra_driver.mps.files import MpsFiles, write_file
from dra_driver.mps.requests import DomainRequests
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.steps import JoinDomain
from worlds.driver import Driver
from worlds.played import only

MPS = make.config(sharing={"strategy": "MPS"})
LOST = SickGpu(index=1, reason="the GPU has fallen off the bus", is_lost=True)
SICK = SickGpu(index=2, reason="NVML refused")
GRACE = 0.1
READY = 3.0
LONG = 3600.0
"""How long a call may take: a test that waited for its end would not pass."""


@pytest.fixture
def files(tmp_path: Path) -> MpsFiles:
    return MpsFiles(root=tmp_path / "mps")


@pytest.fixture
def sharing(tmp_path: Path, files: MpsFiles) -> Iterator[Driver]:
    """A node whose MPS supervisor is played by the test."""
    requests = DomainRequests(
        files.root, time.monotonic, lock=lambda _: nullcontext(), supervisor_grace=GRACE
    )
    mps = Mps(requests, time.monotonic, ready_seconds=READY)
    made = Driver(tmp_path, sharing=only(domains=mps, planners={JoinDomain.name: mps}))
    yield made
    requests.stop()
    made.close()


def refused(driver: Driver, ref: ClaimRef, error: type[Exception], match: str) -> float:
    """Prepare in vain; return how long that took, in seconds."""
    start = time.monotonic()
    with pytest.raises(error, match=match):
        driver.prepare(ref, seconds=LONG)
    return time.monotonic() - start


def test_a_claim_on_a_lost_gpu_is_refused_at_once(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.gpus.inventory = make.inventory(make.gpu(0), sick=(LOST,))
    refused(driver, ref, DeviceError, r'"gpu-1" is lost \(GPU 1: the GPU has fallen')


def test_a_gpu_that_may_be_the_sick_one_is_waited_for(driver: Driver) -> None:
    ref = driver.api.add("gpu-1")
    driver.gpus.inventory = make.inventory(make.gpu(0), sick=(LOST, SICK))
    threading.Timer(0.2, setattr, (driver.gpus, "inventory", make.inventory(make.gpu(1)))).start()
    assert len(driver.prepare(ref, seconds=LONG)) == 1


def test_a_node_that_never_had_a_supervisor_says_so_after_a_short_grace(sharing: Driver) -> None:
    ref = sharing.api.add("gpu-1", configs=[MPS])
    assert refused(sharing, ref, DeviceError, "MPS supervisor is not running") >= GRACE
    assert sharing.left() == []


def test_a_daemon_is_waited_for_no_longer_than_the_setting_says(
    sharing: Driver, files: MpsFiles
) -> None:
    ref = sharing.api.add("gpu-1", configs=[MPS])
    files.make_folders()
    lock = NamedLock(files.lock)
    assert lock.take("busy")
    assert refused(sharing, ref, DeviceError, "is not ready yet") >= READY
    lock.release()


def test_a_supervisor_that_is_being_replaced_is_waited_for(
    sharing: Driver, files: MpsFiles
) -> None:
    files.make_folders()
    former = NamedLock(files.lock)
    assert former.take("former")
    former.release()
    ref = sharing.api.add("gpu-1", configs=[MPS])
    successor = NamedLock(files.lock)

    def serve() -> None:
        """Come after more than the grace, and answer."""
        time.sleep(2 * GRACE)
        assert successor.take("successor")
        desired = DomainRequests(files.root, time.monotonic).desired(DomainId(ref.uid))
        assert desired is not None
        status = Status(
            id=desired.id, state=State.READY, supervisor="successor", generation=desired.generation
        )
        write_file(files.status(desired.id), encode(status), durable=False)

    thread = threading.Thread(target=serve)
    thread.start()
    assert len(sharing.prepare(ref, seconds=LONG)) == 1
    thread.join()
    successor.release()
