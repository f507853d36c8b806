"""Profiles: what is shipped is sound, and what is wrong is said."""

import pytest

from dra_driver.errors import ConfigError
from dra_driver.simulator import hardware, profile
from dra_driver.simulator.iommu import Function

L4 = '{card: l4, pci: "0000:00:03.0", minor: 0}'
AUDIO = '{pci: "0000:00:03.1", beside: "0000:00:03.0", device: "0x10f8"}'


def parse(text: str) -> profile.Profile:
    return profile.parse(text, origin="test.yaml")


def machine(gpus: str = L4, more: str = "") -> str:
    return f'driver_version: 535.261.03\ncuda_version: "12.2"\ngpus: [{gpus}]\n{more}'


@pytest.mark.parametrize("name", profile.names())
def test_every_shipped_profile_loads(name: str) -> None:
    assert profile.load(name).gpus


@pytest.mark.parametrize(
    ("iommu", "groups"),
    [
        ("on", [0, 1, 1]),
        ('{groups: [["0000:00:02.0", "0000:00:03.0"]]}', [0, 0, 0]),
        ("{iommufd: on}", [0, 1, 1]),
    ],
)
def test_each_function_has_an_iommu_group_unless_it_shares_one(
    iommu: str, groups: list[int]
) -> None:
    bridged = '{card: l4, pci: "0000:00:03.0", minor: 0, bridges: ["0000:00:02.0"]}'
    loaded = parse(machine(bridged, more=f"iommu: {iommu}"))
    assert loaded.iommu is not None
    functions = [Function(pci="0000:00:03.1", beside="0000:00:03.0", device="0x10f8")]
    whole = loaded.iommu.model_copy(update={"functions": functions})
    addresses = ["0000:00:02.0", "0000:00:03.0", "0000:00:03.1"]
    assert list(whole.group_of(addresses).values()) == groups
    assert profile.parse(profile.dump(loaded), origin="dumped").iommu == loaded.iommu


def test_a_machine_has_no_iommu_unless_it_says_so() -> None:
    for more in ("", "iommu: off"):
        assert parse(machine(more=more)).iommu is None


@pytest.mark.parametrize("name", profile.names())
def test_identities_are_unique_and_always_the_same(name: str) -> None:
    loaded = profile.load(name)
    gpus = hardware.gpus_of(loaded, "seed")
    assert gpus == hardware.gpus_of(loaded, "seed")
    for identity in ("uuid", "serial", "pci", "minor"):
        assert len({getattr(gpu, identity) for gpu in gpus}) == len(gpus)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no profile 'b300x8'.*h100x8.*t4x4"):
        profile.load("b300x8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "must be a mapping, not list"),
        ("a: [", "is not YAML"),
        ("gpus: []", "driver_version: Field required"),
        (machine(f"{L4}, {L4}"), "two GPUs have the same pci"),
        (machine('{card: l4, pci: "0000:00:03.0", minor: 255}'), "gpus.0.minor: Input should be"),
        (machine('{card: l4, pci: "00:03.0", minor: 0}'), "gpus.0.pci: String should match"),
        (machine('{card: l40, pci: "0000:00:03.0", minor: 0}'), "no card 'l40'; known are"),
        (machine('{card: l4, pci: "0000:00:03.0", minr: 0}'), "gpus.0.minr: Extra inputs"),
        (
            machine('{card: l4, pci: "0000:00:03.0", minor: 0, mig_mode: on}'),
            "GPU 0000:00:03.0: mig_mode is on, and its card has no MIG",
        ),
        (machine(more="cards: {l4: {name: My L4}}"), "cards.l4.brand: Field required"),
        (machine(more="driver: 1"), "driver: Extra inputs are not permitted"),
        (machine(more="iommu: [1]"), "iommu: Input should be a valid dictionary"),
        (machine(more="iommu: {fd: on}"), "iommu.fd: Extra inputs"),
        (
            machine(more='iommu: {drivers: {"0000:00:09.0": none}}'),
            "iommu.drivers: the machine has no GPU 0000:00:09.0",
        ),
        (
            machine(more='iommu: {drivers: {"0000:00:03.0": nouveau}}'),
            "iommu.drivers.0000:00:03.0: Input should be 'nvidia', 'vfio-pci' or 'none'",
        ),
        (
            machine(more='iommu: {groups: [["0000:00:03.0", "0000:00:09.0"]]}'),
            "iommu.groups: the machine has no PCI function 0000:00:09.0",
        ),
        (
            machine(more='iommu: {groups: [["0000:00:03.0", "0000:00:03.0"]]}'),
            "iommu: groups: ['0000:00:03.0'] is named twice",
        ),
        (
            machine(more=f"iommu: {{functions: [{AUDIO}, {AUDIO}]}}"),
            "iommu.functions: ['0000:00:03.1'] exists already",
        ),
        ("driver_version: 1.2\ngpus: [l4]", "gpus.0: Input should be a valid dictionary"),
    ],
)
def test_mistakes_are_reported_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert message in str(raised.value)
    assert "test.yaml" in str(raised.value)


def test_a_mig_placement_beyond_the_card_is_refused() -> None:
    card = profile.load("a100x8").cards["a100-sxm4-40gb"].model_dump(exclude_none=True)
    card["mig"]["profiles"][0]["starts"] = [8]
    with pytest.raises(ValueError, match=r"1g\.5gb at 8 of size 1 ends beyond"):
        profile.Card.model_validate(card)


def test_a_card_of_the_profile_itself_goes_before_a_shipped_one() -> None:
    shipped = profile.load("l4x2").cards["l4"]
    own = shipped.model_copy(update={"name": "NVIDIA L4 (mine)"})
    loaded = profile.load("l4x2").model_copy(update={"cards": {"l4": own}})
    assert profile.parse(profile.dump(loaded), origin="dumped").cards["l4"].name == own.name


def test_later_reads_do_not_change_a_profile() -> None:
    shipped = profile.load("l4x2")
    named = profile.parse(profile.dump(shipped), origin="one").name
    with pytest.raises(ConfigError, match="lacking"):
        parse(machine(more="cards: {lacking: {name: A card without the rest}}"))
    assert set(parse(machine()).cards) == {"l4"}
    assert profile.load("l4x2") == shipped
    assert [parse(machine()).name, profile.parse(machine(), origin="b.yaml").name] == ["test", "b"]
    assert named == shipped.name


PAIR = """
driver_version: 535.261.03
cuda_version: "12.2"
gpus:
  - {card: v100-sxm2-16gb, pci: "0000:06:00.0", minor: 0, nvlinks: %s}
  - {card: v100-sxm2-16gb, pci: "0000:07:00.0", minor: 1, nvlinks: %s}
"""


def test_an_nvlink_has_to_be_named_at_both_ends() -> None:
    text = PAIR % ('["0000:07:00.0"]', "[%s]")
    assert len(profile.parse(text % '"0000:06:00.0"', origin="pair").gpus) == 2
    with pytest.raises(ConfigError, match=r"1 NVLinks lead to 0000:07:00\.0, and 0 back"):
        profile.parse(text % "", origin="half")
    with pytest.raises(ConfigError, match="7 NVLinks, its card has 6"):
        profile.parse(text % ", ".join(['"0000:06:00.0"'] * 7), origin="many")
