"""What is said of made-up claims hangs together: an answer has its reasons, a reason its answer."""

from hypothesis import given
from hypothesis import strategies as st

from allocation_cases import NODE, Case, case
from dra_driver.admin.api.nodes import Node
from dra_driver.admin.api.slices import read_slice
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.answers import Cluster, NodeAnswer, answer_on
from dra_driver.admin.explain.demand import Demand, selectors_by_class
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.explain.requests import ALL, Claim, read_claim
from dra_driver.admin.explain.search import SelectorCache
from dra_driver.admin.explain.summary import findings
from dra_driver.admin.explain.view import Explanation, as_json, as_text
from obstacles import without

MOST_ROUNDS = 20
"""Each takes all away that is named; what was hidden behind it is named then."""

cases = st.integers(min_value=0, max_value=10**9).map(case)


def explanation(one: Case) -> Explanation:
    """What is said of a case, as of a pod that has all its claims."""
    node = Node.of(NODE)
    cluster = Cluster(
        nodes=[node],
        pools=Pools(map(read_slice, one.slices)),
        classes=selectors_by_class(one.classes),
        allocated=AllocatedState.of(one.taken),
    )
    claims: tuple[Claim, ...] = tuple(map(read_claim, one.claims))
    demand = Demand(name="pod team/one", claims=claims)
    answers = (answer_on(cluster, node, claims, (), SelectorCache()),)
    return Explanation(demand=demand, answers=answers, findings=tuple(findings(demand, answers)))


def answer(one: Case) -> NodeAnswer:
    return explanation(one).answers[0]


@given(cases)
def test_only_pods_that_do_not_fit_have_a_cause(one: Case) -> None:
    found = explanation(one)
    assert found.fits is not None
    assert bool(found.findings) != found.fits
    assert (found.answers[0].picks is not None) == found.fits


@given(cases)
def test_every_answer_can_be_shown(one: Case) -> None:
    found = explanation(one)
    first, *_ = as_text(found, wide=True).splitlines()
    assert first.startswith("pod team/one: fits on " if found.fits else "pod team/one: does not")
    assert f'"fits": {str(found.fits).lower()}' in as_json(found)


@given(cases)
def test_a_device_is_refused_to_the_only_request_for_one_if_and_only_if_it_has_a_reason(
    one: Case,
) -> None:
    (claim, *_) = one.claims
    requests = claim["spec"]["devices"]["requests"]
    request = requests[0].get("exactly", {})
    if len(requests) > 1 or request.get("allocationMode") == ALL or not request:
        return
    request["count"] = 1
    claim["spec"]["devices"].pop("constraints", None)
    found = answer(Case(one.slices, [claim], one.taken, one.classes))
    if found.given_up:
        return
    if found.picks is None:
        (of_request,) = found.requests
        assert not of_request.usable
        assert all(each.reason is not None and each.reason.text for each in of_request.devices)


@given(cases)
def test_exclusive_devices_are_not_allocated_again(one: Case) -> None:
    found = answer(one)
    allocated = AllocatedState.of(one.taken)
    admin = {
        request["name"]
        for claim in one.claims
        for request in claim["spec"]["devices"]["requests"]
        if request.get("exactly", {}).get("adminAccess")
    }
    for pick in found.picks or ():
        assert pick.device not in allocated.whole or pick.request in admin


@given(cases)
def test_what_fits_still_fits_with_less_in_use(one: Case) -> None:
    picks, ended = answer(one).picks, AllocatedState.of(one.taken[:1])
    # Cases take more of counters than there is: a device without a claim may find its own taken.
    if picks is None or any(ended.has(pick.device) for pick in picks):
        return
    fewer = answer(Case(one.slices, one.claims, one.taken[1:], one.classes))
    # Another device may come first then, and a selector fail on it.
    assert fewer.picks is not None or fewer.given_up


@given(cases)
def test_without_the_named_cause_it_fits_or_another_is_named(one: Case) -> None:
    told: list[str] = []
    found = explanation(one)
    while found.fits is False:
        said = f"{found.findings} {found.answers[0].requests}"
        assert said not in told, "what was named is not in the way"
        told.append(said)
        one = without(one, found.answers[0])
        found = explanation(one)
    assert len(told) <= MOST_ROUNDS
