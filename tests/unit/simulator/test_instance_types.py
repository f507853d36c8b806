"""The clouds' machine types: what the data says, and the machines made of it."""

from collections import Counter

import pytest

from dra_driver.errors import ConfigError
from dra_driver.simulator.instance_types import families, profile_of
from dra_driver.simulator.profile import CARDS, Profile

KNOWN = [name for family in families() if family.card for name in family.types]


def test_no_machine_type_is_listed_twice() -> None:
    counted = Counter(name for family in families() for name in family.types)
    assert [name for name, times in counted.items() if times > 1] == []


def test_each_family_names_its_source_and_a_card_that_is_there() -> None:
    pages = {
        "AWS": "https://docs.aws.amazon.com/",
        "GCP": "https://docs.cloud.google.com/",
        "Azure": "https://learn.microsoft.com/",
        "OCI": "https://docs.oracle.com/",
    }
    for family in families():
        assert family.source.startswith(pages[family.cloud])
        if family.card is not None:
            card = profile_of(next(iter(family.types))).cards[family.card]
            assert card.name == family.gpu
            assert (CARDS / f"{family.card}.yaml").is_file()


def test_every_known_type_makes_a_machine_with_its_gpus_alone() -> None:
    for name in KNOWN:
        (family,) = [one for one in families() if name in one.types]
        made = Profile.model_validate(profile_of(name).model_dump())
        assert [gpu.card for gpu in made.gpus] == [family.card] * family.types[name], name


def test_fewer_gpus_than_the_shipped_machine_keep_the_nvlinks_among_them() -> None:
    four = profile_of("p3.8xlarge").gpus
    assert {len(set(gpu.nvlinks)) for gpu in four} == {3}
    assert [gpu.nvlinks for gpu in profile_of("p3.2xlarge").gpus] == [[]]


def test_more_gpus_than_the_shipped_machine_are_on_another_pci_domain() -> None:
    made = profile_of("g4dn.metal").gpus
    assert {gpu.pci[:4] for gpu in made} == {"0000", "0001"}
    assert {gpu.minor for gpu in made} == set(range(8))


def test_a_gpu_of_which_nothing_is_known_here_is_named() -> None:
    with pytest.raises(ConfigError, match=r"g5\.12xlarge has 4 NVIDIA A10G, a card that"):
        profile_of("g5.12xlarge")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("standard_nd96isr_h100_V5", "did you mean Standard_ND96isr_H100_v5"),
        ("a3-highgpu-8", "did you mean a3-highgpu-8g"),
        ("m5.large2xyz-nothing-like-it", r"is known\. Known are AWS: p3"),
    ],
)
def test_an_unknown_type_is_told_what_is_like_it(asked: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near):
        profile_of(asked)
