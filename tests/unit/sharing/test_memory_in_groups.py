"""What control groups leave a claim of a GPU's memory, all its requests taken together."""

import make
from dra_driver.devices.device import Device, equal_shares, name_of
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import MIB, ConsumedShare, Division, ShareStrategy
from dra_driver.sharing.base import Group, Unit
from dra_driver.sharing.share_limits import limits_of, memory_in_groups

GPU = make.gpu(0)
UNKNOWN = make.gpu(2, memory_bytes=None)
WHOLE = (GPU.memory_bytes or 0) // MIB
SLICED = ShareStrategy.TIME_SLICING
TEN = Division(count=10, strategy=SLICED, served_as="nvidia.com/gpu", combines=True)


def part(request: str, mib: int, gpu: Gpu = GPU, number: int = 0) -> Unit:
    share = ConsumedShare(share_id=f"{request}-{number}", strategy=SLICED, memory_mib=mib)
    device = Device(base=make.place(gpu), share=share)
    return Unit(name=f"gpu-{gpu.minor}", request=request, gpu=gpu, device=device)


def tenth(request: str, index: int) -> Unit:
    share = equal_shares(make.place(GPU), TEN)[index]
    return Unit(name=name_of(GPU, share), request=request, gpu=GPU, device=share)


def memory(*units: Unit) -> int | None:
    limits = limits_of([Group(claim="uid", config=make.gpu_config(), units=units)], {units[0].uuid})
    return memory_in_groups(units, limits)


def test_requests_add_up_and_shares_of_a_request_count_once() -> None:
    assert memory(part("a", 100), part("a", 50, number=1), part("b", 7)) == 157
    assert memory(tenth("a", 0), tenth("a", 1), tenth("b", 2)) == 3 * (WHOLE // 10)


def test_without_a_limit_it_is_all_of_the_gpus_and_never_more() -> None:
    assert memory(part("a", 0)) == WHOLE
    assert memory(part("a", 100), part("a", 0, number=1)) == WHOLE
    assert memory(part("a", 0), part("b", 100)) == WHOLE
    assert memory(part("a", 0, make.gpu(3, memory_bytes=10 * MIB + 1))) == 10


def test_a_gpu_that_does_not_say_how_much_it_has_takes_what_was_consumed() -> None:
    assert memory(part("a", 100, UNKNOWN)) == 100
    assert memory(part("a", 0, UNKNOWN)) is None
