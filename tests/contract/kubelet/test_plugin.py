"""The plugin over real gRPC on real unix sockets, asked as a kubelet asks."""

import errno
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import structlog
from testbed.commands import wait_until
from testbed.kubelet import ClaimName, KubeletClient

import make
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.errors import SetupError, TransientError
from dra_driver.kubelet.health_stream import HealthStream
from dra_driver.kubelet.liveness import Health
from dra_driver.kubelet.plugin import CLAIM_WORKERS, KubeletPlugin
from dra_driver.kubelet.rivals import FOLDER
from dra_driver.kubelet.service import ClaimCalls
from dra_driver.kubelet.sockets import SocketPaths, SocketServer, remove_dead_sockets, socket_paths
from dra_driver.ops.metrics import Metrics
from virtual_time import virtual_time

CLAIM = ClaimName(namespace="ns", name="one", uid="uid-1")
OTHER = ClaimName(namespace="ns", name="two", uid="uid-2")


class Claims:
    """Prepares at once, or does what the test put into `before`."""

    def __init__(self) -> None:
        self.before: Callable[[ClaimRef], None] = lambda _: None
        self.prepared: list[str] = []
        self.unprepared: list[str] = []

    def prepare(self, ref: ClaimRef, *, deadline: float) -> tuple[DeviceRecord, ...]:
        self.before(ref)
        self.prepared.append(ref.uid)
        return (
            DeviceRecord(
                name="gpu-0",
                device=make.device(make.gpu(0)),
                pool="node-1",
                request_names=("gpu",),
                cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-0",),
                share_id="s-1",
            ),
        )

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> None:
        self.before(ref)
        self.unprepared.append(ref.uid)


class AttachedHealth(HealthStream):
    """Does what a test wants while sockets are made."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def attach(self, server: grpc.Server) -> None:
        super().attach(server)
        self.meanwhile()


class Running:
    """A plugin with everything around it, on sockets below a short path."""

    def __init__(self, root: Path) -> None:
        self.claims = Claims()
        self.statuses: list[bool] = []
        self.paths: SocketPaths = socket_paths(plugins=root / "p", registrar=root / "r")
        self.calls = ClaimCalls(
            self.claims, Metrics(driver="d", node="n", version="1"), clock=lambda: 0.0
        )
        self.health = AttachedHealth(tuple)
        self.plugin = KubeletPlugin(
            self.calls,
            self.paths,
            self.health,
            on_status=self.statuses.append,
            check_seconds=0.05,
        )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.plugin.start()
    yield running
    running.plugin.stop(5)


@pytest.fixture
def kubelet(running: Running) -> Iterator[KubeletClient]:
    with KubeletClient(running.paths.registration.parent) as kubelet:
        yield kubelet


class Held:
    """Keeps calls about claims where they are, but those about `other`, until they are let go."""

    def __init__(self, running: Running, *, other: ClaimName | None = None) -> None:
        self.entered, self.freed = threading.Event(), threading.Event()
        self._other = other.uid if other else None
        running.claims.before = self._hold

    def _hold(self, ref: ClaimRef) -> None:
        self.entered.set()
        if ref.uid != self._other:
            self.freed.wait(60)

    @contextmanager
    def calls(self, call: Callable[[ClaimName], object], count: int) -> Iterator[None]:
        """Have the kubelet make a call for each of so many pods, side by side."""
        pods = [threading.Thread(target=call, args=(claim(n),)) for n in range(count)]
        for pod in pods:
            pod.start()
        try:
            yield
        finally:
            self.freed.set()
            for pod in pods:
                pod.join()


def claim(number: int) -> ClaimName:
    return ClaimName(namespace="ns", name=f"c{number}", uid=f"uid-{number}")


def eventually(condition: Callable[[], bool]) -> None:
    wait_until(condition, "the condition", timeout=30, interval=0.05)


def test_a_kubelet_learns_name_endpoint_and_versions(
    running: Running, kubelet: KubeletClient
) -> None:
    info = kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert info.endpoint == str(running.paths.service)
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    assert running.statuses == [True]


def test_a_refused_registration_is_answered_with_an_error_and_can_be_tried_again(
    running: Running, kubelet: KubeletClient
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.register(accept=False, reason="plugin validation failed")
    assert "plugin validation failed" in refused.value.details()
    assert kubelet.register().name == "gpu.nvidia.com"
    assert running.statuses == [False, True]


def test_prepare_answers_devices(kubelet: KubeletClient) -> None:
    kubelet.register()
    (device,) = kubelet.prepare(CLAIM)["uid-1"].devices
    assert list(device.request_names) == ["gpu"]
    assert (device.pool_name, device.device_name, device.share_id) == ("node-1", "gpu-0", "s-1")
    assert list(device.cdi_device_ids) == ["k8s.gpu.nvidia.com/claim=uid-1-gpu-0"]


def test_unprepare_answers_an_entry_for_each_claim(kubelet: KubeletClient) -> None:
    kubelet.register()
    answers = kubelet.unprepare(CLAIM, OTHER, CLAIM)
    assert {uid: entry.error for uid, entry in answers.items()} == {"uid-1": "", "uid-2": ""}


def test_a_cancelled_call_ends_in_peace_and_its_retry_is_answered(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    held = Held(running)
    with pytest.raises(grpc.RpcError) as late:
        kubelet.prepare(CLAIM, timeout=0.5)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert held.entered.wait(30)
    running.claims.before = lambda _: None
    # The first attempt still runs while the second one comes.
    assert len(kubelet.prepare(CLAIM)["uid-1"].devices) == 1
    held.freed.set()
    eventually(lambda: running.calls.running() == ())


def test_get_info_is_answered_while_every_claim_worker_is_busy(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    with Held(running).calls(kubelet.prepare, CLAIM_WORKERS + 8):
        eventually(lambda: len(running.calls.running()) == CLAIM_WORKERS)
        assert kubelet.register().name == "gpu.nvidia.com"


def alive(running: Running) -> bool:
    return Health(running.paths, running.plugin).fault("liveness") == ""


def test_waiting_prepares_starve_neither_an_unprepare_nor_the_probe(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    with Held(running, other=OTHER).calls(kubelet.prepare, 100):
        eventually(lambda: len(running.calls.running()) >= 32)
        assert alive(running)
        # This is what gives them their GPU.
        assert kubelet.unprepare(OTHER, timeout=10)[OTHER.uid].error == ""
    assert len(running.claims.prepared) == 100


def test_the_service_socket_listens_before_the_registration_socket_appears(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    assert kubelet.prepare() == {}
    assert running.paths.service.is_socket()


def test_sockets_are_for_root_alone(running: Running) -> None:
    for path in (running.paths.service, running.paths.registration):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_stopping_removes_both_sockets_and_nothing_else(running: Running) -> None:
    kept = running.paths.data_directory / "claims"
    kept.mkdir()
    assert running.plugin.stop(5) == ()
    assert list(running.paths.registration.parent.iterdir()) == []
    folder = running.paths.data_directory / FOLDER
    assert sorted(running.paths.data_directory.iterdir()) == [kept, folder]
    assert list(folder.iterdir()) == []


def test_stopping_lets_a_running_call_finish(running: Running, kubelet: KubeletClient) -> None:
    kubelet.register()
    held = Held(running)
    answers: list[object] = []
    pod = threading.Thread(target=lambda: answers.append(kubelet.prepare(CLAIM)))
    pod.start()
    assert held.entered.wait(30)
    stopped = threading.Thread(target=running.plugin.stop, args=(30,))
    stopped.start()
    eventually(lambda: "socket-watch" not in {one.name for one in threading.enumerate()})
    # A kubelet that sees this one go drops the calls it has under way.
    assert running.paths.registration.is_socket()
    held.freed.set()
    pod.join()
    stopped.join()
    assert len(answers) == 1
    assert not running.paths.registration.exists()


def test_calls_that_arrive_after_deregistration_are_served(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    stopped = threading.Thread(target=running.plugin.stop, args=(30,), kwargs={"delay": 1.5})
    stopped.start()
    eventually(lambda: not running.paths.registration.exists())
    for number in range(5):
        assert kubelet.prepare(claim(number))[f"uid-{number}"].error == ""
    stopped.join()
    assert not running.paths.service.exists()


def test_a_driver_that_no_kubelet_knows_stops_at_once(running: Running) -> None:
    before = time.monotonic()
    running.plugin.stop(5, delay=600)
    assert time.monotonic() - before < 60


def test_stopping_names_unfinished_claims(running: Running, kubelet: KubeletClient) -> None:
    kubelet.register()
    held = Held(running)

    def prepare() -> None:
        with pytest.raises(grpc.RpcError):
            kubelet.prepare(CLAIM)

    pod = threading.Thread(target=prepare)
    pod.start()
    assert held.entered.wait(30)
    with virtual_time() as clock:
        began = clock.now
        assert running.plugin.stop(30) == ("ns/one",)
        assert 30 <= clock.now - began < 35, "no longer than the grace that calls have"
    pod.join()  # first: a call that ends now would be answered still
    held.freed.set()
    eventually(lambda: running.calls.running() == ())


def test_a_stale_socket_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    running = Running(tmp_path)
    for path in (running.paths.service, running.paths.registration):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    running.plugin.start()
    with KubeletClient(running.paths.registration.parent) as kubelet:
        kubelet.register()
        assert kubelet.prepare() == {}
    running.plugin.stop(5)
    assert list(running.paths.registration.parent.iterdir()) == []


def test_dead_sockets_of_killed_pods_are_removed_and_live_ones_stay(tmp_path: Path) -> None:
    older = socket_paths(plugins=tmp_path, registrar=tmp_path / "r", pod_uid="old")
    living = socket_paths(plugins=tmp_path, registrar=tmp_path / "r", pod_uid="new")
    ours = socket_paths(plugins=tmp_path, registrar=tmp_path / "r", pod_uid="our")
    for path in (older.service, older.registration):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    foreign = ours.registration.with_name("other.example.com-reg.sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(foreign))
    neighbours = [
        SocketServer([path], (), name="living", workers=1)
        for path in (living.service, living.registration)
    ]
    for neighbour in neighbours:
        neighbour.start()
    assert remove_dead_sockets(ours) == (older.service, older.registration)
    for neighbour in neighbours:
        assert all(path.is_socket() for path in neighbour.paths)
        neighbour.stop(0).wait(5)
    assert foreign.is_socket()


def test_something_else_at_the_sockets_path_is_left_alone_and_named(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.paths.registration.parent.mkdir(parents=True)
    running.paths.registration.write_text("precious")
    with pytest.raises(SetupError, match="is in the way and is not a socket"):
        running.plugin.start()
    assert running.paths.registration.read_text() == "precious"
    assert not running.paths.service.exists()


def test_wiped_sockets_come_back_and_the_kubelet_can_register_again(
    running: Running, kubelet: KubeletClient, tmp_path: Path
) -> None:
    kubelet.register()
    # At once, so that nothing is made again below a folder that goes.
    running.paths.registration.parent.rename(tmp_path / "old registry")
    running.paths.data_directory.rename(tmp_path / "old data")
    eventually(running.paths.registration.is_socket)
    assert running.paths.service.is_socket()
    with KubeletClient(kubelet.registry) as again:
        again.register()
        assert again.prepare() == {}


def test_a_call_under_way_survives_the_loss_of_its_socket(
    running: Running, kubelet: KubeletClient
) -> None:
    kubelet.register()
    held = Held(running)
    answers: list[object] = []
    pod = threading.Thread(target=lambda: answers.append(kubelet.prepare(CLAIM)))
    pod.start()
    assert held.entered.wait(30)
    running.paths.service.unlink()
    eventually(running.paths.service.is_socket)
    held.freed.set()
    pod.join()
    assert len(answers) == 1


def test_a_socket_that_another_instance_took_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    older = SocketServer([path], (), name="older", workers=1)
    newer = SocketServer([path], (), name="newer", workers=1)
    older.start()
    newer.start()
    assert not older.is_missing()
    older.stop(0).wait(5)
    assert path.is_socket()
    newer.stop(0).wait(5)
    assert not path.exists()


def test_if_one_socket_fails_the_other_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (tmp_path / "dra.sock", tmp_path / "reg.sock")
    renamed = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target == paths[1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return renamed(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(TransientError, match=r"reg\.sock cannot be made: No space left"):
        SocketServer(paths, (), name="x", workers=1).start()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_cannot_be_remade_keeps_the_other(tmp_path: Path) -> None:
    service, registration = tmp_path / "dra.sock", tmp_path / "registry" / "reg.sock"
    server = SocketServer([service, registration], (), name="x", workers=1)
    server.start()
    registration.unlink()
    registration.parent.rmdir()
    registration.parent.touch()
    assert server.is_missing()
    with pytest.raises(SetupError, match=r"reg\.sock cannot be made"):
        server.renew(0)
    assert server.is_ours(service)
    registration.parent.unlink()
    server.renew(0)
    assert not server.is_missing()
    server.stop(0).wait(5)
    assert not service.exists()


def test_two_drivers_of_one_name_are_noticed_by_both(tmp_path: Path) -> None:
    older, newer = Running(tmp_path), Running(tmp_path)
    older.plugin.start()
    with structlog.testing.capture_logs() as lines:
        newer.plugin.start()
        events = ("socket of a running driver replaced", "socket taken over")
        eventually(lambda: {line["event"] for line in lines}.issuperset(events))
    assert all("NVIDIA's own" in line["advice"] for line in lines if line["event"] in events)
    older.plugin.stop(0)
    assert newer.paths.registration.is_socket()
    newer.plugin.stop(0)


@pytest.mark.parametrize("was_open", [True, False])
def test_no_sockets_stay_that_a_check_makes_meanwhile(tmp_path: Path, *, was_open: bool) -> None:
    running = Running(tmp_path)
    if was_open:
        running.plugin.start()
        running.plugin._watch.stop(30)
        running.paths.service.unlink()
    running.health.meanwhile = lambda: running.plugin.stop(0)
    with structlog.testing.capture_logs() as lines:
        running.plugin._look()
    assert lines[-1]["event"] == "sockets closed"
    assert list(running.paths.registration.parent.iterdir()) == []
    assert not running.paths.service.exists()
    assert list((running.paths.data_directory / FOLDER).iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = SocketServer([tmp_path / "file" / "dra.sock"], (), name="x", workers=1)
    with pytest.raises(SetupError, match=r"file/dra\.sock cannot be made"):
        server.start()
