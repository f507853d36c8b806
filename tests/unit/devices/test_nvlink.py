"""Islands of GPUs, from what each says of its links."""

from collections.abc import Iterable

import make
from dra_driver.devices.model import Fabric, Gpu, NvLink
from dra_driver.devices.nvlink import joined

DONE = Fabric(state=3, status=0)
BUSY = Fabric(state=2, status=0)


def linked(*pairs: tuple[int, int], of: Iterable[int], **changes: object) -> list[Gpu]:
    """GPUs with a link for each pair, seen from both ends."""
    minors = list(of)
    peers: dict[int, list[int]] = {minor: [] for minor in minors}
    for one, other in pairs:
        peers[one].append(other)
        peers[other].append(one)
    return [
        make.gpu(
            minor,
            nvlinks=tuple(
                NvLink(number=number, is_active=True, peer=make.gpu(peer).pci_address)
                for number, peer in enumerate(peers[minor])
            ),
            **changes,
        )
        for minor in minors
    ]


def switched(minor: int, fabric: Fabric | None = None, links: int = 18, **changes: object) -> Gpu:
    """A GPU all of whose links lead to NVSwitch."""
    ends = tuple(NvLink(number=n, is_active=True, to_switch=True) for n in range(links))
    return make.gpu(minor, nvlinks=ends, fabric=fabric, **changes)


def down(gpu: Gpu) -> Gpu:
    """The same GPU with none of its links up."""
    return make.gpu(
        gpu.minor,
        fabric=gpu.fabric,
        nvlinks=tuple(NvLink(number=link.number, is_active=False) for link in gpu.nvlinks),
    )


def islands(gpus: Iterable[Gpu]) -> dict[int, list[int]]:
    """Minor numbers by the minor number of the GPU that gives the island its name."""
    gpus = list(gpus)
    minors = {gpu.uuid: gpu.minor for gpu in gpus}
    found: dict[int, list[int]] = {}
    names = joined(gpus)
    for uuid, minor in minors.items():
        if uuid in names:
            found.setdefault(minors[names[uuid]], []).append(minor)
    return found


def test_bridged_pairs_are_islands_of_two() -> None:
    assert islands(linked((0, 1), (0, 1), (2, 3), of=range(5))) == {0: [0, 1], 2: [2, 3]}


def test_a_link_counts_while_one_of_its_ends_says_that_it_is_up() -> None:
    # As when the other GPU is out of reach, or in MIG mode.
    one, other = linked((0, 1), of=range(2))
    assert islands([down(one), other]) == {0: [0, 1]}


def test_one_link_of_several_is_enough() -> None:
    one, other = linked((0, 1), (0, 1), of=range(2))
    halved = make.gpu(0, nvlinks=(one.nvlinks[0], NvLink(number=1, is_active=False)))
    assert islands([halved, other]) == {0: [0, 1]}


def test_a_gpu_that_has_not_joined_its_fabric_is_not_joined_yet() -> None:
    gpus = [switched(0, DONE), switched(1, BUSY), switched(2, DONE)]
    assert islands(gpus) == {0: [0, 2]}
    failed = Fabric(state=3, status=999)
    assert islands([switched(0, failed), switched(1, DONE), switched(2, DONE)]) == {1: [1, 2]}


def test_cliques_of_one_fabric_are_islands_of_their_own() -> None:
    cluster = "9f0b1d1e-36b1-4ad2-8b4e-5b5ad8f6c001"
    fabrics = [Fabric(state=3, status=0, cluster=cluster, clique=number) for number in (1, 1, 2, 2)]
    gpus = [switched(minor, fabric) for minor, fabric in enumerate(fabrics)]
    assert islands(gpus) == {0: [0, 1], 2: [2, 3]}


def test_an_unknown_link_target_counts_as_a_switch() -> None:
    # In a virtual machine, and with drivers that do not tell what is at the other end.
    seen = make.gpu(9).pci_address
    unknown = [
        make.gpu(n, nvlinks=(NvLink(number=0, is_active=True, peer=seen, to_switch=True),))
        for n in range(2)
    ]
    assert islands(unknown) == {0: [0, 1]}
    assert islands([*unknown, make.gpu(9)]) == {0: [0, 1, 9]}


def test_a_link_to_a_missing_gpu_joins_nothing() -> None:
    assert islands(linked((0, 7), of=[0, 1, 7])[:2]) == {}


def test_an_island_is_named_after_its_gpu_with_the_lowest_address() -> None:
    gpus = [switched(3), switched(1), switched(2)]
    assert set(joined(gpus).values()) == {make.gpu(1).uuid}
