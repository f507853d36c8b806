"""How small a share may be, what is asked of the API for a case, and what a cluster offers."""

import pytest
import yaml
from msgspec.structs import replace

from bench_reports import CARD, case, strategy
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.bench.model import Sweep
from dra_driver.bench.pods.manifests import Place, claim, pod
from dra_driver.bench.report.sweep import as_claim, as_share_config, judged
from dra_driver.bench.scenarios.plan import Plan, planned
from dra_driver.bench.scenarios.read import find_scenario, shipped
from dra_driver.bench.strategies import Sharing
from dra_driver.bench.workload import Workload

MEMORY = 81920
PROFILES = {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}
PLACE = Place(image="bench:1", shares="nvidia.com/gpu")


def plan_of(name: str) -> Plan:
    _, scenario = find_scenario(name)
    profiles = PROFILES if name == "enough-mig" else {}
    return planned(name, scenario, memory_mib=MEMORY, profiles=profiles, obstacle=lambda _: "")


def judged_of(plan: Plan, *p99: float, interrupted: bool = False) -> Sweep:
    """Judge the steps of a plan, the last ones, whose tenants had these latencies."""
    steps = plan.strategies[-len(p99) :]
    cases = [
        case(one, [20.0] * one.tenants, worst, 50.0) for one, worst in zip(steps, p99, strict=True)
    ]
    told = judged(plan.study, cases, card=CARD, profiles=PROFILES, interrupted=interrupted)
    assert told is not None
    return told


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("enough-")])
def test_every_step_is_a_larger_share_and_a_valid_config(name: str) -> None:
    plan = plan_of(name)
    found = [one for one in plan.strategies if not one.name.startswith(("alone", "4g"))]
    told = judged_of(replace(plan, strategies=tuple(found)), *[10.0] * len(found))
    shares = [step.share_percent for step in told.steps]
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert all(step.holds for step in told.steps)
    assert told.chosen == found[0]
    for one in found:
        for text in (as_claim(one), as_share_config(one)):
            # A step of one share is the whole GPU, of which a share config is warned.
            found_in = [finding.text for finding in check_manifest(text).findings]
            assert all("one replica is the whole device" in one for one in found_in)
    assert check_manifest(told.share_config).configs == 1


def test_a_sweep_that_was_interrupted_chooses_nothing() -> None:
    told = judged_of(plan_of("enough-threads"), 10.0, 10.0, interrupted=True)
    assert (told.chosen, told.claim, told.share_config) == (None, "", "")
    assert told.note.startswith("The run was interrupted")


def test_simulated_gpus_and_scenarios_without_a_goal_have_no_smallest_share() -> None:
    plan = plan_of("enough-threads")
    simulated = CARD.model_copy(update={"is_simulated": True})
    assert judged(plan.study, (), card=simulated, profiles={}) is None
    assert judged(plan_of("cards").study, (), card=CARD, profiles={}) is None


def chosen_of(*p99: float) -> tuple[str, str]:
    told = judged_of(plan_of("enough-threads"), *p99)
    return (told.chosen.name if told.chosen else "", told.note)


def test_the_smallest_share_that_holds_with_all_larger_ones_is_chosen() -> None:
    assert chosen_of(190.0, 99.0, 20.0) == ("75 % of the SMs", "")
    name, note = chosen_of(40.0, 190.0, 20.0)
    assert name == "100 % of the SMs"
    assert note.startswith("A smaller share met it by chance")
    name, note = chosen_of(190.0, 190.0, 190.0)
    assert name == ""
    assert note.startswith("No share meets the goal")


def test_a_share_holds_only_if_it_does_in_every_round() -> None:
    plan = plan_of("enough-threads")
    whole = plan.strategies[-1]
    cases = [
        case(whole, [20.0], p99, 50.0).model_copy(update={"repetition": at})
        for at, p99 in enumerate((20.0, 190.0))
    ]
    told = judged(plan.study, cases, card=CARD, profiles={})
    assert told is not None
    assert [(step.worst_ms, step.holds) for step in told.steps] == [(190.0, False)]


def test_the_chosen_share_is_a_claim_and_a_share_config() -> None:
    quarter = strategy(Sharing.MPS_LIMITS, 4, thread_percentage=25)
    spec = yaml.safe_load(as_claim(quarter))["spec"]["devices"]
    parameters = spec["config"][0]["opaque"]["parameters"]
    assert parameters["sharing"]["mpsConfig"] == {"defaultActiveThreadPercentage": 25}
    assert yaml.safe_load(as_share_config(quarter))["sharing"] == {
        "mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
    }
    assert as_share_config(quarter).startswith("# Limits memory too, which was not measured: 1/4")
    memory = strategy(Sharing.MPS_LIMITS, 8, memory_mib=10240)
    assert yaml.safe_load(as_share_config(memory))["sharing"]["mps"]["compute"] == "free"


def test_tenants_of_one_gpu_name_one_claim_and_have_no_rights() -> None:
    four = strategy(Sharing.MPS, 4)
    made = pod(four, four.parts, 3, PLACE)
    spec = made["spec"]
    assert isinstance(spec, dict)
    assert spec["resourceClaims"] == [{"name": "work", "resourceClaimName": "work"}]
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["resources"] == {"claims": [{"name": "work"}]}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (path,) = container["env"]
    assert path["value"].split(":")[-1] == "/usr/local/nvidia/lib64"
    assert container["command"][:3] == ["python3", "-m", "dra_driver.bench.tenant.program"]


def test_a_command_of_the_users_is_held_until_the_beginning() -> None:
    work = Workload.model_validate(
        {"kind": "command", "command": ("work", "--csv={latencies}"), "latencies": "json"}
    )
    alone = strategy(Sharing.ALONE, work=work)
    own = pod(alone, alone.parts, 0, PLACE)["spec"]["containers"][0]  # type: ignore[index]
    words = ["work", "--csv=/dev/termination-log"]
    assert own["command"][1:] == [
        *("-m", "dra_driver.bench.tenant.supervised", "--start", "/bench/start"),
        *words,
    ]
    assert "env" not in own
    other = replace(PLACE, command_image="theirs:2")
    theirs = pod(alone, alone.parts, 0, other)["spec"]["containers"][0]  # type: ignore[index]
    assert theirs["image"] == "theirs:2"
    assert theirs["command"][:2] == ["sh", "-c"]
    assert theirs["command"][-3:] == ["/bench/start", *words]
    ours = strategy(Sharing.ALONE)
    tenant = pod(ours, ours.parts, 0, other)["spec"]["containers"][0]  # type: ignore[index]
    assert tenant["image"] == PLACE.image


def test_shares_are_asked_for_by_their_resource_name() -> None:
    shares = strategy(Sharing.SHARES, 2)
    assert claim(shares) is None
    spec = pod(shares, shares.parts, 0, PLACE)["spec"]
    assert spec["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}  # type: ignore[index]
