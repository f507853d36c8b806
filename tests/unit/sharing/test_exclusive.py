from typing import Any

import make
from dra_driver.claims.model.claim import Result
from dra_driver.claims.model.config import ConfigGroup
from dra_driver.claims.prepare.allocation import Allocation
from dra_driver.claims.prepare.steps import Sharing, Steps
from dra_driver.sharing.base import Doer, strategy_name
from resource_nvidia_com.v1beta1.gpu import GpuConfig
from resource_nvidia_com.v1beta1.sharing import GpuSharing, SharingStrategy


def test_exclusive_gpus_are_not_changed() -> None:
    nothing: Doer[Any] = Doer()
    sharing = Sharing(
        planners={},
        time_slices=nothing,
        domains=nothing,
        nvidia_mps=nothing,
        shares=nothing,
        passthrough=nothing,
    )
    no_mig: Any = None
    gpus = (make.gpu(0), make.gpu(1))
    record = make.record(*gpus)
    results = tuple(
        Result(request="gpu", pool="node-1", device=entry.name) for entry in record.devices
    )
    allocation = Allocation(
        draft=record,
        gpus={gpu.uuid: gpu for gpu in gpus},
        groups=[ConfigGroup(config=GpuConfig(), results=results)],
    )
    steps = Steps(no_mig, sharing)
    assert steps.plan(record, allocation, (), 0.0) == ()
    assert steps.claims() == set()


def test_a_config_names_its_strategy() -> None:
    assert strategy_name(GpuConfig()) == strategy_name(None) == "Exclusive"
    mps = GpuConfig(sharing=GpuSharing(strategy=SharingStrategy.MPS))
    assert strategy_name(mps) == "MPS"
