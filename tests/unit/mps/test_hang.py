"""When a server is probed, what counts as a hang, and that everything else does not."""

from dataclasses import dataclass, field

import pytest

from dra_driver.errors import DeviceError
from dra_driver.mps.daemon.health import HangWatch, ServerState, WorkerTiming
from dra_driver.mps.daemon.probe import Outcome, Place, Server, place_in
from dra_driver.mps.domain import Daemon, Domain, DomainDevice, DomainId

INTERVAL, LIMIT, GAP, AGAIN = 600.0, 30.0, 60.0, 5.0
PID = 41
UUIDS = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")
DOMAIN = Domain(id=DomainId("shared_one"), devices=tuple(DomainDevice(uuid=uuid) for uuid in UUIDS))


@dataclass
class Probe:
    pid: int
    ordinal: int
    descriptor: int = 99
    seconds_left: float = LIMIT
    said: str = "asking"
    outcome: Outcome | None = None
    gone: bool = False
    given_up: bool = False

    def look(self) -> Outcome | None:
        return self.outcome

    def is_gone(self) -> bool:
        return self.gone

    def give_up(self, seconds: float = 0.0) -> None:
        assert seconds >= 0
        self.given_up = True


@dataclass
class World:
    """A daemon with one server, and the probes that are started of it."""

    for_all: bool = True
    interval: float = INTERVAL
    now: float = 1000.0
    status: str = "ACTIVE"
    server: int = PID
    clients: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    probes: list[Probe] = field(default_factory=list)
    place: Place = Place.UNKNOWN
    refuses: bool = False
    others: tuple[ServerState, ...] = ()

    def __post_init__(self) -> None:
        timing = WorkerTiming(
            probe_interval=self.interval,
            probe_timeout=LIMIT,
            check_interval=GAP,
            unhealthy_interval=AGAIN,
        )
        self.watch = HangWatch(
            self, self.identify, timing, lambda: self.now, process_at=self.process
        )

    def start(self, domain: Domain, server: Server, ordinal: int) -> Probe:
        assert domain is DOMAIN
        assert server.process.pid == self.server
        if self.refuses:
            raise DeviceError("no libcuda")
        self.probes.append(Probe(pid=500 + len(self.probes), ordinal=ordinal))
        return self.probes[-1]

    def place_of(self, pid: int) -> Place:
        assert pid == self.probes[-1].pid
        return self.place

    def identify(self, pid: int) -> Server | None:
        process = Daemon(pid=pid, start_ticks=pid)
        return Server(process=process, user=1000, group=1000, for_all=self.for_all)

    def process(self, pid: int) -> Daemon | None:
        return None if pid in self.dead else Daemon(pid=pid, start_ticks=1)

    def look(self) -> str:
        self.watch.turn()
        running = {probe.pid for probe in self.probes if not probe.gone}
        clients = frozenset(self.clients | running)
        state = ServerState(pid=self.server, status=self.status, clients=clients)
        return self.watch.look(DOMAIN, (state, *self.others))

    def suspect(self) -> None:
        """Let a client end, and a probe be started for it."""
        self.clients = {7, 8}
        self.look()
        self.clients = {8}
        self.now += GAP
        self.look()

    def end(self, outcome: Outcome) -> str:
        """Let the probe that runs end so."""
        probe = self.probes[-1]
        assert not probe.gone
        probe.outcome, probe.gone = outcome, True
        return self.look()

    def again(self) -> None:
        self.now += AGAIN
        self.look()


def test_a_server_without_clients_is_never_probed() -> None:
    world = World()
    world.look()
    world.now += 100 * INTERVAL
    world.look()
    assert world.probes == []
    assert world.watch.descriptor is None


def test_a_server_with_clients_is_probed_once_in_an_interval() -> None:
    world = World(clients={7})
    world.look()
    world.now += INTERVAL - 1
    world.look()
    assert world.probes == []
    world.now += 1
    world.look()
    assert len(world.probes) == 1
    assert world.watch.seconds == LIMIT
    assert world.watch.descriptor == world.probes[0].descriptor
    assert world.end(Outcome.WELL) == ""
    world.now += INTERVAL - 1
    world.look()
    assert len(world.probes) == 1
    world.now += 1
    world.look()
    assert len(world.probes) == 2


def test_a_client_that_has_ended_has_its_server_probed_at_once_also_if_it_was_the_last() -> None:
    world = World(clients={7})
    world.look()
    world.clients = set()
    world.look()
    assert len(world.probes) == 1


def test_a_dead_client_that_stays_on_the_list_is_a_reason_once() -> None:
    world = World(clients={7})
    world.look()
    world.dead = {7}
    world.look()
    assert len(world.probes) == 1
    world.end(Outcome.WELL)
    world.now += GAP
    world.look()
    assert len(world.probes) == 1


def test_clients_that_come_and_go_have_a_server_probed_only_so_often() -> None:
    world = World(clients={7})
    world.look()
    world.clients = {8}
    world.look()
    world.end(Outcome.WELL)
    world.clients = {9}
    world.look()
    assert len(world.probes) == 1
    world.now += GAP
    world.look()
    assert len(world.probes) == 2


def test_the_probe_itself_is_no_client_that_has_ended() -> None:
    world = World(clients={7})
    world.look()
    world.now += INTERVAL
    world.look()
    world.look()
    world.end(Outcome.WELL)
    world.now += GAP
    world.look()
    assert len(world.probes) == 1


def test_an_interval_of_zero_switches_probes_off() -> None:
    world = World(interval=0.0)
    world.suspect()
    assert world.probes == []
    assert not world.watch.is_on


def test_two_probes_in_a_row_without_an_answer_are_a_hang_and_one_answer_ends_it() -> None:
    world = World()
    world.suspect()
    assert world.end(Outcome.SILENCE) == ""
    assert world.watch.is_in_doubt
    assert len(world.probes) == 1
    world.again()
    assert len(world.probes) == 2
    said = world.end(Outcome.SILENCE)
    assert said.startswith(f"the MPS server (PID {PID}) hangs: 2 probes in a row")
    assert said.endswith("restart the pods that use it")
    world.again()
    assert world.look() == said
    assert world.end(Outcome.WELL) == ""
    assert not world.watch.is_in_doubt


@pytest.mark.parametrize("between", [Outcome.WELL, Outcome.REFUSED])
def test_silences_with_an_answer_between_them_are_no_hang(between: Outcome) -> None:
    world = World()
    world.suspect()
    for outcome in (Outcome.SILENCE, between):
        assert world.end(outcome) == ""
        world.again()
    world.clients = set()
    world.now += GAP
    world.look()
    assert world.end(Outcome.SILENCE) == ""


def test_answers_that_are_errors_are_never_a_hang() -> None:
    world = World(clients={7})
    world.look()
    for _ in range(5):
        world.now += INTERVAL
        world.look()
        assert world.end(Outcome.REFUSED) == ""
    assert len(world.probes) == 5


def test_a_probe_that_cannot_be_started_is_no_hang_and_is_tried_again_only_later() -> None:
    world = World(refuses=True)
    world.suspect()
    assert world.look() == ""
    world.refuses = False
    world.look()
    assert world.probes == []
    world.now += INTERVAL
    world.look()
    assert len(world.probes) == 1


@pytest.mark.parametrize(
    ("for_all", "place", "hangs"),
    [
        (True, Place.UNKNOWN, True),
        (True, Place.SERVER, True),
        (True, Place.QUEUE, False),
        (False, Place.UNKNOWN, False),
        (False, Place.QUEUE, False),
        (False, Place.SERVER, True),
    ],
)
def test_a_probe_that_may_wait_for_clients_of_another_user_says_nothing(
    for_all: bool, place: Place, hangs: bool
) -> None:
    world = World(for_all=for_all, place=place)
    world.suspect()
    world.end(Outcome.SILENCE)
    if not hangs:
        assert not world.watch.is_in_doubt
        return
    world.again()
    assert world.end(Outcome.SILENCE) != ""


def test_a_probe_of_a_server_that_has_been_replaced_says_nothing() -> None:
    world = World()
    world.suspect()
    world.server = PID + 1
    assert world.end(Outcome.SILENCE) == ""
    assert not world.watch.is_in_doubt


@pytest.mark.parametrize("status", ["INITIALIZING", "FAULT", ""])
def test_a_server_that_takes_no_clients_is_not_probed_nor_judged(status: str) -> None:
    world = World()
    world.suspect()
    world.status = status
    assert world.end(Outcome.SILENCE) == ""
    world.now += INTERVAL
    world.clients = {9}
    assert world.look() == ""
    assert len(world.probes) == 1


def test_with_two_servers_none_is_probed() -> None:
    world = World(others=(ServerState(pid=PID + 1, status="ACTIVE"),))
    world.suspect()
    assert world.probes == []


def test_no_probe_is_started_while_one_that_was_killed_has_not_ended() -> None:
    world = World()
    world.suspect()
    first = world.probes[0]
    first.outcome = Outcome.SILENCE
    world.look()
    for _ in range(3):
        world.now += 10 * INTERVAL
        assert world.look() == ""
    assert world.probes == [first]
    assert world.watch.seconds is None
    first.gone = True
    world.look()
    assert len(world.probes) == 2


def test_a_daemon_that_is_given_up_takes_its_probe_with_it_and_what_was_known() -> None:
    world = World()
    world.suspect()
    world.end(Outcome.SILENCE)
    world.again()
    world.watch.drop()
    assert world.probes[1].given_up
    assert not world.watch.is_in_doubt
    world.now += 10 * INTERVAL
    world.look()
    assert len(world.probes) == 2  # the second has not ended


def test_each_device_has_its_turn_and_a_second_probe_is_of_the_same_one() -> None:
    world = World(clients={7})
    world.look()
    for outcome in (Outcome.WELL, Outcome.WELL, Outcome.SILENCE, Outcome.WELL):
        world.now += INTERVAL
        world.look()
        world.end(outcome)
    assert [probe.ordinal for probe in world.probes] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("log", "place"),
    [
        (b"", Place.UNKNOWN),
        (b"NEW CLIENT 77 from user 0: Server already exists\n", Place.UNKNOWN),
        (b"NEW CLIENT 7 from user 0: Server already exists\n", Place.SERVER),
        (
            b"NEW CLIENT 7 from user 1000: Server is not ready, push client to pending list\n",
            Place.QUEUE,
        ),
        (
            b"""[x] NEW CLIENT 7 from user 0: Server already exists
[y] NEW CLIENT 7 from user 0: Server is not ready, push client to pending list
""",
            Place.QUEUE,
        ),
        (b"NEW CLIENT 7 from user 0: \xff\xfe\n", Place.UNKNOWN),
    ],
)
def test_the_daemons_log_says_where_a_client_waits(log: bytes, place: Place) -> None:
    assert place_in(log, 7) is place
