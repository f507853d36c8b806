"""Every shipped scenario runs over pods, case by case, on simulated GPUs."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.bench.model import Case, read_report
from dra_driver.bench.pods.manifests import LABEL
from dra_driver.bench.scenarios.read import find_scenario, shipped
from dra_driver.bench.strategies import UNDER_MPS, Sharing
from e2e.bench_run import Run, loaded
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

STRATEGIES = {
    Sharing.ALONE: "Exclusive",
    Sharing.WHOLE_GPUS: "Exclusive",
    Sharing.MIG: "Exclusive",
    Sharing.TIME_SLICING: "TimeSlicing",
}
"""What the claim's status says; the others are by MPS."""


SWEEPS = frozenset({"enough-memory", "enough-mig", "enough-replicas", "enough-time-slices"})
"""Scenarios whose cases are of the same kinds as those of others."""


def has_run_as_it_says(case: Case) -> None:
    """See in what was found of a case that its pods ran on devices of their own, and shared so."""
    strategy = case.strategy
    assert (case.state, case.reason) == ("passed", ""), strategy.name
    running, devices, *sharing = case.seen
    assert running == f"{strategy.tenants} of {strategy.tenants} pods running"
    names = devices.split(", ")
    if strategy.sharing is Sharing.MIG:
        profiles = Counter(profile.replace(".", "") for profile in strategy.profiles)
        assert Counter(name.partition("-mig-")[2].split("-")[0] for name in names) == profiles
        assert len({name.partition("-mig-")[0] for name in names}) == 1  # all of one GPU
    else:
        assert len(names) == strategy.gpus
    said = STRATEGIES.get(strategy.sharing, "MPS")
    assert all(json.loads(one)["strategy"] == said for one in sharing), sharing
    assert sharing


@pytest.mark.long(
    "tests/contract/bench/test_scenarios.py"
    "::test_tenants_of_a_mixed_layout_have_mig_devices_of_their_sizes"
)
@pytest.mark.driver(MIG="on-demand")
@needs(Feature.COUNTERS)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in shipped() if name not in SWEEPS])
def test_all_cases_of_a_shipped_scenario_run_over_pods(
    name: str, scene: Scene, image_archive: Path, tmp_path: Path
) -> None:
    image = loaded(scene.node.cluster, image_archive)
    words = ("--scenario", name, "--repetitions", "1", "--seconds", "0.2")
    with Run(scene.node, image, tmp_path, *words) as run:
        out = run.end(timeout=840)
    report = read_report(run.output.with_suffix(".json"))
    _, scenario = find_scenario(name)
    spare = {one.instead for one in scenario.cases if one.instead}
    cases = {case.strategy.name: case for case in report.cases}
    assert cases.keys() >= {one.name for one in scenario.cases} - spare
    for case in cases.values():
        if scene.node.can_run_mps or case.strategy.sharing not in UNDER_MPS:
            has_run_as_it_says(case)
    assert "These GPUs are simulated" in out
    assert scene.api.all("Namespace", labelSelector=LABEL) == []
    assert not run.output.with_suffix(".png").exists()
