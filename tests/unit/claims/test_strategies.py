"""What strategies are told of a claim's devices, and what comes of the plans of several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.model import Edits
from dra_driver.claims.model.claim import ConsumerGroup, ConsumerPod, Result
from dra_driver.claims.model.config import ConfigGroup
from dra_driver.claims.model.devices import DeviceRecord, recorded
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.claims.prepare.allocation import Allocation
from dra_driver.claims.prepare.strategies import Strategies
from dra_driver.devices.kinds import Device, NodeDevice
from dra_driver.devices.model import MigMode, Partition
from dra_driver.devices.shares import Division, Share, ShareStrategy
from dra_driver.errors import ConfigError, DeviceError, DriverError, StateError
from dra_driver.sharing import shares
from dra_driver.sharing.base import (
    EXCLUSIVE,
    DeviceKey,
    Group,
    MigUnit,
    ShareUnit,
    Sharing,
    SharingPlan,
)

MIG = make.mig_device(2, start=2)
WHOLE, OTHER = make.gpu(0), make.gpu(1)
CARD = make.gpu(2, mig=make.mig(MIG), mig_mode=MigMode.ENABLED)
TO_BE_MADE = Partition(parent=CARD.uuid, profile=MIG.profile, placement=MIG.placement)
DIVISION = Division(count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
SHARE = Share(of=OTHER, index=1, division=DIVISION)
OWED = SharingPlan(strategy="MPS", gpus=(WHOLE.uuid,))


class Noting(Sharing):
    """A strategy with one plan for each group; it notes what it is asked, and may refuse."""

    def __init__(self, name: str, *, lives: bool = False, claims: Sequence[str] = ()) -> None:
        self.name = name
        self.survives_reboot = lives
        self.there = frozenset(claims)
        self.groups: list[Group] = []
        self.asked: list[tuple[object, ...]] = []
        self.refusal: DriverError | None = None

    def _note(self, *words: object) -> None:
        self.asked.append(words)
        if self.refusal is not None:
            raise self.refusal

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingPlan, ...]:
        self.groups += groups
        self._note("plan", deadline)
        return tuple(plan_of(self.name, number) for number, _ in enumerate(groups))

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:
        return {DeviceKey(WHOLE.uuid): Edits(env=(f"{self.name}={plan.changes['number']}",))}

    def apply(self, plan: SharingPlan, deadline: float) -> None:
        self._note("apply", plan, deadline)

    def ensure(self, plan: SharingPlan) -> None:
        self._note("ensure", plan)

    def wait_ready(self, plan: SharingPlan, deadline: float, given_up: Callable[[], bool]) -> None:
        self._note("wait", plan, deadline, given_up())

    def let_go(self, plan: SharingPlan, deadline: float) -> None:
        self._note("let go", plan, deadline)

    def undo(self, plan: SharingPlan, deadline: float) -> None:
        self._note("undo", plan, deadline)

    def claims(self) -> frozenset[str]:
        return self.there

    def sweep(self, claim: str, deadline: float) -> None:
        self._note("sweep", claim, deadline)


def plan_of(name: str, number: int = 0) -> SharingPlan:
    return SharingPlan(strategy=name, gpus=(WHOLE.uuid,), changes={"number": number})


def claim(
    *configs: tuple[Any, Sequence[tuple[str, Any, Device]]],
) -> tuple[ClaimRecord, Allocation]:
    """A claim whose devices (request, GPU, device) stand under configs."""
    entries: list[DeviceRecord] = []
    devices: dict[str, NodeDevice] = {}
    groups: list[ConfigGroup] = []
    for config, members in configs:
        results: list[Result] = []
        for request, gpu, device in members:
            name = f"{type(device).__name__.lower()}-{gpu.minor}"
            results.append(Result(request=request, pool="node-1", device=name))
            devices[name] = NodeDevice(gpu=gpu, device=device)
            entries.append(
                DeviceRecord(
                    name=name,
                    device=recorded(device),
                    pool="node-1",
                    request_names=(request,),
                    cdi_device_ids=(),
                )
            )
        groups.append(ConfigGroup(config=config, results=tuple(results)))
    record = make.record(
        devices=tuple(entries),
        pods=(ConsumerPod(name="pod", uid="pod-uid"),),
        groups=(ConsumerGroup(name="group", uid="group-uid"),),
    )
    return record, Allocation(draft=record, devices=devices, groups=groups)


def played(**more: Noting) -> dict[str, Noting]:
    names = (EXCLUSIVE, "MPS", "TimeSlicing", shares.NAME)
    return {name: Noting(name) for name in names} | more


def test_a_claim_with_several_strategies_has_the_plans_of_each() -> None:
    by_name = played()
    record, allocation = claim(
        (make.gpu_config("MPS"), [("a", WHOLE, WHOLE)]),
        (make.gpu_config("TimeSlicing"), [("b", OTHER, OTHER)]),
        (make.gpu_config(), [("c", CARD, MIG)]),
    )
    found = Strategies(by_name).plan(record, allocation, (OWED,), deadline=7.0)
    assert found == (plan_of("MPS"), plan_of("TimeSlicing"), plan_of(EXCLUSIVE))
    assert [one.asked for one in by_name.values()][:3] == [[("plan", 7.0)]] * 3


def test_a_strategy_is_told_whose_the_devices_are_and_what_is_owed_on_them() -> None:
    by_name = played()
    config, other = make.gpu_config("MPS"), make.gpu_config("MPS", defaultActiveThreadPercentage=50)
    record, allocation = claim(
        (config, [("a", WHOLE, WHOLE), ("a", CARD, MIG)]), (other, [("b", OTHER, OTHER)])
    )
    Strategies(by_name).plan(record, allocation, (OWED,), deadline=7.0)
    first, second = by_name["MPS"].groups
    assert first == Group(
        claim=record.ref.uid,
        name="default/claim",
        pods={"pod-uid": "pod"},
        pod_groups=("group",),
        config=config,
        gpus=(WHOLE,),
        migs=(MigUnit(gpu=CARD, device=MIG),),
        owed=(OWED,),
    )
    assert (second.config, second.gpus, second.migs) == (other, (OTHER,), ())


def test_shares_are_planned_as_shares_whatever_the_config_says() -> None:
    by_name = played()
    record, allocation = claim(
        (make.gpu_config("MPS"), [("a", OTHER, SHARE), ("b", WHOLE, WHOLE)]),
    )
    assert Strategies(by_name).plan(record, allocation, (), deadline=7.0) == (
        plan_of(shares.NAME),
        plan_of("MPS"),
    )
    (group,) = by_name[shares.NAME].groups
    assert group.shares == (ShareUnit(name="share-1", request="a", gpu=OTHER, share=SHARE),)
    assert group.gpus == ()
    assert by_name["MPS"].groups[0].gpus == (WHOLE,)


def test_a_mig_device_that_is_to_be_made_is_planned_for_as_one_of_our_own() -> None:
    by_name = played()
    share = replace(SHARE, of=replace(TO_BE_MADE, placement=make.mig_device(2, start=4).placement))
    record, allocation = claim(
        (make.gpu_config("MPS"), [("a", CARD, TO_BE_MADE), ("b", CARD, share)])
    )
    Strategies(by_name).plan(record, allocation, (), deadline=7.0)
    (unit,) = by_name["MPS"].groups[0].migs
    assert unit.device.uuid == f"MIG-to-be-made-{CARD.uuid}-{MIG.profile.id}-2"
    assert (unit.device.parent, unit.device.made_here) == (CARD.uuid, True)
    assert (unit.device.profile, unit.device.placement) == (MIG.profile, MIG.placement)
    (shared,) = by_name[shares.NAME].groups[0].shares
    of: Any = shared.share.of
    assert of.uuid.endswith("-4")


def test_a_strategy_that_this_version_does_not_have_is_named_with_the_request() -> None:
    record, allocation = claim((make.gpu_config("MPS"), [("train", WHOLE, WHOLE)]))
    with pytest.raises(
        ConfigError, match=r"MPS is not available in .* from the GpuConfig of request train"
    ):
        Strategies({}).plan(record, allocation, (), deadline=7.0)
    found = Strategies({})
    for call in (lambda: found.edits([plan_of("MPS")]), lambda: found.ensure([plan_of("MPS")])):
        with pytest.raises(StateError) as caught:
            call()
        assert str(caught.value) == (
            "the claim was prepared with sharing strategy MPS, which this version of the driver "
            "does not know; install the version that prepared it"
        )


def test_what_containers_get_is_joined_by_device() -> None:
    by_name = played()
    found = Strategies(by_name).edits([plan_of("MPS", 1), plan_of("TimeSlicing", 2)])
    assert found == {WHOLE.uuid: Edits(env=("MPS=1", "TimeSlicing=2"))}


@pytest.mark.parametrize("lives", [True, False])
def test_only_what_lives_by_itself_is_waited_for_and_let_go(lives: bool) -> None:
    by_name = played(MPS=Noting("MPS", lives=lives))
    strategies = Strategies(by_name)
    plans = [plan_of("MPS"), plan_of("TimeSlicing")]
    assert strategies.apply(plans, 7.0) is not lives
    assert strategies.let_go(plans, 8.0)
    strategies.ensure(plans)
    strategies.wait_ready(plans, 9.0, lambda: True)
    assert strategies.undo(plans, 10.0) == []
    expected = [
        ("apply", plans[0], 7.0),
        *([("let go", plans[0], 8.0)] if lives else []),
        ("ensure", plans[0]),
        ("wait", plans[0], 9.0, True),
        ("undo", plans[0], 10.0),
    ]
    assert by_name["MPS"].asked == expected
    assert [one[0] for one in by_name["TimeSlicing"].asked] == ["apply", "ensure", "wait", "undo"]
    assert strategies.survives_reboot(plans[0]) is lives
    assert strategies.survives_reboot(plan_of("unknown")), "it may"


def test_what_cannot_be_undone_comes_back_with_the_reason() -> None:
    by_name = played(MPS=Noting("MPS", lives=True, claims=["uid-1"]))
    error = by_name["MPS"].refusal = DeviceError("it hangs")
    strategies = Strategies(by_name)
    plans = [plan_of("TimeSlicing"), plan_of("MPS")]
    assert strategies.undo(plans, 7.0) == [(plans[1], error)]
    assert not strategies.let_go(plans, 7.0)
    assert strategies.sweep("uid-1", 7.0) == [("MPS", error)]
    assert by_name["MPS"].asked[-1] == ("sweep", "uid-1", 7.0)
    assert by_name["TimeSlicing"].asked == [("undo", plans[0], 7.0)]
    with pytest.raises(DeviceError, match="it hangs"):
        strategies.apply(plans, 7.0)
    assert strategies.claims() == {"uid-1"}
    assert strategies.sweep("uid-2", 7.0) == []
