"""Any order of allocations, calls, deletions, restarts, reboots and changes of the share config.

No claim that was allocated is refused for its division, tenants of a device are never of two
divisions, and what is wanted comes into force once nobody has been allocated anything.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.devices import RecordedShare
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.shares import ConsumableSlot, Division, ShareSlot
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable, ConsumableMode
from resource_nvidia_com.device_plugin import SharedBy
from worlds.divided_node import SMALL, DividedNode, config

CONFIGS = st.sampled_from(
    [
        config(0),
        config(2),
        config(3),
        config(2, SharedBy.MPS),
        config(2, SharedBy.MPS, combines=True),
        config(2, name=SMALL),
        config(3, SharedBy.MPS, name=SMALL),
    ]
)
IN_MEMORY = Path("/dev/shm")
DURING = st.sampled_from(["nothing", "prepare", "change", "allocate"])


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.count = 0
        self.allocated: dict[str, tuple[ClaimRef, Division | None]] = {}
        self.prepared: set[str] = set()
        self.known: set[str] = set()

    @initialize(
        first=CONFIGS,
        with_counters=st.booleans(),
        consumable=st.sampled_from([NO_CONSUMABLES, Consumable(mode=ConsumableMode.UNLIMITED)]),
    )
    def begin(self, first: Any, with_counters: bool, consumable: Consumable) -> None:
        self.node = DividedNode(
            self.root, first, with_counters=with_counters, consumable=consumable
        )

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.end()
            self.node.driver.close()  # type: ignore[union-attr]
        shutil.rmtree(self.root)

    def end(self) -> None:
        """Once nobody has anything, what is wanted is in force, and all of it is offered."""
        for name in list(self.allocated):
            self.delete(name)
        for name in self.known:
            self.unprepare(name)
        self.node.reshare()
        self.node.reshare()
        assert self.node.in_force() == self.node.shares.wanted()
        assert self.node.divisions.changes() == ()
        assert {str(self.node.published_now.withheld)} == {"()"}

    @rule(
        number=st.integers(0, 100),
        in_flight=st.booleans(),
    )
    def allocate(self, number: int, in_flight: bool) -> None:
        """Let the scheduler allocate something that is published."""
        names = self.node.published()
        if not names:
            return
        device = names[number % len(names)]
        division = self.node.division_of(device)
        self.count += 1
        name = f"c{self.count}"
        ref = self.node.allocate(device, name, in_flight=in_flight)
        if ref is not None:
            self.allocated[name] = (ref, division)

    @rule()
    def land(self) -> None:
        self.node.land()

    @rule(number=st.integers(0, 100))
    def prepare(self, number: int) -> None:
        """Let the kubelet prepare a claim that the API server knows of."""
        stored = [name for name in self.allocated if name not in self.node.in_flight]
        if not stored:
            return
        name = stored[number % len(stored)]
        ref, division = self.allocated[name]
        self.known.add(name)
        self.node.driver.prepare(ref)  # type: ignore[union-attr]
        self.prepared.add(name)
        record = self.node.driver.claims.records.read(ref.uid)  # type: ignore[union-attr]
        assert record is not None
        for entry in record.devices:
            slot = entry.device.part.share
            assert (slot.division if isinstance(slot, ShareSlot) else None) == division

    @rule(number=st.integers(0, 100))
    def end_pod(self, number: int) -> None:
        """Let the kubelet unprepare a claim; its allocation stays for a while."""
        if self.known:
            self.unprepare(sorted(self.known)[number % len(self.known)])

    def unprepare(self, name: str) -> None:
        ref = ClaimRef(uid=f"uid-{name}", namespace="default", name=name)  # type: ignore[arg-type]
        self.node.driver.unprepare(ref)  # type: ignore[union-attr]
        self.prepared.discard(name)

    @rule(number=st.integers(0, 100))
    def delete_one(self, number: int) -> None:
        if self.allocated:
            self.delete(list(self.allocated)[number % len(self.allocated)])

    def delete(self, name: str) -> None:
        """Delete a claim, prepared or not: the kubelet ends its containers before."""
        if name in self.prepared:
            self.unprepare(name)
        ref, _ = self.allocated.pop(name)
        self.node.delete(ref)

    @rule(wanted=CONFIGS)
    def change(self, wanted: Any) -> None:
        self.node.set(wanted)

    @rule(number=st.integers(0, 100), during=DURING, wanted=CONFIGS)
    def reshare(self, number: int, during: str, wanted: Any) -> None:
        """Let the driver's thread work, while something happens as it lists claims."""
        acts = {
            "nothing": lambda: None,
            "prepare": lambda: self.prepare(number),
            "change": lambda: self.change(wanted),
            "allocate": lambda: self.allocate(number, in_flight=False),
        }
        self.node.on_list = acts[during]
        self.node.reshare()
        self.node.on_list = lambda: None

    @rule(number=st.integers(0, 100), in_flight=st.booleans(), wanted=CONFIGS)
    def change_before_prepare(self, number: int, in_flight: bool, wanted: Any) -> None:
        """Change the share config between an allocation and the kubelet's call."""
        self.allocate(number, in_flight)
        self.change(wanted)
        self.node.reshare()
        self.prepare(len(self.allocated) - 1)

    @rule()
    def restart(self) -> None:
        self.node.start()

    @rule()
    def reboot(self) -> None:
        """Restart the node: pods stay, and the kubelet prepares their claims again."""
        self.node.reboot()
        self.node.driver.reconciler(ReconcileTiming()).mend()  # type: ignore[union-attr]
        for name in sorted(self.prepared):
            self.node.driver.prepare(self.allocated[name][0])  # type: ignore[union-attr]

    @invariant()
    def tenants_are_of_one_division(self) -> None:
        if not hasattr(self, "node"):
            return
        found: dict[GpuPart, set[object]] = {}
        for record in self.node.driver.claims.records.readable():  # type: ignore[union-attr]
            if record.state is RecordState.RELEASED:
                continue
            for entry in record.devices:
                device = entry.device
                division: object = None
                if isinstance(device, RecordedShare):
                    slot = device.slot
                    division = "consumed" if isinstance(slot, ConsumableSlot) else slot.division
                found.setdefault(device.part.whole, set()).add(division)
        assert all(len(divisions) == 1 for divisions in found.values()), found


class TestNode(Node.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
