from typing import Any

import make
from dra_driver.claims.prepare.steps import Sharing, Steps
from dra_driver.sharing.base import Doer, Group, Unit, strategy_name
from resource_nvidia_com.v1beta1.configs import GpuConfig
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
    units = (Unit(name="gpu", request="gpu", gpu=gpu, device=make.device(gpu)) for gpu in gpus)
    group = Group(claim="uid", config=GpuConfig(), units=tuple(units))
    steps = Steps(no_mig, sharing)
    assert steps.plan(make.record(*gpus), [group], (), 0.0) == ()
    assert steps.claims() == set()


def test_a_config_names_its_strategy() -> None:
    assert strategy_name(GpuConfig()) == strategy_name(None) == "Exclusive"
    mps = GpuConfig(sharing=GpuSharing(strategy=SharingStrategy.MPS))
    assert strategy_name(mps) == "MPS"
