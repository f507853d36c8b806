"""The clouds' machine types: what the data says, and the machines made of it."""

import pytest

from dra_driver.errors import ConfigError
from dra_driver.simulator.instance_types import families, profile_of
from dra_driver.simulator.profile import Profile

KNOWN = [name for family in families() if family.card for name in family.types]


def test_every_known_type_makes_a_machine_with_its_gpus_alone() -> None:
    for name in KNOWN:
        (family,) = [one for one in families() if name in one.types]
        made = Profile.model_validate(profile_of(name).model_dump())
        assert [gpu.card for gpu in made.gpus] == [family.card] * family.types[name], name


def test_more_gpus_than_the_shipped_machine_are_on_another_pci_domain() -> None:
    made = profile_of("g4dn.metal").gpus
    assert {gpu.pci[:4] for gpu in made} == {"0000", "0001"}
    assert {gpu.minor for gpu in made} == set(range(8))


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(ConfigError, match=r"p6-b300\.48xlarge has 8 NVIDIA B300, a card that"):
        profile_of("p6-b300.48xlarge")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("standard_nd96isr_h100_V5", "did you mean Standard_ND96isr_H100_v5"),
        ("a3-highgpu-8", "did you mean a3-highgpu-8g"),
        ("m5.large2xyz-nothing-like-it", r"is known\. Known are AWS: p3"),
    ],
)
def test_an_unknown_type_suggests_similar_ones(asked: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near):
        profile_of(asked)
