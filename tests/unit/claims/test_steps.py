"""What strategies are told of a claim's devices, and how the steps of several are carried out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.cdi.model import Edits
from dra_driver.claims.model.record import (
    ClaimRecord,
    ClaimStep,
    DeviceRecord,
    MakeMigDevices,
    MigStep,
    TurnMigModeOff,
)
from dra_driver.claims.prepare.steps import (
    NO_WAIT,
    Sharing,
    Steps,
    mig_steps,
    sharing_steps,
    with_made,
)
from dra_driver.devices.device import Device, DeviceKey, Mig, equal_shares
from dra_driver.devices.model import Gpu, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import DeviceError, DriverError
from dra_driver.sharing.base import Doer, Group, Unit
from dra_driver.sharing.steps import JoinDomain, NvidiaMpsDaemon, SharingStep, TimeSlice, UseShares

FOUND = make.mig_device(2, start=2)
GPU, OTHER_GPU = make.gpu(0), make.gpu(1)
CARD = make.gpu(2, mig=make.mig(FOUND), mig_mode=MigMode.ENABLED)
WHOLE, OTHER, MIG = make.device(GPU), make.device(OTHER_GPU), make.device(FOUND)
TO_BE_MADE = Device(base=make.place(FOUND))
DIVISION = Division(count=2, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=True)
SHARE = equal_shares(OTHER.base, DIVISION)[1]
OWED = NvidiaMpsDaemon(devices=(WHOLE,), daemon="d", folder="")
SETTING = TimeSlice(devices=(WHOLE,))
DAEMON = make.join(WHOLE)


class Noting(Doer[Any]):
    """A strategy with one step for each group; it notes what it is asked, and may refuse."""

    def __init__(self, name: str, *, claims: Sequence[str] = ()) -> None:
        self.name = name
        self.there = frozenset(claims)
        self.groups: list[Group] = []
        self.asked: list[tuple[object, ...]] = []
        self.refusal: DriverError | None = None

    def _note(self, *words: object) -> None:
        self.asked.append(words)
        if self.refusal is not None:
            raise self.refusal

    def plan(self, groups: Sequence[Group], deadline: float) -> tuple[SharingStep, ...]:
        self.groups += groups
        self._note("plan", deadline)
        return tuple(planned(self.name, group) for group in groups)

    def edits(self, step: SharingStep) -> Mapping[DeviceKey, Edits]:
        return {DeviceKey(GPU.uuid): Edits(env=(f"{self.name}={step.name}",))}

    def do(self, step: SharingStep, deadline: float) -> None:
        self._note("do", step, deadline)

    def ensure(self, step: SharingStep) -> None:
        self._note("ensure", step)

    def wait(self, step: SharingStep, deadline: float, given_up: Callable[[], bool]) -> None:
        self._note("wait", step, deadline, given_up())

    def undo(self, step: SharingStep, deadline: float) -> None:
        self._note("undo", step, deadline)

    def claims(self, uuids: object = None) -> frozenset[str]:
        return self.there

    def sweep(self, claim: str, deadline: float) -> None:
        self._note("sweep", claim, deadline)


def planned(name: str, group: Group) -> SharingStep:
    """A step that only says what planned it, and for which devices."""
    return TimeSlice(devices=tuple(one.device for one in group.units), card=name)


class Node:
    """Strategies and MIG devices, and what is asked of them."""

    def __init__(self, **strategies: Noting) -> None:
        names = (
            JoinDomain.name,
            TimeSlice.name,
            NvidiaMpsDaemon.name,
            UseShares.name,
            "Machines",
        )
        self.by_name = {name: Noting(name) for name in names} | strategies
        self.made: list[tuple[str, MigStep]] = []
        mps, time_slices, nvidia, shares, machines = self.by_name.values()
        self.sharing = Sharing(
            planners=self.by_name,
            time_slices=time_slices,
            domains=mps,
            nvidia_mps=nvidia,
            shares=shares,
            passthrough=machines,
        )
        node: Any = self
        self.steps = Steps(node, self.sharing)

    def do(self, step: MigStep) -> tuple[Mig, ...]:
        self.made.append(("do", step))
        return ()

    def undo(self, step: MigStep) -> None:
        self.made.append(("undo", step))


def claim(
    *configs: tuple[Any, Sequence[tuple[str, Gpu, Device]]],
) -> tuple[ClaimRecord, list[Group]]:
    """A claim whose devices (request, GPU, device) stand under configs."""
    members = [member for _, members in configs for member in members]
    record = make.record(
        devices=tuple(
            DeviceRecord(
                name=f"device-{request}",
                device=device,
                pool="node-1",
                request_names=(request,),
                cdi_device_ids=(),
            )
            for request, _, device in members
        )
    )
    groups = [
        Group(claim="uid", config=config, units=tuple(unit(*member) for member in members))
        for config, members in configs
    ]
    return record, groups


def unit(request: str, gpu: Gpu, device: Device) -> Unit:
    return Unit(name=f"device-{request}", request=request, gpu=gpu, device=device)


def test_a_claim_with_several_strategies_has_the_steps_of_each() -> None:
    node = Node()
    record, groups = claim(
        (make.gpu_config("MPS"), [("a", GPU, WHOLE)]),
        (make.gpu_config("TimeSlicing"), [("b", OTHER_GPU, OTHER)]),
        (make.gpu_config(), [("c", CARD, MIG)]),
    )
    found = node.steps.plan(record, groups, (OWED,), deadline=7.0)
    assert found == (
        TimeSlice(devices=(WHOLE,), card="MPS"),
        TimeSlice(devices=(OTHER,), card="TimeSlicing"),
    )
    asked = {name: one.asked for name, one in node.by_name.items() if one.asked}
    assert asked == {"MPS": [("plan", 7.0)], "TimeSlicing": [("plan", 7.0)]}


def test_a_strategy_gets_pending_cleanup_and_existing_devices() -> None:
    node = Node()
    config, other = make.gpu_config("MPS"), make.gpu_config("MPS", defaultActiveThreadPercentage=50)
    record, groups = claim(
        (config, [("a", GPU, WHOLE), ("b", CARD, MIG)]), (other, [("c", OTHER_GPU, OTHER)])
    )
    allocated = replace(groups[0], units=(unit("a", GPU, WHOLE), unit("b", CARD, TO_BE_MADE)))
    node.steps.plan(record, [allocated, groups[1]], (OWED,), deadline=7.0)
    first, second = node.by_name["MPS"].groups
    assert first == replace(groups[0], owed=(OWED,))
    assert (first.wholes, first.migs) == ((unit("a", GPU, WHOLE),), (unit("b", CARD, MIG),))
    assert (second.config, second.wholes, second.migs) == (
        other,
        (unit("c", OTHER_GPU, OTHER),),
        (),
    )


def test_shares_are_planned_as_shares_whatever_the_config_says() -> None:
    node = Node()
    record, groups = claim((make.gpu_config("MPS"), [("a", OTHER_GPU, SHARE), ("b", GPU, WHOLE)]))
    assert node.steps.plan(record, groups, (), deadline=7.0) == (
        TimeSlice(devices=(SHARE,), card=UseShares.name),
        TimeSlice(devices=(WHOLE,), card="MPS"),
    )
    (group,) = node.by_name[UseShares.name].groups
    assert group.shares == (unit("a", OTHER_GPU, SHARE),)
    assert group.wholes == ()
    assert node.by_name["MPS"].groups[0].wholes == (unit("b", GPU, WHOLE),)


def test_a_mig_device_that_is_to_be_made_is_planned_for_by_its_place_and_bound_once_made() -> None:
    node = Node()
    record, groups = claim((make.gpu_config("MPS"), [("a", CARD, TO_BE_MADE)]))
    making = MakeMigDevices(devices=(TO_BE_MADE,), claim=record.ref.uid)
    planned = node.steps.plan(record, groups, (), deadline=7.0)
    assert isinstance(MIG.base, Mig)
    made = with_made(replace(record, steps=(making, *planned)), [MIG.base])
    assert made.is_complete
    assert [step.devices for step in made.steps] == [(TO_BE_MADE,), (MIG,)]


def test_edits_for_containers_are_joined_by_device() -> None:
    found = Node().steps.edits([DAEMON, SETTING])
    assert found == {GPU.uuid: Edits(env=("MPS=MPS", "TimeSlicing=TimeSlicing"))}


def test_only_what_lives_by_itself_is_waited_for_and_ended() -> None:
    node = Node()
    steps = [SETTING, DAEMON]
    node.steps.do(steps, 7.0)
    assert node.steps.end(steps, 8.0)
    node.steps.ensure(steps)
    node.steps.wait(steps, 9.0, lambda: True)
    assert node.steps.undo(steps, 10.0) == []
    assert node.by_name["MPS"].asked == [
        ("do", DAEMON, 7.0),
        ("undo", DAEMON, 8.0),
        ("ensure", DAEMON),
        ("wait", DAEMON, 9.0, True),
        ("undo", DAEMON, NO_WAIT),
    ]
    assert node.by_name["TimeSlicing"].asked == [
        ("do", SETTING, 7.0),
        ("ensure", SETTING),
        ("undo", SETTING, 10.0),
    ]


def test_steps_of_a_gpu_are_undone_in_reverse_order() -> None:
    node = Node()
    place = Device(base=make.place(make.mig_device(0)))
    mode, made = (
        TurnMigModeOff(devices=(WHOLE,), restore=True),
        MakeMigDevices(devices=(place,), claim=make.record().ref.uid),
    )
    steps: list[ClaimStep] = [mode, made, SETTING]
    assert (mig_steps(steps), sharing_steps(steps)) == ([mode, made], [SETTING])
    node.steps.do(steps, 7.0)
    assert node.steps.undo(steps, 8.0) == []
    assert node.made == [("do", mode), ("do", made), ("undo", made), ("undo", mode)]
    assert node.by_name["TimeSlicing"].asked == [("do", SETTING, 7.0), ("undo", SETTING, 8.0)]


def test_failed_undos_are_returned_with_the_reason() -> None:
    node = Node(MPS=Noting("MPS", claims=["uid-1"]))
    error = node.by_name["MPS"].refusal = DeviceError("it hangs")
    steps = [SETTING, DAEMON]
    assert node.steps.undo(steps, 7.0) == [(DAEMON, error)]
    assert not node.steps.end(steps, 7.0)
    assert node.steps.sweep("uid-1", 7.0) == [("MPS", error)]
    assert node.by_name["MPS"].asked[-1] == ("sweep", "uid-1", 7.0)
    assert node.by_name["TimeSlicing"].asked == [("undo", SETTING, 7.0)]
    with pytest.raises(DeviceError, match="it hangs"):
        node.steps.do(steps, 7.0)
    assert node.steps.claims() == {"uid-1"}
