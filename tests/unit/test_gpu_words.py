"""How a GPU is named in a setting or a label."""

import pytest

import make
from dra_driver.gpu_words import gpu_word, words

A100 = make.gpu(
    3,
    uuid="GPU-5c9e7a1b-0000-4000-8000-000000000003",
    pci_address="0000:65:00.0",
    product_name="NVIDIA A100-SXM4-40GB",
)
T4 = make.gpu(
    1,
    uuid="GPU-77777777-0000-4000-8000-000000000001",
    pci_address="0001:65:00.0",
    product_name="Tesla T4",
)


@pytest.mark.parametrize(
    "word",
    [
        "3",
        "03",
        A100.uuid,
        A100.uuid.upper(),
        "GPU-5c9e7a1b",
        "0000:65:00.0",
        "00000000:65:00.0",
        "65:00.0",
        "65:00",
        "0000-65-00.0",
        "NVIDIA A100-SXM4-40GB",
        "nvidia-a100-sxm4-40gb",
        "*A100*",
        "NVIDIA?A100*",
    ],
)
def test_a_gpu_is_named_by_index_uuid_pci_address_or_product(word: str) -> None:
    assert gpu_word(word).names(A100)
    assert not gpu_word(word).names(T4)


def test_an_index_alone_is_true_of_a_gpu_that_cannot_be_described() -> None:
    assert gpu_word("3").is_index(3)
    assert not gpu_word("3").is_index(1)
    assert not gpu_word("*A100*").is_index(3)


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("MIG-5c9e7a1b-0000-4000-8000-000000000003", "is a MIG device: name its GPU"),
        ("GPU-5c9e", "eight digits or more"),
        ("GPU-everything", "is not an index"),
        ("0000:65:00.9", "is not an index"),
        ("12345", "is not an index"),
        ("A100;rm", "is not an index"),
        ("[A-Z]*", "is not an index"),
        ("-", "is not an index"),
    ],
)
def test_what_can_name_no_gpu_is_refused(word: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        gpu_word(word)


def test_words_stand_between_commas_and_blanks_around_them_do_not_count() -> None:
    assert words(" 0, Tesla T4 ,,*A100* ") == ("0", "Tesla T4", "*A100*")
    assert words("0_Tesla-T4_", "_") == ("0", "Tesla-T4")
    assert words("") == ()
