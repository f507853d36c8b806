"""`dra-driver bench pods`: pods of every strategy run under it on simulated GPUs, and go again."""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.commands import wait_until
from testbed.node import GpuNode

from bench_processes import scenario_of
from bench_reports import strategy
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.bench.model import Case
from dra_driver.bench.pods.manifests import LABEL, Place
from dra_driver.bench.pods.offer import Offer
from dra_driver.bench.pods.runner import PodRunner
from dra_driver.bench.strategies import Sharing
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.kube.connect import connect
from e2e.bench_run import Run, loaded
from e2e.conftest import h100x1
from e2e.kubernetes import needs
from e2e.scene import Scene
from e2e.shares import GPU, Shares, config, shares_of

pytestmark = [pytest.mark.e2e, pytest.mark.stream("own")]

WORK = Workload(kind=WorkloadKind.INFERENCE, seconds=0.5, warm_up=0.0)
ALONE = strategy(Sharing.ALONE, work=WORK)
PROFILE = "1g.10gb"


@pytest.fixture(scope="module")
def image(node: GpuNode, image_archive: Path) -> str:
    """The driver's image with the benchmark's code: what a tenant needs on simulated GPUs."""
    return loaded(node.cluster, image_archive)


@pytest.fixture
def runner(scene: Scene, image: str) -> Iterator[PodRunner]:
    kubeconfig = Path(scene.node.cluster.env["KUBECONFIG"])
    with closing(connect(kubeconfig, "", environment={})) as client:
        runner = PodRunner(client, Place(image=image), print, patience=90)
        with runner:
            yield runner
        assert scene.api.find("Namespace", runner.namespace, None) is None


@pytest.mark.long(
    "tests/e2e/test_bench_pods.py::test_an_interrupted_run_keeps_what_was_done_and_leaves_nothing"
)
@pytest.mark.driver(MIG="on-demand")
@needs(Feature.COUNTERS)
def test_what_the_cluster_has_not_is_said_with_the_reason(runner: PodRunner) -> None:
    shares = strategy(Sharing.SHARES, 2)
    assert runner.obstacle(shares).startswith("name the resource that pods ask for")
    absent = strategy(Sharing.MIG, 2, profile="1g.5gb")
    assert runner.obstacle(absent).startswith("there is no MIG device 1g.5gb; there are: 1g.10")
    runner.offer = Offer(profiles={PROFILE: 7})
    card = runner.probe()
    assert "H100" in card.name, "one of the MIG devices says what the card is"
    assert runner.obstacle(ALONE) == "no whole GPU is published"
    runner.card = card.model_copy(update={"name": "NVIDIA A100 80GB PCIe"})
    case = runner.run(ALONE, 1)
    assert case.state == "failed"
    assert case.reason.endswith("cannot be compared; name one node with --node")


def namespace_of_a_run(scene: Scene) -> str:
    """The namespace of the run that is under way."""

    def found() -> str | None:
        namespaces = scene.api.all("Namespace", labelSelector=LABEL)
        return namespaces[0]["metadata"]["name"] if namespaces else None

    return str(wait_until(found, "the namespace of the run", timeout=60))


def await_pod(
    scene: Scene, namespace: str, is_it: Callable[[dict[str, Any]], bool], phase: str
) -> None:
    """Wait until a pod of a run is in a phase."""
    wait_until(
        lambda: any(
            is_it(pod) and pod["status"].get("phase") == phase
            for pod in scene.api.all("Pod", namespace)
        ),
        f"a pod to be {phase}",
        timeout=120,
    )


def test_an_interrupted_run_keeps_what_was_done_and_leaves_nothing(
    scene: Scene, image: str, tmp_path: Path
) -> None:
    # Alone it ends at once; the second of two tenants does not.
    program = "import socket, time; time.sleep(300 * (socket.gethostname() == 'tenant-1'))"
    scenario = scenario_of(tmp_path / "s.yaml", "time-slicing", "python3", "-c", program)
    with Run(scene.node, image, tmp_path, "--scenario", str(scenario)) as run:
        namespace = namespace_of_a_run(scene)
        await_pod(scene, namespace, lambda pod: pod["metadata"]["name"] == "tenant-1", "Running")
        run.process.send_signal(signal.SIGINT)
        out = run.end()
    assert run.process.returncode == 130
    assert "SIGINT: ending what runs, and cleaning up" in out
    assert "the run was interrupted" in out
    assert run.states() == ["passed"]
    assert scene.api.find("Namespace", namespace, None) is None


@pytest.mark.long(
    "tests/e2e/test_bench_pods.py::test_an_interrupted_run_keeps_what_was_done_and_leaves_nothing"
)
def test_a_run_that_is_interrupted_before_its_first_case_says_that_there_is_no_report(
    scene: Scene, tmp_path: Path
) -> None:
    with Run(scene.node, "registry.local/absent:1", tmp_path) as run:
        namespace = namespace_of_a_run(scene)
        await_pod(scene, namespace, lambda _: True, "Pending")
        run.process.send_signal(signal.SIGTERM)
        out = run.end()
    assert run.process.returncode == 130
    assert "interrupted before anything was measured: there is no report" in out
    assert list(tmp_path.iterdir()) == []
    assert scene.api.find("Namespace", namespace, None) is None


def shares_case(shares: Shares, image_archive: Path) -> Case:
    """Run a case of shares on a node that has three of each GPU; there is no whole one."""
    kubeconfig = Path(shares.node.cluster.env["KUBECONFIG"])
    place = Place(image=loaded(shares.node.cluster, image_archive), shares=GPU)
    with (
        closing(connect(kubeconfig, "", environment={})) as client,
        PodRunner(client, place, print, patience=90) as runner,
    ):
        assert runner.offer.shares == {GPU: 3}
        four = strategy(Sharing.SHARES, 4)
        assert runner.obstacle(four) == f"a GPU is divided into 3 shares of {GPU}"
        return runner.run(strategy(Sharing.SHARES, 2, WORK), 1)


@pytest.mark.long(
    "tests/unit/bench/test_sweep.py::test_shares_are_asked_for_by_their_resource_name"
)
@needs(Feature.EXTENDED_RESOURCE)
@pytest.mark.parametrize("gpus", [1, 2])
def test_shares_are_measured_where_they_are_of_one_gpu(
    gpus: int, lasting: Cluster, image_archive: Path, tmp_path: Path
) -> None:
    with shares_of(h100x1(tmp_path, gpus), tmp_path, lasting) as shares:
        shares.set(config("timeSlicing", 3), 3 * gpus)
        case = shares_case(shares, image_archive)
        if gpus == 1:
            assert (case.state, case.reason) == ("passed", "")
            assert case.seen[0] == "2 of 2 pods running"
            assert case.seen[1].count("gpu-0-share-") == 2
            assert '"strategy": "TimeSlicing"' in case.seen[2]
            if shares.node.can_run_mps:
                shares.set(config(), 0)
                shares.set(config("mps", 3), 3)
                case = shares_case(shares, image_archive)
                assert (case.state, case.reason) == ("passed", "")
                assert '"activeThreadPercentage": 33' in case.seen[2]
                assert "MPS" in case.seen[2]
        else:
            assert case.state == "failed"
            assert case.reason.startswith("the tenants are on 2 GPUs, so they share none")
