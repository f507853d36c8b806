import make
from dra_driver.sharing.base import Group, Sharing, strategy_name
from resource_nvidia_com.v1beta1.gpu import GpuConfig
from resource_nvidia_com.v1beta1.sharing import GpuSharing, SharingStrategy


def test_exclusive_gpus_are_not_changed() -> None:
    exclusive: Sharing = Sharing()
    group = Group(claim="u", gpus=(make.gpu(0), make.gpu(1)), config=GpuConfig())
    assert exclusive.plan([group], 0.0) == ()
    assert exclusive.claims() == frozenset()
    assert not exclusive.survives_reboot


def test_a_config_names_its_strategy() -> None:
    assert strategy_name(GpuConfig()) == "Exclusive"
    mps = GpuConfig(sharing=GpuSharing(strategy=SharingStrategy.MPS))
    assert strategy_name(mps) == "MPS"
