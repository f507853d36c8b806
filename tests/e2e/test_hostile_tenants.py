"""A root container with an MPS claim attacks all that it can reach; its neighbours notice nothing.

The attacks are those of testbed/attacks.py. What came of them is looked at from outside.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testbed.attackers import attack, attackers_pod, python
from testbed.commands import TestbedError, wait_until
from testbed.driver import DriverProcess
from testbed.node import GpuNode

from dra_driver.mps.supervisor.cgroup import GROUP
from e2e.scene import Scene
from e2e.sharing import CGROUPS, MEMORY, PERCENTAGE, Shared, mps_limits, remove_groups, time_slicing

pytestmark = pytest.mark.e2e

MIB = 1024**2
MOST = {"run": MIB, "log": 64 * MIB, "shm": 64 * MIB}
"""How much each of a domain's folders may hold; that of shm is set here."""


@pytest.fixture
def supervisor(mps_node: GpuNode) -> Iterator[DriverProcess]:
    """The supervisor, with the host's control groups as it has them in its pod."""
    supervisor, env = mps_node.supervisor, mps_node.supervisor.env
    supervisor.stop()
    supervisor.env = env | {
        "CGROUP_ROOT": str(CGROUPS),
        "SHM_SIZE": f"{MOST['shm']}",
        "CHECK_INTERVAL": "1",
    }
    supervisor.start()
    yield supervisor
    supervisor.stop()
    supervisor.env = env
    supervisor.start()
    remove_groups()


@dataclass(kw_only=True)
class Street:
    """A hostile tenant and its neighbours on one node, and how they were before it did anything."""

    scene: Scene
    hostile: Shared
    attacker: str
    mps: Shared
    turns: Shared
    pods: tuple[str, str]
    before: dict[str, object] = field(default_factory=dict)
    disk: int = 0

    def attack(self, name: str, *words: str) -> object:
        """Make an attack from inside; return what it says to have achieved."""
        said = self.scene.run_in(self.attacker, *attack(name, *words))
        return json.loads(said)

    def facts(self) -> dict[str, object]:
        """What no attack may change."""
        scene, driver, supervisor = self.scene, self.scene.node.driver, self.scene.node.supervisor
        return {
            "containers": scene.container_ids(self.attacker, *self.pods),
            "daemon": self.mps.daemon(),
            "limits": (self.mps.ask(PERCENTAGE), self.mps.ask(f"{MEMORY} 0")),
            "gpus": scene.node.machine.settings(),
            "running": {one.pid: one.running() for one in (driver, supervisor)},
            "tracebacks": sum("Traceback" in one.log.read_text() for one in (driver, supervisor)),
            "errors": [
                line
                for one in (driver, supervisor)
                for line in one.events()
                if line["level"] == "error" and line.get("domain") != self.hostile.uid
            ],
        }

    def remember(self) -> None:
        """Keep how everything is before the attack."""
        self.before, self.disk = self.facts(), used(self.scene.node.place.plugins)

    def check(self) -> None:
        """Fail unless everybody but the hostile tenant is as before, and it is where it was."""
        assert self.facts() == self.before
        os.kill(self.mps.daemon(), 0)
        for process in tenants_processes(self.container_id):
            assert self.container_id in (process / "cgroup").read_text(), process
        for pid in grouped():
            assert (Path("/proc") / str(pid) / "ns/pid").readlink() == own_pids(), pid
        assert self.mps.daemon() in grouped()
        assert used(self.scene.node.place.plugins) - self.disk < MIB
        folder = self.scene.node.place.mps / "domains" / self.hostile.uid
        for name, most in MOST.items():
            assert (folder / name).is_mount()
            size = os.statvfs(folder / name)
            assert size.f_blocks * size.f_frsize <= most, name

    @property
    def container_id(self) -> str:
        """The id of the hostile container, which is in the name of its control group."""
        (found,) = self.scene.container_ids(self.attacker).values()
        return found.partition("//")[2].partition("#")[0]


@pytest.fixture
def street(supervisor: DriverProcess, scene: Scene) -> Street:
    """All pods run, and what the daemons listen with is up."""
    assert supervisor.running()
    hostile = Shared.make(scene, "hostile", gpu=mps_limits())
    mps = Shared.make(scene, "mps", gpu=mps_limits(20, "5Gi"))
    turns = Shared.make(scene, "turns", gpu=time_slicing("Long"))
    attacker = hostile.pod("attacker", spec=attackers_pod("shared"))
    pods = (mps.pod("client", one="gpu", other="gpu"), turns.pod("turner"))
    scene.running(attacker, *pods, timeout=120)
    street = Street(
        scene=scene, hostile=hostile, attacker=attacker, mps=mps, turns=turns, pods=pods
    )
    street.remember()
    return street


def test_a_forged_daemon_is_ignored_when_a_daemon_dies(street: Street) -> None:
    forgers = forge(street, street.hostile)
    os.kill(street.hostile.daemon(), signal.SIGKILL)
    street.hostile.ready_again(deaths=1)
    assert street.hostile.ask(PERCENTAGE) == "50.0"
    assert street.hostile.daemon() not in forgers
    assert all(map(runs, forgers))
    street.check()


def test_a_forged_daemon_is_ignored_by_the_next_supervisor(
    street: Street, supervisor: DriverProcess
) -> None:
    forgers = forge(street, street.mps)
    hostile = street.hostile.daemon()
    folder = street.scene.node.place.mps / "domains"
    supervisor.kill()
    for domain in (street.mps.uid, street.hostile.uid):
        (folder / domain / "record.json").write_bytes(b"damaged")
    supervisor.start()
    supervisor.wait_log("mps supervisor started")
    for shared in (street.mps, street.hostile):
        wait_until(
            lambda domain=shared.uid: [
                line for line in supervisor.events("mps domain ready") if line["domain"] == domain
            ],
            f"{shared.claim} to be ready again",
            timeout=120,
        )
    assert street.hostile.daemon() == hostile
    assert all(map(runs, forgers))
    street.before["running"] = street.facts()["running"]
    street.check()


def test_its_links_mislead_nobody(street: Street, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    folder = street.scene.node.place.mps / "domains" / street.mps.uid
    own = folder / "run/own"
    targets = (kept, tmp_path, own / "control_privileged", own, folder / "record.json")
    put = street.attack("links", *map(str, targets))
    assert isinstance(put, int)
    assert put > 20
    os.kill(street.hostile.daemon(), signal.SIGKILL)
    street.hostile.ready_again(deaths=1)
    street.check()
    street.scene.delete(street.attacker)
    assert kept.read_text() == "kept"
    assert street.mps.daemon() == street.before["daemon"]
    assert street.mps.ask(PERCENTAGE) == "20.0"


@pytest.mark.parametrize("attacks", [("fill",), ("garbage", "mute", "clutter")])
def test_it_can_fill_only_small_file_systems_of_its_own(
    street: Street, attacks: tuple[str, ...]
) -> None:
    took = [street.attack(name) for name in attacks][-1]
    assert isinstance(took, dict)
    assert took["MiB"] <= MOST["shm"] / MIB
    # Its daemon may need a while for all that noise, and may die of it: it serves this claim alone.
    wait_until(
        lambda: street.hostile.status()[0]["mpsDomain"]["state"] == "ready",
        "its own daemon to serve again",
        timeout=60,
    )
    street.check()
    mine, place = street.hostile.uid, street.scene.node.place
    street.scene.delete(street.attacker)
    # A daemon that is still busy is killed, and what ends late is taken back by itself.
    wait_until(lambda: mine not in "".join(place.left_over()), "nothing to be left", timeout=60)


def test_it_reaches_no_daemon_by_sockets_commands_or_signals(street: Street) -> None:
    daemon = street.hostile.daemon()
    assert street.attack("places") == []  # nothing can be put where the sockets are
    commands = ("quit", "quit -t 1", "set_default_active_thread_percentage 100", "get_server_list")
    answers = street.attack("order", *commands)
    assert isinstance(answers, list)
    assert any("Not enough privilege" in answer for answer in answers), answers
    forge(street, street.hostile)
    assert street.attack("kill")  # what is in its container
    assert street.hostile.daemon() == daemon
    street.check()
    wait_until(lambda: limit(street.hostile) == "50.0", "its limit to be put back", timeout=60)


def limit(shared: Shared) -> str:
    """The limit that a claim's daemon has; nothing while it answers somebody else."""
    with suppress(TestbedError):
        return shared.ask(PERCENTAGE)
    return ""


def forge(street: Street, of: Shared) -> list[int]:
    """Let the tenant start two false daemons of a claim's domain; return their PIDs."""
    daemon = of.daemon()
    words = Path(f"/proc/{daemon}/environ").read_text().split("\0")
    # It cannot read these, the token least of all; all but the token could be guessed.
    known = [word for word in words if word.startswith("DRA_DRIVER_MPS_") and "TOKEN" not in word]
    assert len(known) == 2
    running = street.attack("forge", *known, "DRA_DRIVER_MPS_TOKEN=guessed")
    assert running == ["nvidia-cuda-mps-control", python()]
    found = [
        int(process.name)
        for process in tenants_processes(street.container_id)
        if (process / "comm").read_bytes().startswith(b"nvidia-cuda-mps")
    ]
    assert len(found) == 2
    return found


def own_pids() -> Path:
    return Path("/proc/self/ns/pid").readlink()


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").exists()


def grouped() -> list[int]:
    """The processes in the daemons' control group."""
    files = (*CGROUPS.glob(f"{GROUP}/cgroup.procs"), *CGROUPS.glob(f"*/{GROUP}/cgroup.procs"))
    return sorted({int(pid) for file in files for pid in file.read_text().split()})


def tenants_processes(container_id: str) -> list[Path]:
    """The processes in the PID namespace of a container, wherever their control group is."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    inside = {
        pids
        for path in processes
        if container_id in read(path / "cgroup") and (pids := namespace(path)) is not None
    } - {own_pids()}
    assert len(inside) == 1, inside
    return [path for path in processes if namespace(path) in inside]


def namespace(process: Path) -> Path | None:
    try:
        return (process / "ns/pid").readlink()
    except OSError:
        return None


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def used(folder: Path) -> int:
    """How many bytes a folder takes on its own disk, without what is mounted below it."""
    here, total = folder.stat().st_dev, 0
    for top, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if (Path(top) / one).lstat().st_dev == here]
        total += sum((Path(top) / file).lstat().st_blocks * 512 for file in files)
    return total
