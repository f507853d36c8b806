"""Scenarios as files: what is expanded, what is refused and where, and what comes of it."""

import re
from pathlib import Path

import pytest

from dra_driver.bench.pods.manifests import PULL_SECRET, Place, claim, pod
from dra_driver.bench.scenarios.model import Scenario
from dra_driver.bench.scenarios.plan import Plan, planned
from dra_driver.bench.scenarios.read import find_scenario, listed, read_scenario, shipped
from dra_driver.bench.strategies import Sharing, Strategy
from dra_driver.errors import ConfigError

H100 = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1, "1g.10gb+me": 1}
A30 = {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1}
HEAD = """\
answers: Which?
works:
  light: {kind: inference, rate: 20}
  heavy: {kind: compute}
"""
CASES = HEAD + "cases:\n"


def plan(
    text: str, profiles: dict[str, int] | None = None, *, whole: bool = True, memory: int = 80000
) -> Plan:
    """A plan of a text on a card."""
    scenario = read_scenario(text, "test.yaml")
    return of(scenario, profiles or {}, whole=whole, memory=memory)


def of(scenario: Scenario, profiles: dict[str, int], *, whole: bool, memory: int) -> Plan:
    def obstacle(strategy: Strategy) -> str:
        is_divided = strategy.sharing is Sharing.MIG
        return "" if is_divided == bool(profiles) or (not is_divided and whole) else "no"

    return planned("test", scenario, memory_mib=memory, profiles=profiles, obstacle=obstacle)


@pytest.mark.parametrize("name", list(shipped()))
def test_every_shipped_scenario_is_one_on_every_card(name: str) -> None:
    _, scenario = find_scenario(name)
    for profiles in (H100, A30, {}):
        found = of(scenario, profiles, whole=not profiles, memory=24576)
        names = {strategy.name for strategy in found.strategies}
        assert len(names) == len(found.strategies) > 1
        assert found.study is not None
        for relation in found.study.relations:
            assert {relation.case, *relation.against, *relation.undisturbed} <= names
    assert any(line.startswith(f"{name} ") for line in listed())


def test_a_matrix_has_every_combination_with_its_labels_in_names() -> None:
    found = plan(
        CASES
        + """\
- name: alone, $load
  matrix: &loads {load: {low: 5, high: 80}}
  tenants: [{work: light, with: {rate: $load}}]
- name: $tenants by $how, $load
  matrix:
    <<: *loads
    tenants: [2, 4]
    how: {MPS: mps, time-slicing: time-slicing}
  sharing: $how
  against: ["alone, $load"]
  tenants: [{work: light, with: {rate: $load}, count: $tenants}]
"""
    )
    names = [strategy.name for strategy in found.strategies]
    assert len(names) == 2 + 8
    assert names[-1] == "4 by time-slicing, high"
    last = found.strategies[-1]
    assert (last.sharing, last.tenants) == (Sharing.TIME_SLICING, 4)
    assert {part.work.rate for part in last.parts} == {80.0}
    assert found.study is not None
    assert found.study.relations[-1].against == ("alone, high",)


def test_limits_that_all_have_are_the_strategys_and_others_the_tenants() -> None:
    equal, uneven, below = plan(
        CASES
        + """\
- name: equal
  sharing: mps
  limits: equal
  tenants: [{work: light, count: 3}, {work: heavy}]
- name: uneven
  sharing: mps
  tenants:
  - {work: light, limits: {threads: 70, memory: 25%}}
  - {work: heavy, limits: {memory: 2048}}
- name: below
  sharing: mps
  tenants: [{work: light}, {work: heavy, priority: 1}]
"""
    ).strategies
    assert (equal.sharing, equal.thread_percentage, equal.memory_mib) == ("mps-limits", 25, 20000)
    assert not any(part.environment() for part in equal.parts)
    light, heavy = uneven.parts
    assert uneven.sharing is Sharing.MPS
    assert light.environment() == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "70",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20000M",
    }
    assert heavy.environment() == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"}
    assert [part.environment() for part in below.parts] == [{}, {"CUDA_MPS_CLIENT_PRIORITY": "1"}]


def test_mig_profiles_are_asked_for_by_size_and_the_rest_is_counted() -> None:
    text = (
        CASES
        + """\
- name: $size
  matrix: {size: [smallest, 1g, 2g, largest]}
  tenants: [{work: light, profile: $size}]
- name: beside
  tenants: [{work: light, profile: 1g}, {work: heavy, profile: 1g, count: rest}]
"""
    )
    h100 = plan(text, H100).strategies
    assert [one.profile for one in h100] == [
        *("1g.10gb", "1g.10gb", "2g.20gb", "7g.80gb"),
        "1g.10gb",
    ]
    assert h100[-1].tenants == 7
    assert plan(text, A30).strategies[-1].tenants == 4
    assert [strategy.profile for strategy in plan(text).strategies][:2] == ["smallest", "1g"]


def test_a_case_stands_in_for_a_base_that_cannot_be_run_and_else_is_left_out() -> None:
    text = (
        CASES
        + """\
- name: alone
  instead: alone on the largest
  tenants: [{work: light}]
- name: alone on the largest
  tenants: [{work: light, profile: largest}]
- name: four
  against: [alone]
  tenants: [{work: light, profile: 1g, count: 4}]
"""
    )
    divided = plan(text, H100, whole=False)
    assert [strategy.name for strategy in divided.strategies] == [
        "alone",
        "alone on the largest",
        "four",
    ]
    assert divided.study is not None
    assert divided.study.relations[-1].against == ("alone on the largest",)
    whole = plan(text)
    assert [strategy.name for strategy in whole.strategies] == ["alone", "four"]
    assert whole.study is not None
    assert whole.study.relations[-1].against == ("alone",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("answer: x", ':1: answer: unknown key: did you mean "answers"?'),
        (HEAD + "case: []", ':5: case: unknown key: did you mean "cases"?'),
        (
            CASES + "- name: a\n  tenants:\n  - work: light\n    limits:\n      thread: 3",
            ':10: cases[0].tenants[0].limits.thread: unknown key: did you mean "threads"?',
        ),
        (
            CASES.replace("rate: 20", "rates: 20") + "- name: a\n  tenants: [{work: light}]",
            ':3: works.light.rates: unknown key: did you mean "rate"?',
        ),
        (
            CASES + "- name: a\n  tenants: [{work: lights}]",
            ':7: cases[0].tenants[0].work: there is no work "lights": did you mean "light"?',
        ),
        (
            CASES.replace("rate: 20", 'rate: "20"') + "- name: a\n  tenants: [{work: light}]",
            ":3: works.light.rate: Input should be a valid number",
        ),
        (
            CASES.replace("kind: compute", "kind: compute, layers: 0")
            + "- name: a\n  tenants: [{work: heavy}]",
            ":4: works.heavy.layers: Input should be greater than 0",
        ),
        (
            CASES + "- name: a\n  matrix: {n: [1, 1]}\n  tenants: [{work: light, count: $n}]",
            ":6: cases[0].name: a second case with the name",
        ),
        (
            CASES + "- name: a$n\n  matrix: {n: [1, 900]}\n  tenants: [{work: light, count: $n}]",
            ":8: cases[0].tenants[0].count: Input should be less than or equal to 64, or: Input",
        ),
        (
            CASES + "- name: a\n  matrix: {size: [1]}\n  tenants: [{work: light, count: $sizes}]",
            ':8: cases[0].tenants[0].count: the case has no variable $sizes: did you mean "size"?',
        ),
        (CASES + "- name: a\n  tenants: [{work: $x}]", "has no variable $x: it has no `matrix`"),
        (
            CASES + "- name: a\n  against: [b]\n  tenants: [{work: light}]",
            ':1: "a" is compared with "b", which is not a case',
        ),
        (
            CASES + "- name: a\n  tenants: [{work: light, count: 2}]",
            ':6: cases[0]: "a": it has several tenants: set `sharing`, which says how they share',
        ),
        (
            CASES + "- name: a\n  sharing: time-slicing\n  tenants: [{work: light, priority: 1}]",
            ':6: cases[0]: "a": limits and priorities of a tenant need MPS',
        ),
        (
            CASES + "- name: a\n  sharing: whole-gpus\n  tenants: [{work: light, gpus: 2}]",
            "only a command uses several GPUs",
        ),
        (
            CASES
            + "- name: a\n  tenants: [{work: light, profile: 1g}, {work: heavy, count: rest}]",
            "`count: rest` is for one kind of tenants",
        ),
        (CASES + "- {name: a, name: b, tenants: []}", 'duplicate field "cases[0].name"'),
        ("answers: [", ":1: "),
        ("[]", ":1: a scenario is a map"),
        (
            HEAD + "goals: [{figure: p98}]\ncases: [{name: a, tenants: [{work: light}]}]",
            ":5: goals[0].figure: Input should be 'throughput'",
        ),
        (
            HEAD + "goals: [{figure: p99, role: x}]\ncases: [{name: a, tenants: [{work: light}]}]",
            'a goal is for the role "x", which no tenant has',
        ),
    ],
)
def test_a_mistake_is_refused_with_its_line_its_place_and_what_is_right(
    text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_scenario(text, "test.yaml")
    assert f"test.yaml{said}" in str(caught.value) or said in str(caught.value)
    assert str(caught.value).startswith("test.yaml")


def test_pods_of_a_scenario_ask_for_their_own_devices_and_settings() -> None:
    mixed, both, uneven = plan(
        CASES
        + """\
- name: mixed
  tenants: [{work: light, profile: 1g, count: 2}, {work: heavy, profile: 3g}]
- name: whole
  sharing: whole-gpus
  tenants: [{work: light, count: 2}]
- name: uneven
  sharing: mps
  tenants: [{work: light, limits: {threads: 70}}, {work: heavy, priority: 1, after: 5}]
""",
        H100,
    ).strategies
    place = Place(image="bench:1", pull_secret="ci/registry")  # noqa: S106 (its name)
    asked = claim(mixed)
    devices = asked["spec"]["devices"]  # type: ignore[index]
    selectors = [
        request["exactly"]["selectors"][0]["cel"]["expression"] for request in devices["requests"]
    ]
    assert [text.split("'")[-2] for text in selectors] == ["1g.10gb", "1g.10gb", "3g.40gb"]
    assert len(devices["constraints"]) == 1
    pods = [pod(mixed, mixed.parts, number, place) for number in range(3)]
    used = [one["spec"]["containers"][0]["resources"]["claims"] for one in pods]  # type: ignore[index]
    assert used == [[{"name": "work", "request": f"gpu-{number}"}] for number in range(3)]
    assert pods[0]["spec"]["imagePullSecrets"] == [{"name": PULL_SECRET}]  # type: ignore[index]
    whole = claim(both)["spec"]["devices"]  # type: ignore[index]
    assert "constraints" not in whole
    assert [request["exactly"]["deviceClassName"] for request in whole["requests"]] == [
        "gpu.nvidia.com"
    ] * 2
    first, second = (pod(uneven, uneven.parts, number, place)["spec"] for number in range(2))
    given = {one["name"]: one["value"] for one in first["containers"][0]["env"]}  # type: ignore[index]
    assert given["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "70"
    given = {one["name"]: one["value"] for one in second["containers"][0]["env"]}  # type: ignore[index]
    assert given["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    more = second["activeDeadlineSeconds"] - first["activeDeadlineSeconds"]  # type: ignore[index]
    assert more == 5


def test_the_scenario_on_the_page_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs/choosing.md").read_text()
    (text,) = re.findall(r"```yaml\n(answers:.*?)```", page, re.DOTALL)
    names = [strategy.name for strategy in plan(text).strategies]
    assert names == ["alone", "two by MPS"]
