"""How people name GPUs in a setting: by index, UUID or PCI address, separated by commas. Pure."""

import re

_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"gpu-[0-9a-f][0-9a-f-]{7,35}")
_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<place>[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7])?"
)


def gpu_words(text: str) -> tuple[str, ...]:
    """Return the words of a list: `3`, `gpu-5c9e7a1b`, `0000:65:00.0`.

    A UUID may be cut after eight digits or more; a PCI address may lack domain and function. Raises
    ValueError for a word that can name no GPU.
    """
    return tuple(_gpu_word(word) for part in text.split(",") if (word := part.strip()))


def checked_words(text: str) -> str:
    """Return a list of GPUs unchanged. Raises ValueError for a word that can name no GPU."""
    gpu_words(text)
    return text


def _gpu_word(text: str) -> str:
    low = text.lower()
    if _INDEX.fullmatch(low):
        return str(int(low))
    if _UUID.fullmatch(low):
        return low
    if match := _PCI.fullmatch(low):
        domain = int(match["domain"] or "0", 16)
        return f"{domain:04x}:{match['place']}{match['function'] or '.0'}"
    if low.startswith("mig-"):
        raise ValueError(
            f"{text!r} is a MIG device: name its GPU, which is then excluded as a whole"
        )
    raise ValueError(
        f"{text!r} is not an index (3), UUID (GPU-5c9e7a1b-…, eight digits or more) or PCI address "
        "(0000:65:00.0)"
    )
