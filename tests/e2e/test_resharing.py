"""A share config that changes under pods: device by device, and no device is ever given out whole.

One node with four T4, one with an A100, an L4, a T4 and a P4, on which MPS limits nothing, and one
with an A100 that its admin has divided into MIG devices.
"""

from collections.abc import Iterator, Mapping

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import run, wait_until
from testbed.machine import DRIVER

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.simulator.profile import dump, load
from e2e.kubernetes import needs
from e2e.needs import cannot_run
from e2e.scene import NAMESPACE, Scene
from e2e.shares import (
    GPU,
    LIMIT,
    THREADS,
    Shares,
    config,
    environment,
    shares_of,
    unshared_scene,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

DIVIDED: Mapping[str, int] = {"t4x4": 4, "mixed": 3}
"""How many GPUs MPS divides, by profile."""

SMALL = "nvidia.com/mig-1g.5gb"


@pytest.fixture(scope="module", params=list(DIVIDED))
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shares(
    profile: str, lasting: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shares]:
    with shares_of(profile, tmp_path_factory.mktemp(profile), lasting) as found:
        if not found.node.can_run_mps:
            cannot_run("NVIDIA's MPS programs could not be had")
        yield found


@pytest.fixture(scope="module")
def mig_shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    """An A100 with two MIG devices of its admin's."""
    folder = tmp_path_factory.mktemp("mig")
    profile = load("a100x8")
    gpu = profile.gpus[0].model_copy(update={"mig_mode": True})
    path = folder / "a100.yaml"
    path.write_text(dump(profile.model_copy(update={"gpus": [gpu]})))
    with shares_of(str(path), folder, lasting) as found:
        if not found.node.can_run_mps:
            cannot_run("NVIDIA's MPS programs could not be had")
        for _ in range(2):
            found.node.machine.mig("create", "--gpu", "0", "--profile", "1g.5gb")
        classes = run((DRIVER, "classes", SMALL))
        found.node.cluster.kubectl("apply", "-f", "-", stdin=classes)
        yield found
        found.node.cluster.kubectl("delete", "-f", "-", stdin=classes)


@pytest.fixture
def mig_scene(mig_shares: Shares) -> Iterator[Scene]:
    scene = Scene(mig_shares.node)
    yield scene
    scene.clear()
    mig_shares.set(config(), 0)
    assert scene.node.place.left_over() == []


@pytest.fixture
def scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from unshared_scene(shares, request)


def offered(shares: Shares) -> dict[str, int]:
    """How many shares of each kind are published, and devices that a resource name gives whole."""
    counts = {"single-share": 0, "mps-share": 0, "whole": 0}
    for one in shares.node.slices():
        for device in one.get("devices", ()):
            name, attributes = device["name"], device["attributes"]
            kind = next((kind for kind in counts if kind in name), "whole")
            counts[kind] += kind != "whole" or (
                "uuid" in attributes and "sharedAs" not in attributes
            )
    return counts


def wait_offered(shares: Shares, **wanted: int) -> None:
    expected = {"single-share": 0, "mps-share": 0, "whole": 0}
    expected |= {name.replace("_", "-"): count for name, count in wanted.items()}
    wait_until(lambda: offered(shares) == expected, f"{expected} to be offered", timeout=60)


def allocated(scene: Scene, pod: str) -> list[str]:
    """The names of the devices that a pod by limits got."""
    made = scene.api.get("Pod", pod, NAMESPACE)["status"]["extendedResourceClaimStatus"]
    claim: Object = scene.api.get("ResourceClaim", made["resourceClaimName"], NAMESPACE)
    return [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]


def tenant(scene: Scene, name: str, count: int = 1, of: str = GPU) -> str:
    pod = scene.pod(name, limits={of: count})
    scene.running(pod)
    return pod


def test_a_relaxed_config_holds_at_once_but_on_gpus_that_pods_have_shares_of(
    profile: str, shares: Shares, scene: Scene
) -> None:
    gpus = DIVIDED[profile]
    shares.write(config("mps", 10))
    wait_offered(shares, single_share=10 * gpus)
    first = tenant(scene, "one")
    (device,) = allocated(scene, first)
    waits = device.partition("-single")[0]
    shares.write(config("mps", 10, failRequestsGreaterThanOne=False))
    wait_offered(shares, single_share=10, mps_share=10 * (gpus - 1))
    claim = scene.api.get("Pod", first, NAMESPACE)["status"]["extendedResourceClaimStatus"]
    assert (
        f"{waits}: a new config takes effect when this claim has ended: {NAMESPACE}/"
        f"{claim['resourceClaimName']}"
    ) in shares.status()
    large, small = tenant(scene, "large", 8), tenant(scene, "small", 2)
    others = [tenant(scene, f"other-{number}") for number in range(3)]
    names = [name for pod in (*others, large, small) for name in allocated(scene, pod)]
    assert all("-mps-share-" in name and not name.startswith(f"{waits}-") for name in names)
    for pod, percent in ((large, 80), (small, 20), (others[0], 10)):
        env = environment(scene, pod)
        assert env[THREADS] == str(percent)
        assert len(env[LIMIT].split(",")) == 1
    before = scene.container_ids(first, *others, large, small)
    scene.delete(others[0])
    assert offered(shares)["single-share"] == 10
    scene.delete(first)
    wait_offered(shares, mps_share=10 * gpus)
    del before[f"{first}/ctr"], before[f"{others[0]}/ctr"]
    assert scene.container_ids(*others[1:], large, small) == before


def test_a_gpu_that_a_pod_has_as_a_whole_keeps_no_other_from_being_divided(
    profile: str, shares: Shares, scene: Scene
) -> None:
    whole = tenant(scene, "whole")
    (device,) = allocated(scene, whole)
    shares.write(config("mps", 10, failRequestsGreaterThanOne=False))
    # On a mixed node, who names no card has the P4, which is not divided.
    free = DIVIDED[profile] - (profile != "mixed")
    wait_until(
        lambda: offered(shares)["mps-share"] >= 10 * free, "the others to be divided", timeout=60
    )
    pods = [tenant(scene, f"late-{number}") for number in range(2)]
    assert all("-mps-share-" in name for pod in pods for name in allocated(scene, pod))
    scene.delete(whole)
    wait_offered(shares, mps_share=10 * DIVIDED[profile])
    assert not any(name.startswith(f"{device}-") for pod in pods for name in allocated(scene, pod))


def test_a_mig_device_follows_a_config_that_changes_under_a_pod_with_a_share_of_another(
    mig_shares: Shares, mig_scene: Scene
) -> None:
    shares, scene = mig_shares, mig_scene
    shares.write(config("mps", 2, name=SMALL))
    wait_offered(shares, single_share=4)
    first = tenant(scene, "one", of=SMALL)
    (device,) = allocated(scene, first)
    waits = device.partition("-single")[0]
    shares.write(config("mps", 3, name=SMALL, failRequestsGreaterThanOne=False))
    wait_offered(shares, single_share=2, mps_share=3)
    two = tenant(scene, "two", 2, of=SMALL)
    assert all("-mps-share-" in name and waits not in name for name in allocated(scene, two))
    assert environment(scene, two)[THREADS] == "66"
    before = scene.container_ids(two)
    scene.delete(first)
    wait_offered(shares, mps_share=6)
    assert scene.container_ids(two) == before
