"""Configs, claims and drivers come and go; what claims have of one GPU decides about it alone."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.device import Base, Device, overlap
from dra_driver.devices.names import ShareName, parse_device_name
from dra_driver.errors import DriverError
from resource_nvidia_com.device_plugin import SharedBy
from worlds.divided_node import GPUS, DividedNode, config
from worlds.driver import Driver

CONFIGS = (
    config(0),
    config(2),
    config(3, combines=True),
    config(2, SharedBy.MPS),
    config(2, SharedBy.MPS, combines=True),
)

KINDS = ("allocate", "claim", "claim", "prepare", "end")

step = st.one_of(
    st.sampled_from(CONFIGS),
    st.tuples(st.sampled_from(KINDS), st.integers(0, 99)),
    st.sampled_from(["start", "reboot"]),
)


class Life:
    """A node, the claims that were allocated, and those that are prepared."""

    def __init__(self, root: Path, *, with_counters: bool) -> None:
        self.node = DividedNode(root, config(0), gpus=GPUS[:2], with_counters=with_counters)
        self.claims: dict[ClaimRef, str] = {}
        self.number = 0

    def do(self, what: object) -> None:
        match what:
            case ("allocate" | "claim" as kind, int(choice)):
                names = self.node.published()
                name = names[choice % len(names)]
                self.number += 1
                ref = self.node.allocate(name, f"c{self.number}")
                if ref is not None:
                    self.claims[ref] = name
                    if kind == "claim":
                        self.driver.prepare(ref)
            case ("prepare", int(choice)) if self.claims:
                with suppress(DriverError):  # no longer there, or had in another way
                    self.driver.prepare(list(self.claims)[choice % len(self.claims)])
            case ("end", int(choice)) if self.claims:
                ref = list(self.claims)[choice % len(self.claims)]
                del self.claims[ref]
                self.driver.unprepare(ref)
                self.node.delete(ref)
            case "start":
                self.node.start()
            case "reboot":
                self.node.reboot()
            case one if one in CONFIGS:
                self.node.set(one)
        self.node.look()
        self.check()

    @property
    def driver(self) -> Driver:
        assert self.node.driver is not None
        return self.node.driver

    def records(self) -> Iterator[ClaimRecord]:
        for ref in self.claims:
            record = self.driver.claims.ledger.read(ref.uid)
            if record is not None:
                yield record

    def check(self) -> None:
        held: list[Device] = []
        for record in self.records():
            for entry in record.devices:
                is_share = isinstance(parse_device_name(entry.name), ShareName)
                assert is_share == (entry.device.share is not None)
                assert not overlap([entry.device], held)
                held.append(entry.device)
        offered, wanted = self.node.offered(), self.node.shares.wanted()
        for part in {*offered, *wanted, *(device.place for device in held)}:
            self.check_part(part, [device for device in held if device.place == part])
        published = {source.device for source in self.node.published_now.sources}
        for device in published:
            if device.share is None and device.place in wanted and device.place not in offered:
                assert any(one.place == device.place and one.share is None for one in held)

    def check_part(self, part: Base, held: list[Device]) -> None:
        """A device is divided as its claims have it, or else as the newest config says."""
        now, wanted = self.node.offered().get(part), self.node.shares.wanted().get(part)
        divisions = {device.division for device in held if device.division}
        if divisions:
            assert {now} == divisions
        elif any(device.share is None for device in held) and not self.node.with_counters:
            assert now is None
        else:
            assert now == wanted
        assert (part in self.node.waiting()) == (now != wanted)


@pytest.mark.parametrize("with_counters", [True, False])
@settings(deadline=None)
@given(st.lists(step, min_size=8, max_size=25))
def test_an_unused_gpu_follows_the_newest_config(with_counters: bool, steps: list[object]) -> None:
    with TemporaryDirectory() as root:
        life = Life(Path(root), with_counters=with_counters)
        try:
            for one in steps:
                life.do(one)
            while life.claims:
                life.do(("end", 0))
            assert life.node.offered() == life.node.shares.wanted()
            assert not life.node.waiting()
        finally:
            life.driver.close()
