"""Which GPUs of a node are excluded: the driver neither publishes nor touches them.

The setting `--exclude-gpus` and the Node's label name them. If a claim still has something of an
excluded GPU, the GPU stays until that is released, so that the claim's pods keep working; new
claims are refused. Words that name no GPU are reported with the reason. The exclusion is noted in a
sealed file in the driver's directory, for commands on the node, which do not read the label.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.errors import StateError
from dra_driver.gpu_words import GpuWord, gpu_word, words
from dra_driver.host.envelope import seal, unseal, value_of
from dra_driver.host.files import read_whole, write_whole
from dra_driver.words import count

LABEL = "nvidia.com/dra-driver.exclude-gpus"
"""The Node label that names GPUs to exclude in addition to those of the setting."""

SETTING = "--exclude-gpus"

NOTE_FILE = "exclusion.json"
"""The name of the note in the driver's directory."""


class Exclusion(Struct, frozen=True, kw_only=True):
    """The texts of the setting and the label, whose words name the GPUs to exclude."""

    setting: str = ""
    label: str = ""

    def words(self) -> list[tuple[str, GpuWord]]:
        """Return each word that can name a GPU, with its source."""
        return [
            (source, word)
            for source, text in self._texts()
            if isinstance(word := _meaning(text), GpuWord)
        ]

    def misspelt(self) -> list[str]:
        """Return a message for each word that cannot name a GPU, with the reason."""
        return [
            f'"{text}" of {source} excludes nothing: {meaning}'
            for source, text in self._texts()
            if isinstance(meaning := _meaning(text), str)
        ]

    def why(self, gpu: Gpu) -> str | None:
        """Return why a GPU is excluded; None if it is not."""
        return next((_why(source, word) for source, word in self.words() if word.names(gpu)), None)

    def _texts(self) -> list[tuple[str, str]]:
        texts = [(SETTING, text) for text in words(self.setting)]
        return texts + [(f"label {LABEL}", text) for text in words(self.label, "_")]


def without_excluded(
    inventory: Inventory,
    exclusion: Exclusion,
    is_in_use: Callable[[Gpu], bool] = lambda _: False,
) -> Inventory:
    """Return an inventory without the excluded GPUs that are not in use; `excluded` lists them all.

    A GPU that cannot be described can be excluded only by its index.
    """
    reasons = {gpu.uuid: why for gpu in inventory.gpus if (why := exclusion.why(gpu)) is not None}
    used = {gpu.uuid for gpu in inventory.gpus if gpu.uuid in reasons and is_in_use(gpu)}
    of_sick = {
        sick.index: _why(source, word)
        for sick in inventory.sick
        for source, word in reversed(exclusion.words())
        if word.is_index(sick.index)
    }
    excluded = [
        ExcludedGpu(
            index=gpu.index,
            why=reasons[gpu.uuid],
            minor=gpu.minor,
            uuid=gpu.uuid,
            pci_address=gpu.pci_address,
            product_name=gpu.product_name,
            is_in_use=gpu.uuid in used,
        )
        for gpu in inventory.gpus
        if gpu.uuid in reasons
    ]
    excluded += [ExcludedGpu(index=index, why=why) for index, why in of_sick.items()]
    return replace(
        inventory,
        gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid not in reasons or gpu.uuid in used),
        sick=tuple(sick for sick in inventory.sick if sick.index not in of_sick),
        passthrough=tuple(
            card
            for card in inventory.passthrough
            if exclusion.why(card.gpu) is None or is_in_use(card.gpu)
        ),
        excluded=tuple(sorted(excluded, key=lambda gpu: gpu.index)),
        unmatched=(*exclusion.misspelt(), *_unmatched(inventory, exclusion)),
    )


def admitting(inventory: Inventory, gpus: AbstractSet[GpuUuid]) -> Inventory:
    """Return an inventory in which GPUs that a claim already has are not excluded for it."""
    left = tuple(gpu for gpu in inventory.excluded if gpu.uuid not in gpus)
    return inventory if left == inventory.excluded else replace(inventory, excluded=left)


def _unmatched(inventory: Inventory, exclusion: Exclusion) -> Iterator[str]:
    """Yield a message for each word that names none of these GPUs, with the GPUs there are."""
    there = ", ".join(sorted({gpu.product_name for gpu in inventory.gpus})) or "no product known"
    there_are = count(len(inventory.gpus) + len(inventory.sick), "GPU")
    named = (*inventory.gpus, *(card.gpu for card in inventory.passthrough))
    for source, word in exclusion.words():
        if any(word.names(gpu) for gpu in named):
            continue
        if any(word.is_index(sick.index) for sick in inventory.sick):
            continue
        plain = word.kind == "product" and not {"*", "?"} & set(word.text)
        how = f"; write a product's full name, or a wildcard: *{word.text}*" if plain else ""
        sick = f", {len(inventory.sick)} of them not answering" if inventory.sick else ""
        yield (
            f'"{word.text}" of {source} excludes nothing: this node has {there_are}{sick} '
            f"({there}), and it matches none of them{how}"
        )


def _meaning(text: str) -> GpuWord | str:
    try:
        return gpu_word(text)
    except ValueError as error:
        return str(error)


def _why(source: str, word: GpuWord) -> str:
    return f'it is left out by "{word.text}" of {source}'


class ExclusionNote(Struct, frozen=True, kw_only=True):
    """The exclusion as the driver notes it for commands on its node.

    `setting` and `label` are the exclusion's own. `excluded` has a line for each excluded GPU, and
    `unmatched` has one for each word that excludes nothing.
    """

    setting: str = ""
    label: str = ""
    excluded: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def exclusion(self) -> Exclusion:
        """The exclusion that was noted."""
        return Exclusion(setting=self.setting, label=self.label)


def write_note(directory: Path, note: ExclusionNote) -> None:
    """Write the note. Raises StateError if the disk cannot be written."""
    path = directory / NOTE_FILE
    try:
        write_whole(path, seal(msgspec.to_builtins(note)), mode=0o600, durable=False)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}") from error


def read_note(directory: Path) -> ExclusionNote:
    """Return the note; an empty one if there is none or it is damaged."""
    try:
        contents = read_whole(directory / NOTE_FILE)
        if contents is None:
            return ExclusionNote()
        return value_of(unseal(contents[0]), ExclusionNote, "a note")
    except (OSError, StateError):
        return ExclusionNote()
