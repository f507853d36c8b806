"""Which GPUs of a machine are left out."""

from pathlib import Path

import pytest

import make
from dra_driver.devices.exclusion import (
    LABEL,
    NOTE_FILE,
    Exclusion,
    ExclusionNote,
    admitting,
    read_note,
    without_excluded,
    write_note,
)
from dra_driver.devices.model import SickGpu
from dra_driver.errors import StateError

H100 = make.gpu(0)
T4S = tuple(make.gpu(minor, product_name="Tesla T4") for minor in (1, 2))
NODE = make.inventory(H100, *T4S)


def test_nothing_is_left_out_unless_somebody_says_so() -> None:
    assert without_excluded(NODE, Exclusion()) == NODE


def test_what_setting_and_label_name_is_left_out_and_told_with_the_reason() -> None:
    found = without_excluded(NODE, Exclusion(setting="0", label="0000-12-00.0"))

    assert found.gpus == (T4S[0],)
    assert [(str(one), one.why) for one in found.excluded] == [
        (
            f"GPU 0 (NVIDIA H100 80GB HBM3, {H100.uuid}, 0000:10:00.0)",
            'it is left out by "0" of --exclude-gpus',
        ),
        (
            f"GPU 2 (Tesla T4, {T4S[1].uuid}, 0000:12:00.0)",
            f'it is left out by "0000-12-00.0" of label {LABEL}',
        ),
    ]
    assert found.unmatched == ()


def test_a_word_can_leave_out_every_gpu() -> None:
    assert without_excluded(NODE, Exclusion(setting="*")).gpus == ()
    assert len(without_excluded(NODE, Exclusion(label="Tesla-T4")).excluded) == 2


def test_an_index_is_nvmls_position_and_a_uuid_and_an_address_are_no_other_gpu_s() -> None:
    gpus = make.node_gpus()
    for left in gpus:
        for word in (str(left.index), left.uuid, left.pci_address):
            found = without_excluded(make.inventory(*gpus), Exclusion(setting=word))
            assert [(one.index, one.uuid) for one in found.excluded] == [(left.index, left.uuid)]
            assert set(found.gpus) == set(gpus) - {left}


def test_a_gpu_in_use_stays_and_is_told_as_left_out_all_the_same() -> None:
    found = without_excluded(NODE, Exclusion(setting="1,2"), lambda gpu: gpu is T4S[0])

    assert found.gpus == (H100, T4S[0])
    assert [(one.index, one.is_in_use) for one in found.excluded] == [(1, True), (2, False)]


def test_a_gpu_that_cannot_be_described_is_left_out_by_its_index() -> None:
    sick = (SickGpu(index=3, reason="lost"), SickGpu(index=4, reason="lost"))
    found = without_excluded(make.inventory(H100, sick=sick), Exclusion(setting="3"))

    assert [one.index for one in found.sick] == [4]
    assert [str(one) for one in found.excluded] == ["GPU 3"]
    assert found.unmatched == ()


THERE = "this node has 3 GPUs (NVIDIA H100 80GB HBM3, Tesla T4), and it matches none of them"


def test_a_word_that_names_no_gpu_is_told_with_what_there_is() -> None:
    found = without_excluded(NODE, Exclusion(setting="7,T4"))

    assert found.gpus == NODE.gpus
    index, product = found.unmatched
    assert index == f'"7" of --exclude-gpus excludes nothing: {THERE}'
    assert product.endswith(f"{THERE}; write a product's full name, or a wildcard: *T4*")


def test_a_gpu_for_virtual_machines_is_left_out_by_its_address() -> None:
    node = make.inventory(H100, passthrough=(make.passthrough(1), make.passthrough(2)))
    found = without_excluded(node, Exclusion(setting="0000:11:00.0"))
    assert [card.number for card in found.passthrough] == [2]
    assert (found.gpus, found.unmatched) == ((H100,), ())
    in_use = without_excluded(node, Exclusion(setting="*"), lambda gpu: "11-00" in gpu.uuid)
    assert [card.number for card in in_use.passthrough] == [1]


def test_a_word_of_the_label_that_can_name_no_gpu_is_told_with_the_forms_there_are() -> None:
    (text,) = without_excluded(NODE, Exclusion(label="GPU-x")).unmatched

    assert text.startswith(
        f"\"GPU-x\" of label {LABEL} excludes nothing: 'GPU-x' is not an index (3)"
    )


def test_a_wrong_word_takes_no_other_along() -> None:
    found = without_excluded(NODE, Exclusion(label="GPU-x_1"))

    assert [one.index for one in found.excluded] == [1]
    assert len(found.unmatched) == 1


def test_the_sick_are_mentioned_where_a_word_may_mean_one_of_them() -> None:
    sick = (SickGpu(index=1, reason="lost"),)
    found = without_excluded(make.inventory(H100, sick=sick), Exclusion(setting=T4S[0].uuid))

    assert "this node has 2 GPUs, 1 of them not answering" in found.unmatched[0]


def test_a_claim_that_had_a_gpu_before_gets_it_again() -> None:
    found = without_excluded(NODE, Exclusion(setting="1,2"), lambda _: True)

    assert [one.index for one in admitting(found, {T4S[0].uuid}).excluded] == [2]
    assert admitting(found, set()) is found


def test_the_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    note = ExclusionNote(setting="0", label="1_2", excluded=("GPU 0: why",), unmatched=("x",))
    write_note(tmp_path, note)

    assert read_note(tmp_path) == note
    assert note.exclusion == Exclusion(setting="0", label="1_2")


def test_no_note_and_a_damaged_one_say_that_nothing_is_left_out(tmp_path: Path) -> None:
    assert read_note(tmp_path) == ExclusionNote()
    (tmp_path / NOTE_FILE).write_text("{}")
    assert read_note(tmp_path) == ExclusionNote()


def test_a_note_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="No such file or directory"):
        write_note(tmp_path / "absent", ExclusionNote())
