"""Any order of calls, crashes, restarts and reboots: no GPU is given twice, nothing is leaked.

The model is a scheduler that gives a GPU to one claim at a time but may forget claims whose pods
still run (a forced deletion), and a kubelet that knows which claims it got an answer for.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import make
from claims_world import MPS, World
from dra_driver.claims.model import ClaimRef, ClaimUid
from dra_driver.claims.reconcile import Pace
from dra_driver.claims.record import RecordState
from dra_driver.errors import DriverError

GPUS = [make.gpu(minor) for minor in range(2)]
NAMES = st.sampled_from(["a", "b"])
STEPS = st.sampled_from(
    ["marked", "intended", "applied", "recorded", "specified", "undone", "unspecified", "forgotten"]
)
IN_MEMORY = Path("/dev/shm")


class Killed(BaseException):
    """Stands for kill -9: nothing in the driver catches it."""


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if IN_MEMORY.is_dir() else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.boot = 1
        self.count = 0
        self.die_at: str | None = None
        self.allocated: dict[str, tuple[ClaimRef, set[int]]] = {}
        self.running: dict[ClaimRef, set[int]] = {}
        self.known: set[ClaimRef] = set()
        self.world = World(self.root, *GPUS, boot_id="boot-1", step=self.step)

    def teardown(self) -> None:
        self.world.close()
        shutil.rmtree(self.root)

    def step(self, name: str) -> None:
        if name == self.die_at:
            self.die_at = None
            raise Killed

    def start(self) -> None:
        self.world.close()
        self.world = World(
            self.root, *GPUS, boot_id=f"boot-{self.boot}", api=self.world.api, step=self.step
        )

    @initialize()
    def begin(self) -> None:
        self.start()

    @rule(
        name=NAMES,
        gpus=st.sets(st.integers(0, len(GPUS) - 1), min_size=1),
        share=st.booleans(),
        die_at=st.none() | STEPS,
    )
    def new_pod(self, name: str, gpus: set[int], share: bool, die_at: str | None) -> None:
        """Allocate a claim and prepare it; whoever is in the way is deleted by force before."""
        for other, (_, held) in list(self.allocated.items()):
            if other == name or held & gpus:
                self.forget(other)
        self.count += 1
        ref = self.world.api.add(
            *(f"gpu-{minor}" for minor in sorted(gpus)),
            uid=ClaimUid(f"uid-{self.count}"),
            name=name,
            configs=[MPS] if share else [],
        )
        self.allocated[name] = (ref, gpus)
        self.prepare(name, die_at)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if name in self.allocated:
            del self.allocated[name]
            del self.world.api.claims["default", name]

    @rule(name=NAMES, die_at=st.none() | STEPS)
    def prepare(self, name: str, die_at: str | None) -> None:
        if name not in self.allocated:
            return
        ref, gpus = self.allocated[name]
        self.known.add(ref)
        self.die_at = die_at
        try:
            answer = self.world.prepare(ref, seconds=0.0)
        except Killed:
            self.start()
        except DriverError:
            pass
        else:
            assert {device.device_name for device in answer} == {f"gpu-{n}" for n in gpus}
            self.running[ref] = gpus
        self.die_at = None

    @precondition(lambda self: self.known)
    @rule(data=st.data(), die_at=st.none() | STEPS)
    def unprepare(self, data: st.DataObject, die_at: str | None) -> None:
        ref = data.draw(st.sampled_from(sorted(self.known, key=str)))
        self.running.pop(ref, None)  # its containers have ended
        self.die_at = die_at
        try:
            self.world.unprepare(ref)
        except Killed:
            self.start()
        else:
            self.known.discard(ref)
            assert self.world.prepared.records.read(ref.uid) is None
        self.die_at = None

    @rule()
    def restart(self) -> None:
        self.start()
        assert not self.world.reconciler(Pace()).mend()
        records = self.world.prepared.records
        for uid in records.uids():
            record = records.read(uid)
            assert record is not None
            assert record.boot_id != f"boot-{self.boot}" or record.state is RecordState.PREPARED

    @rule(specs_stay=st.booleans())
    def reboot(self, specs_stay: bool) -> None:
        self.boot += 1
        self.running.clear()
        shutil.rmtree(self.root / "hardware", ignore_errors=True)
        if not specs_stay:
            shutil.rmtree(self.root / "cdi", ignore_errors=True)
        self.restart()

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        given = [minor for gpus in self.running.values() for minor in gpus]
        assert len(given) == len(set(given))

    @invariant()
    def running_claims_have_their_record_and_spec(self) -> None:
        for ref, gpus in self.running.items():
            record = self.world.prepared.records.read(ref.uid)
            assert record is not None
            assert record.held_gpus == tuple(GPUS[minor].uuid for minor in sorted(gpus))
            assert sorted(self.world.nodes(ref)) == [f"/dev/nvidia{n}" for n in sorted(gpus)]

    @invariant()
    def what_is_set_on_a_gpu_belongs_to_a_record(self) -> None:
        for gpu in GPUS:
            uid = self.world.set_on(gpu.uuid)
            if uid is not None:
                record = self.world.prepared.records.read(ClaimUid(uid))
                assert record is not None
                assert gpu.uuid in record.held_gpus


class TestNode(Node.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
