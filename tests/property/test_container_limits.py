"""A container has the limits that its requests were promised, whichever and in whatever order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make
from dra_driver.cdi.model import Edits
from dra_driver.devices.device import DeviceKey, equal_shares, name_of
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.mps.files import MpsFiles
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.shares import Memberships, Shares
from dra_driver.sharing.steps import JoinDomain

GPUS = [make.gpu(minor) for minor in range(3)]
COUNT = 10
PART = 80 * 1024 // COUNT
LIMIT, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
TOGETHER = Division(
    count=COUNT,
    strategy=ShareStrategy.MPS,
    served_as="nvidia.com/gpu",
    combines=True,
    together=tuple(gpu.uuid for gpu in GPUS),
)
CHOSEN = ("a", "b", "c")
OF_CONTAINERS = ("container-0-request-0", "container-1-request-0", "container-1-request-1")


class Server:
    """A supervisor's folders."""

    def paths(self, domain: Any) -> Any:
        return MpsFiles(root=Path("/mps")).paths(domain)


def planned(units: Sequence[Unit]) -> dict[DeviceKey, Edits]:
    """What containers get of each share."""
    server: Any = Server()
    shares = Shares(make.limited_by_mps(), server)
    group = Group(claim="uid", config=make.gpu_config(), units=tuple(units))
    use, join = shares.plan([group], 0.0)
    assert isinstance(join, JoinDomain)
    assert shares.edits(use) == {}  # type: ignore[arg-type]
    return dict(Memberships(server, server, lambda: 0.0, ready_seconds=1.0).edits(join))


@st.composite
def claims(draw: st.DrawFn) -> list[Unit]:
    """The shares of a claim: each of any GPU, for any request."""
    names = draw(st.sampled_from((CHOSEN, OF_CONTAINERS)))
    taken = draw(
        st.lists(
            st.tuples(st.sampled_from(range(len(GPUS))), st.integers(0, COUNT - 1)),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    units: list[Unit] = []
    for minor, index in taken:
        share = equal_shares(make.place(GPUS[minor]), TOGETHER)[index]
        name, request = name_of(GPUS[minor], share), draw(st.sampled_from(names))
        units.append(Unit(name=name, request=request, gpu=GPUS[minor], device=share))
    return units


def neighbours(request: str, all_requests: set[str]) -> set[str]:
    """The requests that a container may have which has this one."""
    if request in CHOSEN:
        return all_requests
    return {one for one in all_requests if one.split("-")[1] == request.split("-")[1]}


def containers(units: Sequence[Unit]) -> Iterator[set[str]]:
    """The requests of each container that there may be."""
    names = {unit.request for unit in units}
    sizes = (combinations(sorted(names), size) for size in range(1, len(names) + 1))
    for some in map(set, chain.from_iterable(sizes)):
        if all(some <= neighbours(one, names) for one in some):
            yield some


def environment(edits: Sequence[Edits]) -> dict[str, str]:
    """The environment after these edits: of a variable that is there the value is replaced."""
    return dict(one.split("=", 1) for edit in edits for one in edit.env)


def promised(units: Sequence[Unit], requests: set[str]) -> Mapping[str, int]:
    """MiB by GPU for a container with these requests: all that the claim has for it."""
    names = {unit.request for unit in units}
    found: dict[str, int] = {}
    allowed = set().union(*(neighbours(request, names) for request in requests))
    for unit in units:
        if unit.request in allowed:
            found[unit.gpu.uuid] = found.get(unit.gpu.uuid, 0) + PART
    return found


@given(claims(), st.randoms(use_true_random=False))
def test_each_gpu_of_a_container_has_the_limit_that_was_promised(
    units: list[Unit], chance: Any
) -> None:
    gpus: dict[str, set[str]] = {}
    for unit in units:
        gpus.setdefault(unit.request, set()).add(unit.gpu.uuid)
    if any(gpus[gpu] != gpus[other] for gpu in gpus for other in neighbours(gpu, set(gpus))):
        with pytest.raises(ConfigError, match="got shares of different GPUs"):
            planned(units)
        return
    edits = planned(units)
    for requests in containers(units):
        given_ = [unit for unit in units if unit.request in requests]
        chance.shuffle(given_)
        env = environment([edits[unit.key] for unit in given_])
        limits = dict(one.split("=") for one in env[LIMIT].split(","))
        wanted = promised(units, requests)
        assert set(limits) == {unit.gpu.uuid for unit in given_}
        assert limits == {uuid: f"{mib}M" for uuid, mib in wanted.items()}
        assert int(env.get(THREADS, 100)) <= min(
            mib * 100 // (PART * COUNT) for mib in wanted.values()
        )
