"""How a GPU is named in a setting."""

import pytest

from dra_driver.devices.gpu_words import gpu_words

UUID = "GPU-5c9e7a1b-0000-4000-8000-000000000003"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("3", "3"),
        ("03", "3"),
        (UUID, UUID.lower()),
        (UUID.upper(), UUID.lower()),
        ("GPU-5c9e7a1b", "gpu-5c9e7a1b"),
        ("0000:65:00.0", "0000:65:00.0"),
        ("00000000:65:00.0", "0000:65:00.0"),
        ("65:00.0", "0000:65:00.0"),
        ("65:00", "0000:65:00.0"),
        ("0001:65:00", "0001:65:00.0"),
    ],
)
def test_a_gpu_is_named_by_index_uuid_or_pci_address(text: str, word: str) -> None:
    assert gpu_words(text) == (word,)


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("MIG-5c9e7a1b-0000-4000-8000-000000000003", "is a MIG device: name its GPU"),
        ("GPU-5c9e", "eight digits or more"),
        ("GPU-everything", "is not an index"),
        ("0000:65:00.9", "is not an index"),
        ("12345", "is not an index"),
        ("Tesla T4", "is not an index"),
        ("*", "is not an index"),
        ("-", "is not an index"),
    ],
)
def test_words_that_can_name_no_gpu_are_refused(word: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        gpu_words(word)


def test_words_stand_between_commas_and_blanks_around_them_do_not_count() -> None:
    assert gpu_words(" 0, 65:00 ,,GPU-5c9e7a1b ") == ("0", "0000:65:00.0", "gpu-5c9e7a1b")
    assert gpu_words("") == ()
