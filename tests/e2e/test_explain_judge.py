"""`dra-driver explain` finds what the scheduler's own allocator finds: the same devices or none."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.commands import TestbedError, run
from testbed.machine import DRIVER

import judge
from allocation_cases import NODE, Case, case
from cel_cases import DO_NOT, FAIL, SELECT, selecting
from cel_expressions import expression
from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.slices import read_slice
from dra_driver.admin.cel.selector import Selector
from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.answers import Cluster, NodeAnswer, answer_on
from dra_driver.admin.explain.demand import selectors_by_class
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.explain.requests import read_claim
from dra_driver.admin.explain.search import GivenUpError, Scene, SelectorCache, picks
from obstacles import without
from readiness import lacks
from sampling import examples

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

CLASSES = Path(__file__).parents[2] / "deviceclasses/extended-resources.yaml"
CASES = examples(4000)
CASES_CLEARED = examples(500)
EXPRESSIONS = examples(4000)
FIRST = 20_000

Answer = tuple[str, list[tuple[str, str, str]]]
"""Whether claims fit, and the claim, request and device of each pick."""


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return judge.fetch()
    except TestbedError as error:
        lacks("judge", str(error))


def ours(one: Case) -> Answer:
    node = Node.of(NODE)
    scene = Scene(
        node=node,
        pools=Pools(map(read_slice, one.slices)).on(node),
        classes=selectors_by_class(one.classes),
        allocated=AllocatedState.of(one.taken),
        selectors=SelectorCache(),
    )
    try:
        found = picks(scene, list(map(read_claim, one.claims)))
    except GivenUpError:
        return "given up", []
    if found is None:
        return "does not fit", []
    return "fits", [(pick.claim, pick.request, str(pick.device)) for pick in found]


def theirs(one: Case, said: dict[str, Any]) -> Answer:
    error = said.get("error", "")
    # That pools are invalid ends the search on this node alone.
    if error and not error.startswith("invalid resource pools"):
        return "given up", []
    if not said["fits"]:
        return "does not fit", []
    return "fits", [
        (
            f"team/{claim['metadata']['name']}",
            device["request"],
            f"{device['driver']}/{device['pool']}/{device['device']}",
        )
        for claim, devices in zip(one.claims, said["devices"], strict=True)
        for device in devices
    ]


def test_it_picks_what_the_scheduler_picks(program: Path) -> None:
    cases = {seed: case(seed) for seed in range(FIRST, FIRST + CASES)}
    said = judge.answers(program, (one.question() for one in cases.values()))
    expected = {
        seed: theirs(one, each) for (seed, one), each in zip(cases.items(), said, strict=True)
    }
    assert {
        seed: (ours(one), expected[seed])
        for seed, one in cases.items()
        if ours(one) != expected[seed]
    } == {}
    kinds = [kind for kind, _ in expected.values()]
    assert min(kinds.count(kind) for kind in ("fits", "does not fit", "given up")) > CASES / 10


def answered(one: Case) -> NodeAnswer:
    node = Node.of(NODE)
    cluster = Cluster(
        nodes=[node],
        pools=Pools(map(read_slice, one.slices)),
        classes=selectors_by_class(one.classes),
        allocated=AllocatedState.of(one.taken),
    )
    return answer_on(cluster, node, list(map(read_claim, one.claims)), (), SelectorCache())


def test_removing_the_named_cause_helps_or_names_another(program: Path) -> None:
    asked: list[Case] = []
    told: list[NodeAnswer] = []
    for seed in range(FIRST, FIRST + CASES_CLEARED):
        one = case(seed)
        answer = answered(one)
        while not answer.fits and not answer.unknown:
            said, one = str(answer), without(one, answer)
            answer = answered(one)
            asked.append(one)
            told.append(answer)
            assert str(answer) != said
    said_of = judge.answers(program, (one.question() for one in asked))
    for one, answer, said in zip(asked, told, said_of, strict=True):
        kind, devices = theirs(one, said)
        assert (kind == "fits") == answer.fits
        picked = [(pick.claim, pick.request, str(pick.device)) for pick in answer.picks or ()]
        assert picked == devices


def test_a_constraint_gets_shares_of_different_gpus(program: Path, tmp_path: Path) -> None:
    config = tmp_path / "shares.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    words = ("--profile=t4x4", "--node-name=node-1", f"--share-config={config}", "-ojson")
    slices = json.loads(run((DRIVER, "inspect", "--slices", *words)))
    classes = list(yaml.safe_load_all(CLASSES.read_text()))
    asked = {"deviceClassName": "gpu.resource.nvidia.com", "allocationMode": "ExactCount"}
    requests = [{"name": f"r{n}", "exactly": asked | {"count": 1}} for n in range(5)]

    def asking(number: int) -> Case:
        devices = {
            "requests": requests[:number],
            "constraints": [{"distinctAttribute": "gpu.nvidia.com/uuid"}],
        }
        claim = {"metadata": {"namespace": "team", "name": "one"}, "spec": {"devices": devices}}
        return Case(slices=slices["items"], claims=[claim], taken=[], classes=classes)

    four, five = judge.answers(program, (asking(number).question() for number in (4, 5)))
    gpus = {device["device"].partition("-share")[0] for device in four["devices"][0]}
    assert (len(gpus), five["fits"]) == (4, False)


def test_selectors_are_worth_what_the_tests_say(program: Path) -> None:
    expressions = (*SELECT, *DO_NOT, *FAIL)
    found = dict(zip(expressions, judge.answers(program, map(selecting, expressions)), strict=True))
    errors = {text: said.get("error", "") for text, said in found.items()}
    assert [text for text, error in errors.items() if "compile error" in error] == []
    assert [text for text in SELECT if not found[text]["fits"]] == []
    assert [text for text in DO_NOT if found[text]["fits"] or errors[text]] == []
    assert [text for text in FAIL if "CEL runtime error" not in errors[text]] == []


def worth(one: str) -> str:
    """What a selector comes to here."""
    (device,) = read_slice(selecting(one)["slices"][0]).devices
    try:
        return "holds" if Selector.of(one).selects(device.subject) else "is false"
    except EvaluationError:
        return "fails"
    except NotUnderstoodError:
        return "is not understood"


def test_made_up_selectors_are_worth_what_the_scheduler_says(program: Path) -> None:
    expressions = [expression(seed) for seed in range(EXPRESSIONS)]
    expected = {}
    for one, said in zip(
        expressions, judge.answers(program, map(selecting, expressions)), strict=True
    ):
        error = said.get("error", "")
        if "compile error" in error:
            continue  # which the API server would not have stored
        expected[one] = "fails" if error else "holds" if said["fits"] else "is false"
    found = {one: worth(one) for one in expected}
    unknown = [one for one, said in found.items() if said == "is not understood"]
    assert len(unknown) < EXPRESSIONS / 100
    assert found == expected | dict.fromkeys(unknown, "is not understood")
    kinds = list(expected.values())
    assert min(kinds.count(kind) for kind in ("holds", "is false", "fails")) > EXPRESSIONS / 10
