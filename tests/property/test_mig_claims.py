"""Any order of claims on MIG devices, crashes and reboots: none is given twice, none is leaked.

The model is a scheduler that gives out places which the published counters allow, or takes them
back; the hardware is a simulated card, asked through the real NVML binding.
"""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.devices.device import Device, Mig, name_of, profile_of
from dra_driver.devices.mig.partitions import partitions
from dra_driver.slices import counters
from sampling import examples
from worlds.moments import KilledError
from worlds.node import Node

IN_MEMORY = Path("/dev/shm")
STEPS = st.sampled_from(
    [
        "marked",
        "intended",
        "made",
        "applied",
        "recorded",
        "described",
        "specified",
        "undone",
        "unspecified",
        "forgotten",
    ]
)


class Card(RuleBasedStateMachine):
    """One GPU and its claims. A claim's place is None for the whole GPU."""

    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.node = Node.create(self.root / "node")
        self.die_at: str | None = None
        self.count = 0
        self.allocated: dict[ClaimRef, Mig | None] = {}
        self.running: set[ClaimRef] = set()
        gpu = self.node.gpu()
        self.places = partitions(gpu)
        assert gpu.mig is not None
        self.everything = counters.whole(gpu.mig.profiles)
        self.node.restart(step=self.step)

    def teardown(self) -> None:
        for ref in list(self.allocated):
            self.node.driver.unprepare(ref)
        assert not self.node.driver.reconciler(ReconcileTiming()).mend()
        assert [name for name in self.node.left() if "/gpus/" not in name] == []
        self.node.close()
        shutil.rmtree(self.root)

    def step(self, name: str) -> None:
        if name == self.die_at:
            self.die_at = None
            raise KilledError

    def start(self) -> None:
        self.die_at = None
        self.node.restart(step=self.step)

    def fits(self, place: Mig | None) -> bool:
        """Tell whether the counters allow one more, as the scheduler reckons."""
        if place is None or None in self.allocated.values():
            return not self.allocated
        left = dict(self.everything)
        gpu = self.node.gpu()
        for one in (*self.allocated.values(), place):
            assert one is not None
            used = counters.used(profile_of(gpu, one), one.placement, self.everything)
            for counter, much in used.items():
                left[counter] -= much
        return min(left.values()) >= 0

    @rule(data=st.data(), die_at=st.none() | STEPS)
    def allocate(self, data: st.DataObject, die_at: str | None) -> None:
        """Give out a place that is free, and prepare the claim."""
        free = [place for place in (*self.places, None) if self.fits(place)]
        if not free:
            return
        place = data.draw(st.sampled_from(free))
        self.count += 1
        gpu = self.node.gpu()
        device = "gpu-0" if place is None else name_of(gpu, Device(base=place))
        ref = self.node.claim(device, name=f"c{self.count}")
        self.allocated[ref] = place
        self.prepare(ref, die_at)

    @precondition(lambda self: self.allocated)
    @rule(data=st.data(), die_at=st.none() | STEPS)
    def again(self, data: st.DataObject, die_at: str | None) -> None:
        """The kubelet repeats Prepare."""
        self.prepare(data.draw(st.sampled_from(sorted(self.allocated, key=str))), die_at)

    @precondition(lambda self: self.allocated)
    @rule(data=st.data(), die_at=st.none() | STEPS)
    def release(self, data: st.DataObject, die_at: str | None) -> None:
        """The pod ends; the scheduler gives the place away only when the kubelet is done."""
        ref = data.draw(st.sampled_from(sorted(self.allocated, key=str)))
        self.running.discard(ref)
        self.die_at = die_at
        try:
            self.node.driver.unprepare(ref)
        except KilledError:
            self.start()
            self.node.driver.unprepare(ref)
        self.die_at = None
        del self.allocated[ref]
        del self.node.driver.api.claims["default", ref.name]

    @rule()
    def restart(self) -> None:
        self.start()
        assert not self.node.driver.reconciler(ReconcileTiming()).mend()

    @rule()
    def reboot(self) -> None:
        self.running.clear()
        self.node.machine.reboot()
        self.restart()

    @invariant()
    def running_claims_have_their_mig_device_and_no_other_is_there(self) -> None:
        wanted = {
            (place.profile_id, place.placement.start)
            for ref, place in self.allocated.items()
            if ref in self.running and place is not None
        }
        found = [(mig.profile_id, mig.start) for mig in self.node.migs()]
        assert wanted <= set(found)
        slots = self.node.driver.claims.ownership.made().keys()
        assert {(slot.profile_id, slot.start) for slot in slots} >= set(found)

    @invariant()
    def nothing_overlaps(self) -> None:
        taken = [n for mig in self.node.migs() for n in range(mig.start, mig.start + mig.size)]
        assert len(taken) == len(set(taken))

    def prepare(self, ref: ClaimRef, die_at: str | None) -> None:
        self.die_at = die_at
        try:
            self.node.driver.prepare(ref)
        except KilledError:
            self.start()
        else:
            self.running.add(ref)
        self.die_at = None


class TestCard(Card.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
