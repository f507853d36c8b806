"""How a share config divides the devices of a node."""

import dataclasses

import pytest
from msgspec.structs import replace

import make
from dra_driver.devices.model import Gpu, MigDevice, MigMode
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.shares.divide import divide
from dra_driver.shares.layout import ShareLayout
from resource_nvidia_com.device_plugin import (
    Compute,
    Memory,
    NodeConfig,
    SharedBy,
    SharedResource,
)
from resource_nvidia_com.share_devices import DeviceChoice

GPU = "nvidia.com/gpu"
FOUR = SharedResource(name=GPU, served_as=GPU, devices="all", replicas=4)
SLICED = NodeConfig(shared_by=SharedBy.TIME_SLICING, resources=(FOUR,))
MPS = NodeConfig(shared_by=SharedBy.MPS, fail_requests_greater_than_one=True, resources=(FOUR,))
ONE, TWO = make.mig_device(1, "2g.20gb", 0), make.mig_device(1, "1g.10gb+me", 2)


def divided(config: NodeConfig, *gpus: Gpu, **facts: object) -> ShareLayout:
    return divide(config, make.inventory(*gpus, **facts))


def test_every_gpu_is_divided_as_the_config_says() -> None:
    found = divided(SLICED, make.gpu(0), make.gpu(1))
    division = Division(count=4, strategy=ShareStrategy.TIME_SLICING, served_as=GPU, combines=True)
    assert found.divisions == {make.place(make.gpu(minor)): division for minor in (0, 1)}
    assert (found.refused, found.remarks) == ({}, ())


def test_an_empty_config_divides_nothing() -> None:
    assert divided(NodeConfig(), make.gpu(0)) == ShareLayout()


COMBINED = dataclasses.replace(MPS, fail_requests_greater_than_one=False)


def test_nodes_with_several_mps_gpus_advise_on_large_requests() -> None:
    gpus = [make.gpu(minor) for minor in (0, 1)]
    (said,) = divided(COMBINED, *gpus).remarks
    assert said == (
        "nvidia.com/gpu: several shares of one request have to be of one device under MPS, and "
        "this node divides 2: the scheduler does not know that for requests in a container's "
        "limits, which belong on nodes with one divided device; here, use claims with "
        "`constraints: [{matchAttribute: gpu.nvidia.com/uuid}]`"
    )
    sliced = dataclasses.replace(SLICED, fail_requests_greater_than_one=False)
    for config, there in ((COMBINED, gpus[:1]), (MPS, gpus), (sliced, gpus)):
        assert divided(config, *there).remarks == ()


PASCAL = make.gpu(0, cuda_compute_capability=(6, 1), product_name="Tesla P4")


@pytest.mark.parametrize("devices", ["all", 1])
def test_mps_divides_no_card_on_which_it_limits_nothing(devices: DeviceChoice) -> None:
    resource = dataclasses.replace(FOUR, devices=devices)
    found = divided(dataclasses.replace(MPS, resources=(resource,)), PASCAL, make.gpu(1))
    assert found.divisions.keys() == {make.place(make.gpu(1))}
    assert (found.refused, found.unserved) == ({}, {make.place(PASCAL): GPU})
    (said,) = found.remarks
    assert said == (
        "nvidia.com/gpu: GPU 0 (Tesla P4) is not divided, because MPS limits neither memory nor "
        "SMs on cards older than Volta: only claims can have it, as a whole; to divide it all the "
        "same, list this node's GPUs in `devices`"
    )
    renamed = dataclasses.replace(resource, served_as="nvidia.com/gpu.shared")
    found = divided(dataclasses.replace(MPS, resources=(renamed,)), PASCAL)
    assert (found.divisions, found.refused, found.unserved) == ({}, {}, {})
    assert "pods can have it, as a whole" in found.remarks[0]
    sliced = divided(SLICED, PASCAL)
    assert (len(sliced.divisions), sliced.unserved, sliced.remarks) == (1, {}, ())


def test_a_card_on_which_mps_limits_nothing_is_divided_if_it_is_listed() -> None:
    listed = dataclasses.replace(FOUR, devices=("0",))
    other = make.gpu(1, cuda_compute_capability=(6, 1))
    found = divided(dataclasses.replace(MPS, resources=(listed,)), PASCAL, other)
    assert (found.divisions.keys(), found.unserved) == ({make.place(PASCAL)}, {})
    (said,) = found.remarks
    assert said == (
        "nvidia.com/gpu: each tenant can use all of GPU 0 (Tesla P4): MPS limits neither memory "
        "nor SMs on cards older than Volta"
    )


@pytest.mark.parametrize(
    ("devices", "positions"),
    [
        ("all", {0, 1, 2, 3}),
        (1, {0}),
        (2, {0, 1}),
        (("2", make.node_gpus()[-1].uuid), {0, 2}),
    ],
)
def test_a_config_may_name_the_gpus_that_are_divided_by_nvmls_positions(
    devices: DeviceChoice, positions: set[int]
) -> None:
    config = dataclasses.replace(SLICED, resources=(dataclasses.replace(FOUR, devices=devices),))
    gpus = make.node_gpus()
    found = divided(config, *gpus)
    assert found.divisions.keys() == {make.place(gpu) for gpu in gpus if gpu.index in positions}


@pytest.mark.parametrize(
    ("devices", "missing"),
    [
        (3, "nvidia.com/gpu: 3 to be divided, 1 there"),
        (("7",), "nvidia.com/gpu: no device 7"),
        (("0:1",), "nvidia.com/gpu: no device 0:1"),
    ],
)
def test_missing_named_devices_are_reported(devices: DeviceChoice, missing: str) -> None:
    config = dataclasses.replace(SLICED, resources=(dataclasses.replace(FOUR, devices=devices),))
    assert divided(config, make.gpu(0)).remarks == (missing,)


def mig_gpu() -> Gpu:
    return make.gpu(1, mig=make.mig(ONE, TWO), mig_mode=MigMode.ENABLED)


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        ("nvidia.com/mig-2g.20gb", "all", ONE),
        ("nvidia.com/mig-1g.10gb.me", "all", TWO),
        ("nvidia.com/mig-2g.20gb", ("1:0",), ONE),
        ("nvidia.com/mig-1g.10gb.me", (TWO.uuid.upper(),), TWO),
    ],
)
def test_mig_devices_are_divided_by_the_name_of_their_profile(
    name: str, devices: DeviceChoice, expected: MigDevice
) -> None:
    resource = SharedResource(name=name, served_as=name, devices=devices, replicas=2)
    found = divided(dataclasses.replace(SLICED, resources=(resource,)), make.gpu(0), mig_gpu())
    assert found.divisions.keys() == {make.place(expected)}


def test_each_resource_of_a_config_divides_devices_of_its_own() -> None:
    name = "nvidia.com/mig-2g.20gb"
    two = SharedResource(name=name, served_as="two", devices="all", replicas=2)
    found = divided(
        dataclasses.replace(SLICED, resources=(FOUR, two)), make.gpu(0), mig_gpu()
    ).divisions
    assert {device: (one.count, one.served_as) for device, one in found.items()} == {
        make.place(make.gpu(0)): (4, GPU),
        make.place(ONE): (2, "two"),
    }


def test_gpus_in_mig_mode_and_own_mig_devices_are_not_divided() -> None:
    mine = replace(ONE, made_here=True)
    gpu = make.gpu(1, mig=make.mig(mine), mig_mode=MigMode.ENABLED)
    resource = dataclasses.replace(FOUR, name="nvidia.com/mig-2g.20gb")
    found = divided(dataclasses.replace(SLICED, resources=(FOUR, resource)), gpu)
    assert found.divisions == {}
    (said,) = found.remarks
    assert said.startswith("nvidia.com/mig-2g.20gb is not shared: its MIG devices are made on dem")


def test_profiles_that_no_gpu_has_are_not_reported() -> None:
    of_another_card = dataclasses.replace(FOUR, name="nvidia.com/mig-1g.5gb")
    config = dataclasses.replace(SLICED, resources=(of_another_card,))
    assert divided(config, mig_gpu(), make.gpu(0)).remarks == ()


@pytest.mark.parametrize(
    ("capability", "cuda", "most"),
    [((3, 5), (12, 2), 16), ((6, 1), (12, 2), 16), ((7, 0), (12, 2), 48), ((9, 0), (13, 1), 60)],
)
def test_mps_serves_a_limited_number_of_clients(
    capability: tuple[int, int], cuda: tuple[int, int], most: int
) -> None:
    gpu = make.gpu(0, cuda_compute_capability=capability)
    listed = dataclasses.replace(FOUR, devices=("0",))

    def many(replicas: int) -> ShareLayout:
        resource = dataclasses.replace(listed, replicas=replicas)
        config = dataclasses.replace(MPS, resources=(resource,))
        return divided(config, gpu, cuda_version=cuda)

    assert many(most).divisions
    refused = many(most + 1)
    assert refused.divisions == {}
    assert f"MPS serves at most {most} clients" in refused.refused[make.place(gpu)]


def test_mps_serves_mig_devices_in_proportion_to_their_slices() -> None:
    resource = dataclasses.replace(FOUR, name="nvidia.com/mig-2g.20gb", replicas=14)
    found = divided(dataclasses.replace(MPS, resources=(resource,)), mig_gpu())
    assert "at most 13 clients" in found.refused[make.place(ONE)]


def test_a_card_without_mps_is_refused_and_can_be_time_sliced() -> None:
    old = make.gpu(0, cuda_compute_capability=(3, 0))
    listed = dataclasses.replace(FOUR, devices=("0",))
    found = divided(dataclasses.replace(MPS, resources=(listed,)), old)
    assert "does not support" in found.refused[make.place(old)]
    assert found.remarks == ()
    assert divided(SLICED, old).divisions


def test_memory_is_divided_for_the_resources_that_say_so() -> None:
    equal = dataclasses.replace(SLICED.resources[0], memory=Memory.EQUAL)
    config = dataclasses.replace(SLICED, resources=(equal,))
    for said, wanted in ((config, True), (SLICED, False)):
        divisions = divided(said, make.gpu(0)).divisions.values()
        assert [division.equal_memory for division in divisions] == [wanted]


def test_compute_is_free_where_the_config_says_so() -> None:
    found = divided(dataclasses.replace(MPS, compute=Compute.FREE), make.gpu(0)).divisions.values()
    assert [one.free_compute for one in found] == [True]
    assert [division.free_compute for division in divided(MPS, make.gpu(0)).divisions.values()] == [
        False
    ]


def test_under_mig_strategy_single_mig_devices_go_by_the_name_of_gpus() -> None:
    single = NodeConfig(mig_strategy="single")
    found = divided(single, make.gpu(0), mig_gpu())
    assert found.serving == {make.place(ONE): GPU, make.place(TWO): GPU}
    found = divided(dataclasses.replace(SLICED, mig_strategy="single"), mig_gpu())
    assert found.divisions.keys() == {make.place(ONE), make.place(TWO)}
    assert found.serving == {}


@pytest.mark.parametrize("strategy", [None, "none", "mixed"])
def test_under_the_others_they_go_by_their_profile(strategy: str | None) -> None:
    found = divided(dataclasses.replace(SLICED, mig_strategy=strategy), mig_gpu())
    assert (found.divisions, found.serving) == ({}, {})
