"""`dra-driver bench pods`: pods of every strategy run under it on simulated GPUs, and go again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from image.command import load
from image.recipe import NAME, version
from testbed.commands import wait_until
from testbed.machine import DRIVER
from testbed.node import GpuNode

from dra_driver.bench.manifests import LABEL, Place
from dra_driver.bench.pods import PodRunner
from dra_driver.bench.strategies import ALONE, Sharing, Strategy
from dra_driver.bench.works import Work, WorkKind
from dra_driver.doctor.cluster_facts import Feature
from dra_driver.kube.connect import connect
from dra_driver.simulator import profile
from e2e.kubernetes import needs
from e2e.scene import Scene
from e2e.shares import GPU, config, shares_of

pytestmark = pytest.mark.e2e

IMAGE = f"docker.io/library/{NAME}:{version()}"
WORK = Work(kind=WorkKind.INFERENCE, seconds=0.5, warm_up=0.0)
PROFILE = "1g.10gb"


@pytest.fixture(scope="module")
def image(node: GpuNode, image_archive: Path) -> str:
    """The driver's image, in which a tenant finds Python; simulated GPUs do not need the extra."""
    load(node.cluster, image_archive)
    return IMAGE


@pytest.fixture
def runner(scene: Scene, image: str) -> Iterator[PodRunner]:
    kubeconfig = Path(scene.node.cluster.env["KUBECONFIG"])
    with closing(connect(kubeconfig, "", environment={})) as client:
        runner = PodRunner(client, Place(image=image), print, patience=90)
        with runner:
            yield runner
        assert scene.api.find("Namespace", runner.namespace, None) is None


def strategies(*, can_run_mps: bool) -> list[tuple[Strategy, str]]:
    """Strategies, and what the claim's status says of each."""
    found = [
        (ALONE, '"strategy": "Exclusive"'),
        (Strategy(sharing=Sharing.TIME_SLICING, tenants=2), '"strategy": "TimeSlicing"'),
        (Strategy(sharing=Sharing.MIG, tenants=2, profile=PROFILE), '"strategy": "Exclusive"'),
        (
            Strategy(sharing=Sharing.MIG_TIME_SLICING, tenants=2, profile=PROFILE),
            '"strategy": "TimeSlicing"',
        ),
    ]
    if can_run_mps:
        found += [
            (Strategy(sharing=Sharing.MPS, tenants=2), '"strategy": "MPS"'),
            (
                Strategy(
                    sharing=Sharing.MPS_LIMITS, tenants=2, thread_percentage=30, memory_mib=2048
                ),
                '"activeThreadPercentage": 30',
            ),
            (
                Strategy(sharing=Sharing.MIG_MPS, tenants=2, profile=PROFILE),
                '"strategy": "MPS"',
            ),
        ]
    return found


@needs(Feature.COUNTERS)
def test_pods_of_every_strategy_run_under_it_and_give_no_results(
    runner: PodRunner, scene: Scene
) -> None:
    card = runner.probe()
    assert card.is_simulated
    assert "H100" in card.name
    assert runner.offer.profiles[PROFILE] == 7
    for strategy, said in strategies(can_run_mps=scene.node.can_run_mps):
        assert runner.obstacle(strategy) == ""
        case = runner.run(strategy, WORK)
        assert (case.state, case.reason) == ("passed", ""), strategy.name
        assert case.tenants == ()
        assert case.seen[0] == f"{strategy.tenants} of {strategy.tenants} pods running"
        devices = case.seen[1].split(", ")
        assert len(devices) == (strategy.tenants if strategy.sharing is Sharing.MIG else 1)
        assert said in case.seen[2], case.seen
        assert scene.api.all("Pod", runner.namespace) == []
        assert scene.api.all("ResourceClaim", runner.namespace) == []


def test_a_strategy_that_the_cluster_has_not_is_said_with_the_reason(runner: PodRunner) -> None:
    shares = Strategy(sharing=Sharing.SHARES, tenants=2)
    assert runner.obstacle(shares).startswith("name the resource that pods ask for")
    absent = Strategy(sharing=Sharing.MIG, tenants=2, profile="1g.5gb")
    assert runner.obstacle(absent).startswith("no MIG device 1g.5gb is published; there are: 1g.10")


def test_a_pod_that_does_not_run_is_a_failed_case_with_the_reason(scene: Scene) -> None:
    kubeconfig = Path(scene.node.cluster.env["KUBECONFIG"])
    place = Place(image="registry.local/absent:1", pull_policy="Never")
    with (
        closing(connect(kubeconfig, "", environment={})) as client,
        PodRunner(client, place, print, patience=15) as runner,
    ):
        case = runner.run(ALONE, WORK)
    assert case.state == "failed"
    assert "pod tenant-0 is not ready" in case.reason
    assert "registry.local/absent:1" in case.reason


def test_an_interrupted_run_leaves_nothing(scene: Scene, image: str, tmp_path: Path) -> None:
    kubeconfig = scene.node.cluster.env["KUBECONFIG"]
    words = ("pods", "--image", image, "--kubeconfig", kubeconfig, "--strategies", "time-slicing")
    more = ("--tenants", "2", "--seconds", "300", "--output", tmp_path / "out")
    process = subprocess.Popen(
        [DRIVER, "bench", *words, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )

    def run_of() -> str | None:
        found = scene.api.all("Namespace", labelSelector=LABEL)
        return found[0]["metadata"]["name"] if found else None

    try:
        namespace = wait_until(run_of, "the namespace of the run", timeout=60)

        def both_run() -> bool:
            pods = scene.api.all("Pod", namespace)
            running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            return len(running) == 2

        wait_until(both_run, "two tenants to run", timeout=120)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    sys.stdout.write(out)
    assert process.returncode == 130, out
    assert "SIGINT: ending the case that runs, and cleaning up" in out
    assert "the run was interrupted" in out
    assert scene.api.find("Namespace", namespace, None) is None
    assert (tmp_path / "out.json").exists()


@pytest.mark.own_cluster
@needs(Feature.EXTENDED_RESOURCE)
@pytest.mark.parametrize("gpus", [1, 2])
def test_shares_are_measured_where_they_are_of_one_gpu(
    gpus: int, image_archive: Path, tmp_path: Path
) -> None:
    some = profile.load("h100x8")
    some = some.model_copy(update={"gpus": some.gpus[:gpus]})
    path = tmp_path / "profile.yaml"
    path.write_text(profile.dump(some))
    cluster = f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-s{gpus}"
    with shares_of(str(path), tmp_path, cluster) as shares:
        shares.set(config("timeSlicing", 3), 3 * gpus)
        load(shares.node.cluster, image_archive)
        kubeconfig = Path(shares.node.cluster.env["KUBECONFIG"])
        place = Place(image=IMAGE, shares=GPU)
        with (
            closing(connect(kubeconfig, "", environment={})) as client,
            PodRunner(client, place, print, patience=90) as runner,
        ):
            assert runner.offer.shares == {GPU: 3}
            four = Strategy(sharing=Sharing.SHARES, tenants=4)
            assert runner.obstacle(four) == f"a GPU is divided into 3 shares of {GPU}"
            case = runner.run(Strategy(sharing=Sharing.SHARES, tenants=2), WORK)
    if gpus == 1:
        assert (case.state, case.reason) == ("passed", "")
        assert case.seen == ("2 of 2 pods running",)
    else:
        assert case.state == "failed"
        assert case.reason.startswith("the tenants are on 2 GPUs, so they share none")
