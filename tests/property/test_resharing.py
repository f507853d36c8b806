"""Any order of allocations, calls, deletions, restarts, reboots and changes of the share config.

No device is given below a claim that is prepared with it, what a claim is prepared with does not
change, a claim is refused only where a change came between, and what is wanted holds once no claim
is prepared.
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
from dra_driver.claims.model.record import RecordState
from dra_driver.claims.reconcile.orphans import ReconcileTiming
from dra_driver.devices.device import Device, overlap
from dra_driver.errors import ConflictError, DeviceError
from dra_driver.slices.consumable import NO_CONSUMABLES, Consumable, ConsumableMode
from resource_nvidia_com.device_plugin import SharedBy
from sampling import examples
from worlds.divided_node import SMALL, DividedNode, config

CONFIGS = st.sampled_from(
    [
        config(0),
        config(2),
        config(3),
        config(2, SharedBy.MPS),
        config(2, SharedBy.MPS, combines=True),
        config(3, SharedBy.MPS, combines=True),
        config(2, name=SMALL),
        config(3, SharedBy.MPS, name=SMALL),
    ]
)
IN_MEMORY = Path("/dev/shm")


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(dir=folder))
        self.count = self.changes = 0
        self.allocated: dict[str, tuple[ClaimRef, int]] = {}
        """Each with how many changes had been made by then; -1 where one was under way."""
        self.prepared: dict[str, tuple[Device, ...]] = {}
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
        """Once no claim is prepared, what is wanted is offered, whatever is still allocated."""
        for name in sorted(self.known):
            self.unprepare(name)
        self.node.look()
        assert self.node.offered() == self.node.shares.wanted()
        assert self.node.waiting() == {}
        assert {str(self.node.published_now.withheld)} == {"()"}

    @property
    def is_changing(self) -> bool:
        return bool(self.node.waiting()) or self.node.divisions.is_outdated()

    @rule(number=st.integers(0, 100))
    def allocate(self, number: int) -> None:
        """Let the scheduler allocate something that is published."""
        names = self.node.published()
        if not names:
            return
        self.count += 1
        name = f"c{self.count}"
        ref = self.node.allocate(names[number % len(names)], name)
        if ref is not None:
            self.allocated[name] = (ref, -1 if self.is_changing else self.changes)

    @rule(number=st.integers(0, 100))
    def prepare(self, number: int) -> None:
        if self.allocated:
            self.prepare_named(list(self.allocated)[number % len(self.allocated)])

    def prepare_named(self, name: str) -> None:
        ref, _ = self.allocated[name]
        self.known.add(name)
        refused = ""
        try:
            self.node.driver.prepare(ref)  # type: ignore[union-attr]
        except (ConflictError, DeviceError) as error:
            refused = str(error)
        if refused:
            assert "delete the pod" in refused
            assert name not in self.prepared, "what is prepared is answered as before"
            assert {at for _, at in self.allocated.values()} != {self.changes}, refused
            return
        record = self.node.driver.claims.records.read(ref.uid)  # type: ignore[union-attr]
        assert record is not None
        assert self.prepared.setdefault(name, record.held) == record.held

    @rule(number=st.integers(0, 100))
    def end_pod(self, number: int) -> None:
        """Let the kubelet unprepare a claim; its allocation stays for a while."""
        if self.known:
            self.unprepare(sorted(self.known)[number % len(self.known)])

    def unprepare(self, name: str) -> None:
        ref = ClaimRef(uid=f"uid-{name}", namespace="default", name=name)  # type: ignore[arg-type]
        self.node.driver.unprepare(ref)  # type: ignore[union-attr]
        self.prepared.pop(name, None)

    @rule(number=st.integers(0, 100))
    def delete(self, number: int) -> None:
        """Delete a claim, prepared or not: the kubelet ends its containers before."""
        if self.allocated:
            name = list(self.allocated)[number % len(self.allocated)]
            if name in self.prepared:
                self.unprepare(name)
            self.node.delete(self.allocated.pop(name)[0])

    @rule(wanted=CONFIGS)
    def change(self, wanted: Any) -> None:
        self.changes += 1
        self.node.set(wanted)

    @rule()
    def look(self) -> None:
        self.node.look()

    @rule(number=st.integers(0, 100), wanted=CONFIGS)
    def change_before_prepare(self, number: int, wanted: Any) -> None:
        """Change the share config between an allocation and the kubelet's call."""
        self.allocate(number)
        self.change(wanted)
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
            self.prepare_named(name)

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if not hasattr(self, "node"):
            return
        records = [
            one
            for one in self.node.driver.claims.records.readable()  # type: ignore[union-attr]
            if one.state is not RecordState.RELEASED
        ]
        for position, one in enumerate(records):
            for other in records[position + 1 :]:
                assert not overlap(one.held, other.held), (one, other)


class TestNode(Node.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
