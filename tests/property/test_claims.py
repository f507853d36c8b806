"""Any order of calls, crashes, restarts and reboots: no GPU is given twice, nothing is leaked.

At times two processes of the driver work on one directory, as in a rolling update. The model is a
scheduler that gives a GPU to one claim at a time but may forget claims whose pods still run (a
forced deletion), and a kubelet that knows which claims it got an answer for.
"""

import os
import shutil
import tempfile
from itertools import cycle
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import make
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.claims.state.ledger import Ledger
from dra_driver.errors import DeviceError, DriverError
from sampling import examples
from worlds.configs import MPS
from worlds.disk import Disk
from worlds.driver import Driver
from worlds.moments import KilledError
from worlds.ways import PREPARE, UNPREPARE

GPUS = [make.gpu(minor) for minor in range(2)]
NAMES = st.sampled_from(["a", "b"])
STEPS = st.sampled_from([*PREPARE, *UNPREPARE])
IN_MEMORY = Path("/dev/shm")


def has_pods(node: "Node") -> bool:
    """Whether the kubelet knows of claims; without any, the other rules come first."""
    return bool(node.known)


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.boot = 1
        self.count = 0
        self.die_at: str | None = None
        self.allocated: dict[str, tuple[ClaimRef, set[int]]] = {}
        self.running: dict[ClaimRef, set[int]] = {}
        self.known: dict[ClaimRef, set[int]] = {}
        self.ended: set[ClaimRef] = set()
        self.survives_reboot = False
        self.refuses = False
        self.disk = Disk(self.root / "plugin", self.root / "cdi")
        self.driver = Driver(self.root, *GPUS, boot_id="boot-1", step=self.step)
        self.beside: Driver | None = None

    def teardown(self) -> None:
        try:
            self.check_that_all_ends()
        finally:
            self.end_beside()
            self.driver.close()
            self.disk.close()
            shutil.rmtree(self.root)

    def check_that_all_ends(self) -> None:
        """When all pods have gone and the hardware is well, nothing is left."""
        self.hardware(refuses=False)
        for ref in {*self.known, *self.ended}:  # those a power cut may have brought back
            self.driver.unprepare(ref)
        assert not self.driver.reconciler(ReconcileTiming()).mend()
        assert self.driver.left() == []

    def step(self, name: str) -> None:
        if name == self.die_at:
            self.die_at = None
            raise KilledError

    def start(self) -> None:
        self.driver.close()
        self.driver = self.another()
        self.hardware(refuses=self.refuses)

    def another(self) -> Driver:
        driver = Driver(
            self.root,
            *GPUS,
            boot_id=f"boot-{self.boot}",
            api=self.driver.api,
            step=self.step,
            survives_reboot=self.survives_reboot,
        )
        driver.claims.ledger.holders_of(GPUS[0].uuid)  # from now on it has the records in memory
        return driver

    def record(self, uid: ClaimUid) -> ClaimRecord | None:
        """What the disk has of a claim; no driver reads it."""
        return Ledger(self.driver.plugin, boot_id=f"boot-{self.boot}").peek(uid)

    def end_beside(self) -> None:
        if self.beside is not None:
            self.beside.close()
            self.beside = None

    @rule()
    def the_other_answers(self) -> None:
        """Let the kubelet call the other process from now on; it starts if there is none."""
        former, self.driver = self.driver, self.beside or self.another()
        self.beside = former
        self.hardware(refuses=self.refuses)

    @initialize(survives_reboot=st.booleans())
    def begin(self, survives_reboot: bool) -> None:
        """Share by a setting of the hardware, or by something that lives by itself."""
        self.survives_reboot = survives_reboot
        self.end_beside()
        self.start()

    @precondition(has_pods)
    @rule(refuses=st.booleans())
    def hardware(self, refuses: bool) -> None:
        """Let the hardware refuse to take anything back, or not."""
        self.refuses = refuses
        for driver in filter(None, (self.driver, self.beside)):
            driver.sharing.refuse_undo = DeviceError("the GPU refused") if refuses else None

    @rule(
        name=NAMES,
        gpus=st.sets(st.integers(0, len(GPUS) - 1), min_size=1),
        share=st.booleans(),
        die_at=st.none() | STEPS,
    )
    def new_pod(self, name: str, gpus: set[int], share: bool, die_at: str | None) -> None:
        """Allocate a claim and prepare it; claims in the way are deleted by force before."""
        for other, (_, held) in list(self.allocated.items()):
            if other == name or held & gpus:
                self.forget(other)
        self.count += 1
        ref = self.driver.api.add(
            *(f"gpu-{minor}" for minor in sorted(gpus)),
            uid=ClaimUid(f"uid-{self.count}"),
            name=name,
            configs=[MPS] if share else [],
        )
        self.allocated[name] = (ref, gpus)
        self.prepare(name, die_at)

    @precondition(has_pods)
    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if name in self.allocated:
            del self.allocated[name]
            del self.driver.api.claims["default", name]

    @rule(name=NAMES, die_at=st.none() | STEPS)
    def prepare(self, name: str, die_at: str | None) -> None:
        if name not in self.allocated:
            return
        ref, gpus = self.allocated[name]
        others = {n for other, held in self.known.items() if other != ref for n in held}
        self.known[ref] = gpus
        self.die_at = die_at
        try:
            answer = self.driver.prepare(ref, seconds=0.0)
        except KilledError:
            self.start()
        except DriverError:
            # Nothing but another claim, or hardware, keeps a claim from its GPUs.
            assert self.refuses or others & gpus
        else:
            assert {device.name for device in answer} == {f"gpu-{n}" for n in gpus}
            self.running[ref] = gpus
        self.die_at = None

    @precondition(has_pods)
    @rule(data=st.data(), die_at=st.none() | STEPS)
    def unprepare(self, data: st.DataObject, die_at: str | None) -> None:
        ref = data.draw(st.sampled_from(sorted(self.known, key=str)))
        self.running.pop(ref, None)  # its containers have ended
        self.die_at = die_at
        try:
            self.driver.unprepare(ref)
        except KilledError:
            self.start()
        else:
            del self.known[ref]
            self.ended.add(ref)
            record = self.record(ref.uid)
            assert record is None or (record.state is RecordState.RELEASED and record.pending)
        self.die_at = None

    @precondition(has_pods)
    @rule()
    def restart(self) -> None:
        self.start()
        left = self.driver.reconciler(ReconcileTiming()).mend()
        records = self.driver.claims.ledger
        for uid in records.uids():
            record = records.read(uid)
            assert record is not None
            if record.pending:
                assert uid in left
            elif not (self.refuses and uid in left):
                assert record.boot_id != f"boot-{self.boot}" or record.state is RecordState.PREPARED

    @precondition(has_pods)
    @rule()
    def look_twice(self) -> None:
        """A look that finds what the last one left writes nothing."""
        self.driver.reconciler(ReconcileTiming()).mend()
        before = self.written()
        self.driver.reconciler(ReconcileTiming()).mend()
        assert self.written() == before

    def written(self) -> dict[str, tuple[int, ...]]:
        """All that is on disk, by what tells of any write."""
        found = {}
        for folder, _, names in os.walk(self.root):
            for path in (folder, *(f"{folder}/{name}" for name in names)):
                stat = os.lstat(path)
                found[path] = (stat.st_ino, stat.st_size, stat.st_mode, stat.st_mtime_ns)
        return found

    @precondition(lambda self: not self.survives_reboot and self.known)
    @rule(choices=st.lists(st.integers(0, 2), min_size=12, max_size=12))
    def power_cut(self, choices: list[int]) -> None:
        """Reboot with a disk that has what was synced, and perhaps the rest."""
        self.end_beside()
        chosen = cycle(choices)
        self.disk.cut_power(lambda ways: ways[next(chosen) % len(ways)])
        self.reboot(specs_stay=True)

    @precondition(has_pods)
    @rule(specs_stay=st.booleans())
    def reboot(self, specs_stay: bool) -> None:
        self.boot += 1
        self.running.clear()
        self.end_beside()
        if not self.survives_reboot:
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
            record = self.record(ref.uid)
            assert record is not None
            assert record.held_gpus == tuple(GPUS[minor].uuid for minor in sorted(gpus))
            assert sorted(self.driver.nodes(ref)) == [f"/dev/nvidia{n}" for n in sorted(gpus)]

    @invariant()
    def what_is_set_on_a_gpu_belongs_to_a_record(self) -> None:
        for gpu in GPUS:
            uid = self.driver.set_on(gpu.uuid)
            if uid is not None:
                record = self.record(ClaimUid(uid))
                assert record is not None
                assert gpu.uuid in record.touched_gpus

    @invariant()
    def nobody_has_a_gpu_on_which_another_claims_sharing_lives(self) -> None:
        for ref, gpus in self.running.items():
            for minor in gpus:
                uid = self.driver.set_on(GPUS[minor].uuid)
                assert uid in (None, ref.uid) or not self.survives_reboot


class TestNode(Node.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
