"""A share config that changes under pods: device by device, and no device is ever given out whole.

One node with four T4.
"""

from collections.abc import Iterator

import pytest
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import wait_until

from dra_driver.admin.doctor.facts.cluster_facts import Feature
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

GPUS = 4


@pytest.fixture(scope="module")
def shares(lasting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shares]:
    with shares_of("t4x4", tmp_path_factory.mktemp("t4x4"), lasting) as found:
        if not found.node.can_run_mps:
            cannot_run("NVIDIA's MPS programs are not available")
        yield found


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


def tenant(scene: Scene, name: str, count: int = 1) -> str:
    pod = scene.pod(name, limits={GPU: count})
    scene.running(pod)
    return pod


def test_a_relaxed_config_applies_at_once_except_to_gpus_in_use(
    shares: Shares, scene: Scene
) -> None:
    shares.write(config("mps", 10))
    wait_offered(shares, single_share=10 * GPUS)
    first = tenant(scene, "one")
    (device,) = allocated(scene, first)
    waits = device.partition("-single")[0]
    shares.write(config("mps", 10, failRequestsGreaterThanOne=False))
    wait_offered(shares, single_share=10, mps_share=10 * (GPUS - 1))
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
    wait_offered(shares, mps_share=10 * GPUS)
    del before[f"{first}/ctr"], before[f"{others[0]}/ctr"]
    assert scene.container_ids(*others[1:], large, small) == before
