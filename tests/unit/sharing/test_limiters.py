"""What limits the memory of shares is the best that there is, and the same for all tenants."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import ShareStrategy
from dra_driver.errors import ConfigError
from dra_driver.sharing.base import Group
from dra_driver.sharing.limiters import Limited, Limiter, limited
from dra_driver.sharing.memory_groups import only_pod

GPU, PASCAL, VOLTA = (
    make.gpu(0, cuda_compute_capability=each) for each in ((9, 0), (6, 1), (7, 0))
)
MPS, SLICED = ShareStrategy.MPS, ShareStrategy.TIME_SLICING
GROUPS, BY_MPS, OVER_LIMIT, NOTHING = Limiter
OLD = "the GPU driver 535.1 is older than R615"
NO_MEMORY = "time-slicing divides no memory"
NO_SIZE = "it is not set how much memory a share has"


def found(gpu: Gpu = GPU, strategy: ShareStrategy = SLICED, **facts: Any) -> Limited:
    default = {"has_size": True, "why_no_groups": OLD, "sees_processes": True}
    return limited(gpu, strategy, **(default | facts))


@pytest.mark.parametrize(
    ("gpu", "strategy", "facts", "by", "why"),
    [
        (GPU, MPS, {"why_no_groups": None}, GROUPS, ()),
        (GPU, SLICED, {"why_no_groups": None, "has_size": False}, GROUPS, ()),
        (GPU, MPS, {}, BY_MPS, (OLD,)),
        (VOLTA, MPS, {}, BY_MPS, (OLD,)),
        (PASCAL, MPS, {}, OVER_LIMIT, (OLD, "MPS limits nothing on", "older than Volta")),
        (PASCAL, MPS, {"sees_processes": False}, NOTHING, (OLD, "than Volta", "(hostPID)")),
        (GPU, SLICED, {}, OVER_LIMIT, (OLD, NO_MEMORY)),
        (GPU, SLICED, {"sees_processes": False}, NOTHING, (OLD, NO_MEMORY, "(hostPID)")),
        (GPU, SLICED, {"has_size": False}, NOTHING, (OLD, NO_MEMORY, NO_SIZE)),
    ],
)
def test_the_best_limits_memory_and_each_better_one_has_a_reason_against_it(
    gpu: Gpu, strategy: ShareStrategy, facts: Mapping[str, Any], by: Limiter, why: Sequence[str]
) -> None:
    best = found(gpu, strategy, **facts)
    assert best.by is by
    assert all(reason in best.why for reason in why)
    assert best.why.startswith(OLD) or best.why == "" == "".join(why)


@pytest.mark.parametrize("there", [OVER_LIMIT, NOTHING])
def test_limits_that_are_only_observed_may_differ(there: Limiter) -> None:
    assert found(tenants=[there]).by is OVER_LIMIT
    assert found(tenants=[there], has_size=False).by is NOTHING


@pytest.mark.parametrize("why_no_groups", [None, "no more"])
@pytest.mark.parametrize("before", [GROUPS, BY_MPS])
def test_later_claims_are_limited_like_the_existing_ones(
    why_no_groups: str | None, before: Limiter
) -> None:
    later = found(GPU, MPS, why_no_groups=why_no_groups, tenants=[NOTHING, before])
    assert later.by is before
    earlier = "earlier claims are limited like this; it changes when they end"
    assert later.why == ("" if before is GROUPS else why_no_groups or earlier)


def test_each_limiter_has_words_for_people() -> None:
    watching = "--over-limit, afterwards"
    assert [one.words() for one in Limiter] == ["control groups (NVML)", "MPS", watching, None]
    assert [Limited(by=one).with_condition() for one in Limiter] == [
        "control groups (NVML)",
        "MPS, unless a program changes MPS's environment variables",
        watching,
        None,
    ]


def test_the_page_about_shares_has_the_same_table() -> None:
    page = (Path(__file__).parents[3] / "docs/shares.md").read_text(encoding="utf-8")
    rows = page.partition("| limited by |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[1].strip().replace("`", "") for row in rows] == [
        one.words() or "nothing" for one in Limiter
    ]


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ({"u1": "b", "u2": "a"}, r"default/x has a share of GPU memory and .* for 2 pods \(a, b\)"),
        ({}, "is reserved for no pod"),
        ({f"u{each}": f"p{each}" for each in range(9)}, r"9 pods \(p0, .*, p4 and 4 more\): "),
    ],
)
def test_only_one_pod_can_have_a_claim_that_control_groups_limit(
    pods: dict[str, str], words: str
) -> None:
    claim = Group(claim="uid", name="default/x", pods={"pod-uid": "a"}, config=make.gpu_config())
    assert only_pod(claim) == "pod-uid"
    with pytest.raises(ConfigError, match=words):
        only_pod(replace(claim, pods=pods))


@pytest.mark.parametrize(
    ("is_persistent", "facts", "is_told"),
    [
        (False, {"why_no_groups": None}, True),
        (True, {"why_no_groups": None}, False),
        (None, {"why_no_groups": None}, False),
        (False, {}, False),
        (False, {"tenants": [GROUPS]}, True),
        (False, {"why_no_groups": None, "tenants": [BY_MPS]}, False),
    ],
)
def test_without_persistence_mode_the_limits_of_control_groups_may_end(
    is_persistent: bool | None, facts: Mapping[str, Any], is_told: bool
) -> None:
    caution = found(make.gpu(0, is_persistent=is_persistent), **facts).caution
    assert bool(caution) is is_told
    if caution:
        assert caution.startswith("persistence mode is off")
        assert caution.endswith("run nvidia-persistenced on the node")
