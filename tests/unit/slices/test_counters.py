"""What MIG devices use of their GPU, in the names and numbers of NVIDIA's own driver."""

from msgspec.structs import replace

import make
from dra_driver.devices.model import MigProfile
from dra_driver.slices import counters

H100 = make.H100_PROFILES
ONE, ME, THREE = H100[0], H100[1], H100[4]


def test_a_card_has_one_of_each_memory_slice_and_the_engines_that_could_run_out() -> None:
    slices = {f"memory-slice-{number}": 1 for number in range(8)}
    assert counters.whole(H100) == {"ofa-engines": 1, **slices}
    without_media = [one for one in H100 if one is not ME]
    assert counters.whole(without_media) == slices


def test_an_engine_counts_that_instances_beside_each_other_could_use_up() -> None:
    greedy = [replace(ONE, copy_engines=2), *H100[1:]]
    assert counters.whole(greedy)["copy-engines"] == 8
    assert counters.used(greedy[0], ONE.placements[0], counters.whole(greedy)) == {
        "copy-engines": 2,
        "ofa-engines": 0,
        "memory-slice-0": 1,
    }


def test_a_mig_device_uses_its_engines_and_the_slices_it_covers() -> None:
    used = counters.used(THREE, THREE.placements[1], counters.whole(H100))

    assert {name for name in used if name.startswith("memory-slice")} == {
        f"memory-slice-{number}" for number in (4, 5, 6, 7)
    }
    assert used["ofa-engines"] == 0


def test_the_limit_of_a_profile_that_engines_imply_has_no_counter_of_its_own() -> None:
    assert not any("instances" in name for name in counters.whole(H100))


def test_a_limit_that_engines_do_not_imply_has_a_counter_of_its_own() -> None:
    limited = tuple(replace(one, ofa_engines=0) for one in H100)
    everything = counters.whole(limited)
    used = [counters.used(limited[1], place, everything) for place in ME.placements[:2]]

    assert everything["profile-20-instances"] == 1
    assert counters.fits(used[0], everything)
    assert not counters.fits({k: a + used[1].get(k, 0) for k, a in used[0].items()}, everything)
    assert "profile-20-instances" not in counters.used(ONE, ONE.placements[0], everything)


def test_instances_of_others_leave_the_rest() -> None:
    everything = counters.whole(H100)
    left = counters.left_by([make.mig_device(0, "3g.40gb", 4)], everything)

    assert [left[f"memory-slice-{number}"] for number in range(8)] == [1] * 4 + [0] * 4
    assert left["ofa-engines"] == 1
    assert counters.left_by([], everything) == everything


def consumed(*profiles: MigProfile) -> list[counters.Counters]:
    everything = counters.whole(H100)
    return [everything] + [
        counters.used(profile, place, everything)
        for profile in profiles
        for place in profile.placements
    ]


def test_a_slice_always_taken_with_another_needs_no_counter() -> None:
    told = counters.telling(consumed(*H100), counters.whole(H100))
    assert told == {"ofa-engines", *(f"memory-slice-{number}" for number in range(7))}


def test_slices_taken_together_need_one_counter() -> None:
    told = counters.telling(consumed(THREE), counters.whole(H100))
    assert told == {"memory-slice-0", "memory-slice-4"}


def test_an_unused_counter_is_left_out() -> None:
    assert counters.telling([{"a": 1, "b": 0}], {"a": 1, "b": 4, "c": 2}) == {"a"}


def test_a_counter_with_more_left_is_implied_and_one_with_less_is_not() -> None:
    pairs = [{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert counters.telling(pairs, {"a": 2, "b": 3}) == {"a"}
    assert counters.telling([*pairs, {"b": 2}], {"a": 2, "b": 3}) == {"a", "b"}


def test_amounts_are_written_as_the_api_has_them() -> None:
    assert counters.counter_set("s", {"copy-engines": 8, "memory": 9856 * 1024**2}) == {
        "name": "s",
        "counters": {"copy-engines": {"value": "8"}, "memory": {"value": "9856Mi"}},
    }
    assert counters.capacity({"copy-engines": 8, "multiprocessors": 1}) == {
        "copyEngines": {"value": "8"},
        "multiprocessors": {"value": "1"},
    }


def test_instances_of_others_do_not_change_a_set() -> None:
    everything = {"a": 1, "b": 1}
    halves = [{"a": 1}, {"b": 1}]
    left = {"a": 0, "b": 1}

    assert counters.to_publish([*halves, everything], halves[1:], everything, left) == everything
    taken = counters.of_others(halves[:1], everything, everything)
    assert counters.of(taken, halves[0]) == {"a": 1}


def test_contested_counters_have_only_what_others_left() -> None:
    """The scheduler counts an instance that others made only while a claim has it."""
    everything = {"decoders": 5, "a": 1, "b": 1, "c": 1}
    by_hand = {"decoders": 2, "a": 1}
    parts = [{"decoders": 2, "b": 1}, {"decoders": 2, "c": 1}]
    left = {"decoders": 3, "a": 0, "b": 1, "c": 1}
    found = counters.to_publish([by_hand, *parts, everything], parts, everything, left)

    assert found == everything | {"decoders": 3}
    assert counters.of_others([by_hand], found, everything) == {"a", "b", "c"}


def test_instances_that_have_more_together_than_there_is_can_all_be_given_out() -> None:
    everything = {"jpeg-engines": 1, "a": 1, "b": 1}
    by_hand = [{"jpeg-engines": 1, "a": 1}, {"jpeg-engines": 1, "b": 1}]

    assert counters.of_others(by_hand, everything, everything) == {"a", "b"}
