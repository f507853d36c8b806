"""Counter sets with memory alone, for GPUs that need no counters."""

from typing import Any

from structlog.testing import capture_logs

import make
from dra_driver.admin.inspect.slices import Offered
from dra_driver.devices.model import MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.errors import UnavailableError
from dra_driver.host.worker import LogOnce
from dra_driver.slices.node import warn_of_cost
from dra_driver.slices.offer.mig import MigOffer, MigSource
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection

EXISTING = MigOffer(source=MigSource.EXISTING, why="a setting")
T4 = make.gpu(0, memory_bytes=15 * 1024**3)
H100 = make.gpu(1, mig=make.mig())


def memory_of(found: Projection) -> dict[str, str]:
    """The memory that each device consumes of the counter set of its GPU."""
    taken = {}
    for device in found.devices:
        consumed: Any = device["consumesCounters"]
        ((name, counters),) = ((one["counterSet"], one["counters"]) for one in consumed)
        assert str(device["name"]).startswith(name.removesuffix("-counter-set"))
        taken[str(device["name"])] = counters["memory"]["value"]
    return taken


def test_whole_gpus_have_sets_of_memory_alone_and_consume_all_of_it() -> None:
    found = projection(make.inventory(T4, H100), mig=EXISTING, memory_counters=True)

    assert memory_of(found) == {"gpu-0": "15Gi", "gpu-1": "81152Mi"}
    assert found.counter_sets == (
        {"name": "gpu-0-counter-set", "counters": {"memory": {"value": "15Gi"}}},
        {"name": "gpu-1-counter-set", "counters": {"memory": {"value": "81152Mi"}}},
    )


def test_an_offer_has_them_where_they_are_wanted_and_not_elsewhere() -> None:
    node = make.inventory(T4, H100)
    plain, counted = (projection(node, memory_counters=each) for each in (False, True))
    assert Offered(memory_counters=True).projection(node) == counted != plain
    assert Offered().projection(node) == plain
    without_counters = projection(node, memory_counters=True, with_counters=False)
    assert without_counters == projection(node, with_counters=False)


def test_nothing_else_of_a_device_changes() -> None:
    before = projection(make.inventory(T4, H100), mig=EXISTING)
    now = projection(make.inventory(T4, H100), mig=EXISTING, memory_counters=True)
    assert now.sources == before.sources
    for one, with_memory in zip(before.devices, now.devices, strict=True):
        assert with_memory == one | {"consumesCounters": with_memory["consumesCounters"]}


def test_mig_devices_that_others_made_consume_what_their_profiles_have() -> None:
    by_hand = (make.mig_device(0, "1g.10gb", 0), make.mig_device(0, "3g.40gb", 4))
    gpu = make.gpu(0, mig=make.mig(*by_hand), mig_mode=MigMode.ENABLED)
    found = projection(make.inventory(gpu), mig=EXISTING, memory_counters=True)

    assert memory_of(found) == {
        "gpu-0-mig-1g10gb-19-0": "9856Mi",
        "gpu-0-mig-3g40gb-9-4": "40448Mi",
    }


def test_shares_that_stand_alone_consume_their_parts() -> None:
    four = Division(count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False)
    share = ShareOffer(divisions={make.place(T4): four}, alone="a setting")

    assert memory_of(projection(make.inventory(T4), share=share, memory_counters=True)) == {
        f"gpu-0-single-share-{number}-of-4": "3840Mi" for number in range(4)
    }


def test_a_gpu_that_has_a_set_anyway_keeps_it_and_others_get_one() -> None:
    found = projection(make.inventory(T4, H100))
    now = projection(make.inventory(T4, H100), memory_counters=True)

    assert now.counter_sets[1:] == found.counter_sets
    assert [one["name"] for one in now.counter_sets] == ["gpu-0-counter-set", "gpu-1-counter-set"]
    assert now.devices[1:] == found.devices[1:]


def test_a_gpu_whose_memory_is_not_known_has_no_set() -> None:
    node = make.inventory(make.gpu(0, memory_bytes=None))
    assert projection(node, memory_counters=True) == projection(node)


class Cluster:
    """Says one version after the other, and stays with the last; None: it does not answer."""

    def __init__(self, *versions: tuple[int, int] | None) -> None:
        self.versions = list(versions)

    def current(self) -> tuple[int, int]:
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        if version is None:
            raise UnavailableError("away")
        return version


def warnings(*versions: tuple[int, int] | None) -> list[str]:
    """What is warned of in three publications."""
    cluster, once = Cluster(*versions), LogOnce()
    with capture_logs() as logs:
        for _ in range(3):
            warn_of_cost(cluster, once, "this slows the scheduler", advice="upgrade")  # type: ignore[arg-type]
    return [f"{log['event']}: {log['kubernetes']}: {log['advice']}" for log in logs]


def test_an_older_scheduler_is_warned_of_once() -> None:
    said = "this slows the scheduler: Kubernetes 1.36: upgrade"
    assert warnings((1, 36)) == [said]
    assert warnings(None, (1, 36)) == [said]


def test_there_is_no_warning_where_counters_cost_little() -> None:
    assert warnings((1, 37)) == []
