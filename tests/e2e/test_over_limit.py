"""Containers with more GPU memory than their limit are reported, or ended, on a real node.

Their processes are a real runtime's, in groups of a real kubelet. That they have memory of GPUs is
played, as there is no GPU to have it of.
"""

import pytest
from testbed.commands import wait_until

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.simulator.layout import ProcessKind
from dra_driver.usage.over_limit import KILLED, OVER
from e2e.jobs import Jobs
from e2e.kubernetes import needs
from e2e.needs import cannot_run
from e2e.scene import Scene
from e2e.shares import SHARED, Shares, config
from e2e.test_usage import jobs, metrics_of, scene, shares

__all__ = ["jobs", "scene", "shares"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

KINDS = {"timeSlicing": ProcessKind.COMPUTES, "mps": ProcessKind.BY_MPS}


also_by_the_other = pytest.mark.long("tests/e2e/test_over_limit.py")


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("timeSlicing", "end"),
        ("mps", "report"),
        pytest.param("timeSlicing", "report", marks=also_by_the_other),
        pytest.param("mps", "end", marks=also_by_the_other),
    ],
)
def test_who_takes_ten_times_as_much_is_ended_or_reported_and_its_neighbour_goes_on(
    shares: Shares, scene: Scene, jobs: Jobs, kind: str, action: str
) -> None:
    if kind == "mps" and not scene.node.can_run_mps:
        cannot_run("no MPS daemon can run here")
    of_all = {} if kind == "mps" else {"memory": "equal"}
    own = {**of_all, "rename": SHARED, "overLimit": action}
    said = config(kind, 16, devices=["0"], resource=own)
    shares.set(said, 16)
    limit = shares.memory_mib()
    greedy, modest = (scene.pod(name, limits={SHARED: 1}) for name in ("greedy", "modest"))
    scene.running(greedy, modest)
    before = scene.container_ids(greedy, modest)
    device = scene.gpus(greedy)[0]
    jobs.start(modest, device, limit, KINDS[kind], 1)
    jobs.start(greedy, device, 10 * limit, KINDS[kind], 1)
    if action == "report":
        note = scene.warning(greedy, OVER)
        metric = 'nvidia_dra_memory_over_limit_total{action="reported"'
        assert metric in metrics_of(scene, greedy)
        assert scene.container_ids(greedy, modest) == before
    else:
        note = scene.warning(greedy, KILLED)
        wait_until(
            lambda: scene.container_ids(greedy) != {f"{greedy}/ctr": before[f"{greedy}/ctr"]},
            "the container to be started again",
            timeout=120,
        )
        scene.running(greedy)
        assert scene.container_ids(modest) == {f"{modest}/ctr": before[f"{modest}/ctr"]}
    assert f"{10 * limit} MiB of gpu-0, and its limit is {limit} MiB" in note
