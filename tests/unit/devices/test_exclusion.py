"""Which GPUs of a machine are left out."""

import make
from dra_driver.devices.exclusion import admitting, without_excluded
from dra_driver.devices.gpu_words import gpu_words
from dra_driver.devices.model import SickGpu

H100 = make.gpu(0)
T4S = tuple(make.gpu(minor, product_name="Tesla T4") for minor in (1, 2))
NODE = make.inventory(H100, *T4S)


def test_by_default_no_gpu_is_excluded() -> None:
    assert without_excluded(NODE, ()) == NODE


def test_named_gpus_are_excluded_with_the_reason() -> None:
    found = without_excluded(NODE, gpu_words("0,12:00"))

    assert found.gpus == (T4S[0],)
    assert [(str(one), one.why) for one in found.excluded] == [
        (
            f"GPU 0 (NVIDIA H100 80GB HBM3, {H100.uuid}, 0000:10:00.0)",
            'it is left out by "0" of --exclude-gpus',
        ),
        (
            f"GPU 2 (Tesla T4, {T4S[1].uuid}, 0000:12:00.0)",
            'it is left out by "0000:12:00.0" of --exclude-gpus',
        ),
    ]
    assert found.unmatched == ()


def test_an_index_is_nvmls_position_and_ids_are_exact() -> None:
    gpus = make.node_gpus()
    for left in gpus:
        for word in (str(left.index), left.uuid, left.pci_address):
            found = without_excluded(make.inventory(*gpus), gpu_words(word))
            assert [(one.index, one.uuid) for one in found.excluded] == [(left.index, left.uuid)]
            assert set(found.gpus) == set(gpus) - {left}


def test_every_gpu_can_be_left_out() -> None:
    assert without_excluded(NODE, gpu_words("0,1,2")).gpus == ()


def test_a_gpu_in_use_stays_but_is_reported_as_excluded() -> None:
    found = without_excluded(NODE, gpu_words("1,2"), lambda gpu: gpu is T4S[0])

    assert found.gpus == (H100, T4S[0])
    assert [(one.index, one.is_in_use) for one in found.excluded] == [(1, True), (2, False)]


def test_a_gpu_that_cannot_be_described_is_left_out_by_its_index() -> None:
    sick = (SickGpu(index=3, reason="lost"), SickGpu(index=4, reason="lost"))
    found = without_excluded(make.inventory(H100, sick=sick), gpu_words("3"))

    assert [one.index for one in found.sick] == [4]
    assert [str(one) for one in found.excluded] == ["GPU 3"]
    assert found.unmatched == ()


def test_a_word_that_names_no_gpu_is_reported() -> None:
    found = without_excluded(NODE, gpu_words("7,0"))

    assert found.gpus == T4S
    assert found.unmatched == (
        '"7" of --exclude-gpus excludes nothing: this node has 3 GPUs, and it matches none of them',
    )


def test_a_gpu_for_virtual_machines_is_left_out_by_its_address() -> None:
    node = make.inventory(H100, passthrough=(make.passthrough(1), make.passthrough(2)))
    found = without_excluded(node, gpu_words("0000:11:00.0"))
    assert [card.number for card in found.passthrough] == [2]
    assert (found.gpus, found.unmatched) == ((H100,), ())
    in_use = without_excluded(node, gpu_words("11:00,12:00"), lambda gpu: "11-00" in gpu.uuid)
    assert [card.number for card in in_use.passthrough] == [1]


def test_the_sick_are_mentioned_where_a_word_may_mean_one_of_them() -> None:
    sick = (SickGpu(index=1, reason="lost"),)
    found = without_excluded(make.inventory(H100, sick=sick), gpu_words(T4S[0].uuid))

    assert "this node has 2 GPUs, 1 of them not answering" in found.unmatched[0]


def test_a_claim_that_had_a_gpu_before_gets_it_again() -> None:
    found = without_excluded(NODE, gpu_words("1,2"), lambda _: True)

    assert [one.index for one in admitting(found, {T4S[0].uuid}).excluded] == [2]
    assert admitting(found, set()) is found
