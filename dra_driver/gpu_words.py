"""How people name GPUs in a setting or a label of a Node: index, UUID, PCI address or product.

In: a text. Out: `GpuWord`s, each of which matches some GPUs. A setting separates words by commas.
The value of a label may only have letters, digits, `.`, `_` and `-`, at most 63 of them: there
words are separated by `_`, and a word has `-` for each `:` and each blank. Both forms mean the same
in either place. Pure.
"""

import re
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"gpu-[0-9a-f][0-9a-f-]{7,35}")
_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8})[:-])?(?P<place>[0-9a-f]{2}[:-][0-9a-f]{2})(?P<function>\.[0-7])?"
)
_PRODUCT = re.compile(r"[a-z0-9 ._+()/*?-]*[a-z*?][a-z0-9 ._+()/*?-]*")
_BLANKS = re.compile(r"[\s-]+")


class Named(Protocol):
    """The properties by which a GPU can be named (devices/model.py)."""

    @property
    def index(self) -> int:
        """NVML's position."""
        ...

    @property
    def uuid(self) -> str:
        """`GPU-xxxxxxxx-…`."""
        ...

    @property
    def pci_address(self) -> str:
        """`0000:65:00.0`."""
        ...

    @property
    def product_name(self) -> str:
        """`NVIDIA A100-SXM4-40GB`."""
        ...


class GpuWord(Struct, frozen=True, kw_only=True):
    """One word: `text` as it was written, and in `pattern` what it is compared by."""

    text: str
    kind: str
    pattern: str

    def is_index(self, index: int) -> bool:
        """Tell whether it names the GPU at a position, about which nothing else may be known."""
        return self.kind == "index" and int(self.pattern) == index

    def names(self, gpu: Named) -> bool:
        """Tell whether it names a GPU."""
        match self.kind:
            case "index":
                return self.is_index(gpu.index)
            case "uuid":
                return gpu.uuid.lower().startswith(self.pattern)
            case "pci":
                return gpu.pci_address.lower() == self.pattern
            case _:
                return fnmatchcase(_plain(gpu.product_name), self.pattern)


def words(text: str, separator: str = ",") -> tuple[str, ...]:
    """Return the words of a text, none of them empty."""
    return tuple(word for part in text.split(separator) if (word := part.strip()))


def gpu_word(text: str) -> GpuWord:
    """Return the meaning of a word. Raises ValueError if it names no GPU in any of these ways.

    A UUID may be cut after eight digits or more; a PCI address may lack domain and function. A
    product is named in full, or with `*` for any letters and `?` for one; case does not matter.
    """
    low = text.lower()
    if _INDEX.fullmatch(low):
        return GpuWord(text=text, kind="index", pattern=low)
    if _UUID.fullmatch(low):
        return GpuWord(text=text, kind="uuid", pattern=low)
    if match := _PCI.fullmatch(low):
        domain = int(match["domain"] or "0", 16)
        place = match["place"].replace("-", ":")
        pattern = f"{domain:04x}:{place}{match['function'] or '.0'}"
        return GpuWord(text=text, kind="pci", pattern=pattern)
    if low.startswith("mig-"):
        raise ValueError(
            f"{text!r} is a MIG device: name its GPU, which is then excluded as a whole"
        )
    if low.startswith("gpu-") or not _PRODUCT.fullmatch(low):
        raise ValueError(
            f"{text!r} is not an index (3), UUID (GPU-5c9e7a1b-…, eight digits or more), PCI "
            "address "
            "(0000:65:00.0) or product name (Tesla P4, *A100*)"
        )
    return GpuWord(text=text, kind="product", pattern=_plain(low))


def checked_words(text: str) -> str:
    """Return a list of GPUs in a setting unchanged; a word that names none raises ValueError."""
    for word in words(text):
        gpu_word(word)
    return text


def _plain(product: str) -> str:
    return _BLANKS.sub("-", product.strip().lower())
