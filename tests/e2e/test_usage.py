"""Who uses which GPU, on a real node: containers of a real runtime, in groups of a real kubelet.

One pod has a whole GPU, two have a share of one GPU each, one is a client of MPS, one has a MIG
device. Who has more memory than its limit is reported, or ended. That their processes have memory
of GPUs is played, as there is no GPU to have it of.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.commands import run, wait_until
from testbed.machine import DRIVER
from testbed.pods import migs_seen

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.simulator.layout import ProcessKind
from dra_driver.usage.over_limit import KILLED
from e2e.jobs import MIB, Jobs, groups_of
from e2e.kubernetes import needs
from e2e.scene import NAMESPACE, Scene
from e2e.shares import GPU, SHARED, Shares, config, shares_of, unshared_scene
from e2e.sharing import claim_spec, mps_limits
from e2e.test_mig import SMALL, migs, template

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]


@pytest.fixture(scope="module")
def shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    settings = {"USAGE_METRICS": "true", "HTTP_ENDPOINT": "127.0.0.1:0"}
    with shares_of("h100x8", tmp_path_factory.mktemp("usage"), lasting, **settings) as found:
        # What the kubelet notes of containers lies below the node's root, as the GPU driver does.
        log = found.node.place.driver_root / "var/log"
        log.mkdir(parents=True, exist_ok=True)
        cluster = found.node.cluster.plugins.parents[1]
        (log / "containers").symlink_to(cluster / "host/var/log/containers")
        (log / "pods").symlink_to(cluster / "logs/pods")
        yield found


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from unshared_scene(shares, request)


@pytest.fixture
def jobs(scene: Scene) -> Iterator[Jobs]:
    jobs = Jobs(scene)
    yield jobs
    jobs.end()


def usage(scene: Scene, *words: str) -> str:
    """What the command says on the node."""
    place = scene.node.place
    root = place.driver_root
    paths = ("--kubelet-plugins-directory-path", place.plugins, "--nvidia-driver-root", root)
    paths += ("--proc-root", root / "proc", "--sys-root", root / "sys")
    return run((DRIVER, "usage", *paths, *words))


def users(scene: Scene) -> dict[str, dict[str, Any]]:
    """Who uses a device, by pod, with the device's name and UUID."""
    gpus = json.loads(usage(scene, "--output", "json"))["gpus"]
    return {
        user["pod"]: user | {"device": device["name"], "uuid": device["uuid"]}
        for gpu in gpus
        for device in gpu["devices"]
        for user in device["users"]
    }


def metric(text: str, name: str, pod: str) -> tuple[str, float]:
    """The UUID and the value of the one series of a pod."""
    (line,) = [
        row
        for row in text.splitlines()
        if row.startswith(f"nvidia_dra_{name}{{") and f'pod="{pod}"' in row
    ]
    found = re.search(r'uuid="([^"]+)"', line)
    assert found is not None
    return found[1], float(line.rpartition(" ")[2])


def metrics_of(scene: Scene, *pods: str) -> str:
    """The driver's metrics, once all of these pods are in them."""
    port = scene.node.driver.wait_log("http endpoint opened")["port"]

    def told() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text: str = answer.read().decode()
        return text if all(f'pod="{pod}"' in text for pod in pods) else ""

    return str(wait_until(told, "all pods in the metrics", timeout=120))


def claims_of(scene: Scene, pod: str) -> list[str]:
    return [
        f"{NAMESPACE}/{claim['metadata']['name']}"
        for claim in scene.api.all("ResourceClaim", NAMESPACE)
        if any(by["name"] == pod for by in claim["status"].get("reservedFor", ()))
    ]


@pytest.mark.driver(MIG="on-demand", WHOLE_GPUS_BESIDE_SHARES="always")
def test_each_container_is_listed_with_pod_claim_and_device(
    shares: Shares, scene: Scene, jobs: Jobs
) -> None:
    shares.set(config("timeSlicing", 4), 32)
    one, two = scene.pod("one", limits={GPU: 1}), scene.pod("two", limits={GPU: 1})
    whole = scene.pod("whole", claims=[scene.claim("whole")])
    cut = scene.pod("cut", templates=[template(scene, migs(mig=SMALL))])
    spec = claim_spec({"gpu": mps_limits(50, "10Gi")})
    pods = [one, two, whole, cut]
    if scene.node.can_run_mps:
        served = scene.pod("served", claims=[scene.make("ResourceClaim", "served", {"spec": spec})])
        pods.append(served)
    scene.running(*pods)
    (mig,) = migs_seen(scene.node.cluster, cut, "ctr", NAMESPACE)
    devices = {pod: scene.gpus(pod)[0] for pod in pods if pod != cut} | {cut: mig}
    wanted = {
        pod: (device, 100 * number, jobs.start(pod, device, 100 * number, kind, number))
        for number, (pod, device, kind) in enumerate(
            (
                (pod, devices[pod], ProcessKind.BY_MPS if "served" in pod else ProcessKind.COMPUTES)
                for pod in pods
            ),
            start=1,
        )
    }
    found = users(scene)
    for pod, (device, mib, pid) in wanted.items():
        user = found[pod]
        assert (user["namespace"], user["container"], user["uuid"]) == (NAMESPACE, "ctr", device)
        assert user["memoryBytes"] == mib * MIB
        assert [process["pid"] for process in user["processes"]] == [pid]
        assert user["claims"] == claims_of(scene, pod)
    assert found[whole]["smUtilization"] == 0.03
    assert found[cut]["smUtilization"] is None
    assert re.fullmatch(r"gpu-\d-share-\d-of-4", found[one]["devices"][0])
    assert found[one]["devices"] != found[two]["devices"]
    assert re.fullmatch(r"gpu-\d-mig-1g10gb-\d+-\d+", found[cut]["device"])

    text = metrics_of(scene, *pods)
    for pod, (device, mib, _) in wanted.items():
        assert metric(text, "container_gpu_memory_used_bytes", pod) == (device, mib * MIB)
        assert metric(text, "container_gpu_processes", pod) == (device, 1)
    if scene.node.can_run_mps:
        assert found[served]["limitBytes"] == 10240 * MIB
        assert metric(text, "container_gpu_memory_limit_bytes", served)[1] == 10240 * MIB

    _, _, pid = wanted[whole]
    page = usage(scene, "--pid", str(pid))
    assert page.count("GPU-") == 1
    assert whole in page
    assert one not in page
    print(usage(scene))  # noqa: T201 (for who reads the log of a run)


def test_a_container_cannot_pass_for_another_pod(shares: Shares, scene: Scene, jobs: Jobs) -> None:
    """By its name, and by a group that it would make: only a privileged one could make one."""
    shares.set(config("timeSlicing", 4), 32)
    victim, liar = scene.pod("victim", limits={GPU: 1}), scene.pod("liar", limits={GPU: 1})
    scene.running(victim, liar)
    uid = scene.api.get("Pod", victim, NAMESPACE)["metadata"]["uid"]
    device = scene.gpus(liar)[0]
    pid = jobs.start(liar, device, 100, ProcessKind.COMPUTES, 1)
    lines = groups_of(pid).splitlines()
    made = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        base = Path("/sys/fs/cgroup") / kinds.split(",")[0].removeprefix("name=") / path[1:]
        if (base / "cgroup.procs").exists() and "kubepods" in path:
            below = base / f"kubepods/pod{uid}/{'ab' * 32}"
            below.mkdir(parents=True)
            made.append(below)
            try:
                (below / "cgroup.procs").write_text(str(pid))
            except OSError:  # a controller that is not ready for it, as cpuset
                continue
    try:
        assert any(uid in line for line in groups_of(pid).splitlines())
        found = users(scene)
        assert [process["pid"] for process in found[liar]["processes"]] == [pid]
        assert found[victim]["processes"] == []
    finally:
        for below in made:
            top = below.parent.parent.parent
            (top / "cgroup.procs").write_text(str(pid))
            for folder in (below, below.parent, below.parent.parent):
                folder.rmdir()


def test_a_container_at_ten_times_its_limit_is_ended_alone(
    shares: Shares, scene: Scene, jobs: Jobs
) -> None:
    own = {"memory": "equal", "rename": SHARED, "overLimit": "end"}
    shares.set(config("timeSlicing", 16, devices=["0"], resource=own), 16)
    limit = shares.memory_mib()
    greedy, modest = (scene.pod(name, limits={SHARED: 1}) for name in ("greedy", "modest"))
    scene.running(greedy, modest)
    before = scene.container_ids(greedy, modest)
    device = scene.gpus(greedy)[0]
    jobs.start(modest, device, limit, ProcessKind.COMPUTES, 1)
    jobs.start(greedy, device, 10 * limit, ProcessKind.COMPUTES, 1)
    note = scene.warning(greedy, KILLED)
    assert f"{10 * limit} MiB of gpu-0, and its limit is {limit} MiB" in note
    wait_until(
        lambda: scene.container_ids(greedy) != {f"{greedy}/ctr": before[f"{greedy}/ctr"]},
        "the container to be started again",
        timeout=120,
    )
    scene.running(greedy)
    assert scene.container_ids(modest) == {f"{modest}/ctr": before[f"{modest}/ctr"]}


def test_a_later_pod_of_a_claim_is_ended_however_long_its_name_is(
    shares: Shares, scene: Scene, jobs: Jobs
) -> None:
    """The kubelet cuts the container's ID off the link to its log."""
    own = {"memory": "equal", "rename": SHARED, "overLimit": "end"}
    shares.set(config("timeSlicing", 16, devices=["0"], resource=own), 16)
    limit = shares.memory_mib()
    claim = scene.claim("shared", deviceClassName="gpu.shared.resource.nvidia.com")
    first = scene.pod("first", claims=[claim])
    scene.running(first)
    hidden = scene.pod("hidden-" + "x" * 190, claims=[claim])
    scene.running(hidden)
    before = scene.container_ids(hidden)
    device = scene.gpus(hidden)[0]
    jobs.start(hidden, device, 3 * limit, ProcessKind.COMPUTES, 1)
    note = scene.warning(hidden, KILLED)
    assert f"{3 * limit} MiB of gpu-0, and its limit is {limit} MiB" in note
    wait_until(
        lambda: scene.container_ids(hidden) != before,
        "the container to be started again",
        timeout=120,
    )
    assert [user for user in users(scene) if user == hidden]
