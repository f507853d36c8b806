"""Counter sets with memory alone, for GPUs that need no counters."""

from typing import Any

import make
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.memory_counters import with_memory_counters
from dra_driver.slices.mig_offer import MigOffer, MigSource
from dra_driver.slices.project import Projection, projection
from dra_driver.slices.share_offer import ShareOffer

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
    found = with_memory_counters(projection(make.inventory(T4, H100), mig=EXISTING))

    assert memory_of(found) == {"gpu-0": "15Gi", "gpu-1": "81152Mi"}
    assert found.counter_sets == (
        {"name": "gpu-0-counter-set", "counters": {"memory": {"value": "15Gi"}}},
        {"name": "gpu-1-counter-set", "counters": {"memory": {"value": "81152Mi"}}},
    )


def test_nothing_else_of_a_device_changes() -> None:
    before = projection(make.inventory(T4, H100), mig=EXISTING)
    now = with_memory_counters(before)
    assert now.sources == before.sources
    for one, with_memory in zip(before.devices, now.devices, strict=True):
        assert with_memory == one | {"consumesCounters": with_memory["consumesCounters"]}


def test_mig_devices_that_others_made_consume_what_their_profiles_have() -> None:
    by_hand = (make.mig_device(0, "1g.10gb", 0), make.mig_device(0, "3g.40gb", 4))
    gpu = make.gpu(0, mig=make.mig(*by_hand), mig_mode=MigMode.ENABLED)
    found = with_memory_counters(projection(make.inventory(gpu), mig=EXISTING))

    assert memory_of(found) == {
        "gpu-0-mig-1g10gb-19-0": "9856Mi",
        "gpu-0-mig-3g40gb-9-4": "40448Mi",
    }


def test_shares_that_stand_alone_consume_their_parts() -> None:
    four = Division(count=4, strategy=ShareStrategy.MPS, served_as="nvidia.com/gpu", combines=False)
    share = ShareOffer(divisions={GpuPart(gpu=T4.uuid): four})
    alone = projection(make.inventory(T4), share=share, with_counters=False)

    assert memory_of(with_memory_counters(alone)) == {
        f"gpu-0-share-{number}-of-4": "3840Mi" for number in range(4)
    }


def test_a_gpu_that_has_a_set_anyway_keeps_it_and_others_get_one() -> None:
    found = projection(make.inventory(T4, H100))
    now = with_memory_counters(found)

    assert now.counter_sets[:1] == found.counter_sets
    assert [one["name"] for one in now.counter_sets] == ["gpu-1-counter-set", "gpu-0-counter-set"]
    assert now.devices[1:] == found.devices[1:]
    assert with_memory_counters(now) == now


def test_a_gpu_whose_memory_is_not_known_has_no_set() -> None:
    found = projection(make.inventory(make.gpu(0, memory_bytes=None)))
    assert with_memory_counters(found) == found
