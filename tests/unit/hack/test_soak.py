"""A soak's turns follow from its seed and ask for the hostile tenant's GPUs; growth is seen."""

import itertools
import random
from typing import Any

import pytest
from chaos.flat import Sample, table
from chaos.odd_claims import ACTS, odd
from chaos.turns import BODIES, FLOODS, INSIDE, OUTSIDE, turns
from testbed import attacks

HOSTILE = ("GPU-hostile",)
LONG = 3600.0
FLAT: dict[str, float] = {
    "kubelet-plugin: memory, MiB": 80,
    "kubelet-plugin: open files": 30,
    "kubelet-plugin: threads": 20,
    "machine: Slab, MiB": 500,
    "machine: SUnreclaim, MiB": 100,
}


def test_the_same_seed_gives_the_same_turns_and_another_gives_others() -> None:
    def first(seed: int) -> list[str]:
        return list(map(str, itertools.islice(turns(seed), 20)))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_every_attack_comes_before_any_comes_a_third_time() -> None:
    some = list(itertools.islice(turns(7), 10))
    assert {attack for turn in some for attack in turn.attacks} == {*INSIDE}
    assert {act for turn in some for act in turn.acts} == {*ACTS, *OUTSIDE}
    assert {turn.body for turn in some} == {*BODIES}


def test_every_attack_inside_is_one_of_the_program_that_makes_them() -> None:
    assert all(callable(getattr(attacks, name)) for name in (*FLOODS, *INSIDE))


@pytest.mark.parametrize("act", ACTS)
def test_odd_claims_ask_for_the_hostile_tenants_gpus_alone(act: str) -> None:
    made = odd(act, random.Random(1), HOSTILE)  # noqa: S311
    assert made.claims
    for claim in made.claims:
        for request in claim["spec"]["devices"]["requests"]:
            (selector,) = request["exactly"]["selectors"]
            assert selector["cel"]["expression"].endswith("in ['GPU-hostile']")
    names = [claim["metadata"]["name"] for claim in made.claims]
    assert len({*names}) == len(names)
    assert {one for pod in made.pods for one in _claims(pod)} == {*names}


@pytest.mark.parametrize("row", FLAT)
def test_what_grows_from_the_second_quarter_to_the_last_is_seen(row: str) -> None:
    samples: list[Sample] = [
        FLAT | {row: FLAT[row] * (1 + number / 5) + 20 * number} for number in range(60)
    ]
    _, wrong = table(samples, LONG)
    assert [one.partition(": ")[0] for one in wrong] == [row.partition(": ")[0]]
    assert row in wrong[0]


@pytest.mark.parametrize("row", FLAT)
def test_what_grows_while_it_warms_up_or_once_alone_is_not(row: str) -> None:
    warm: list[Sample] = [FLAT | {row: FLAT[row] * number / 8} for number in range(8)]
    samples = [*warm, *[FLAT] * 24]
    samples[20] = FLAT | {row: 10_000}
    assert table(samples, LONG)[1] == []


def _claims(pod: dict[str, Any]) -> list[str]:
    return [one["resourceClaimName"] for one in pod["spec"]["resourceClaims"]]
