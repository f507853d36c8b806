"""Which GPUs of a node are excluded: the driver neither publishes nor touches them.

The setting `--exclude-gpus` names them (gpu_words.py); see k8s-device-plugin#197. If a claim still
has something of an excluded GPU, the GPU stays until that is released, so that the claim's pods
keep working; new claims are refused. Words that name no GPU are reported.
"""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.host.words import count


def why_excluded(words: Collection[str], gpu: Gpu) -> str | None:
    """Return why a GPU is excluded; None if none of these words names it."""
    return next((_why(word) for word in words if _names(word, gpu)), None)


def without_excluded(
    inventory: Inventory,
    words: Collection[str],
    is_in_use: Callable[[Gpu], bool] = lambda _: False,
) -> Inventory:
    """Return an inventory without the excluded GPUs that are not in use; `excluded` lists them all.

    A GPU that cannot be described can be excluded only by its index.
    """
    reasons = {
        gpu.uuid: why for gpu in inventory.gpus if (why := why_excluded(words, gpu)) is not None
    }
    used = {gpu.uuid for gpu in inventory.gpus if gpu.uuid in reasons and is_in_use(gpu)}
    of_sick = {sick.index for sick in inventory.sick if str(sick.index) in words}
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
    excluded += [ExcludedGpu(index=index, why=_why(str(index))) for index in of_sick]
    return replace(
        inventory,
        gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid not in reasons or gpu.uuid in used),
        sick=tuple(sick for sick in inventory.sick if sick.index not in of_sick),
        passthrough=tuple(
            card
            for card in inventory.passthrough
            if why_excluded(words, card.gpu) is None or is_in_use(card.gpu)
        ),
        excluded=tuple(sorted(excluded, key=lambda gpu: gpu.index)),
        unmatched=tuple(_unmatched(inventory, words)),
    )


def admitting(inventory: Inventory, gpus: AbstractSet[GpuUuid]) -> Inventory:
    """Return an inventory in which GPUs that a claim already has are not excluded for it."""
    left = tuple(gpu for gpu in inventory.excluded if gpu.uuid not in gpus)
    return inventory if left == inventory.excluded else replace(inventory, excluded=left)


def _unmatched(inventory: Inventory, words: Collection[str]) -> Iterator[str]:
    """Yield a message for each word that names none of these GPUs."""
    there_are = count(len(inventory.gpus) + len(inventory.sick), "GPU")
    sick = f", {len(inventory.sick)} of them not answering" if inventory.sick else ""
    named = (*inventory.gpus, *(card.gpu for card in inventory.passthrough))
    indices = {str(gpu.index) for gpu in inventory.sick}
    for word in words:
        if word not in indices and not any(_names(word, gpu) for gpu in named):
            yield (
                f'"{word}" of --exclude-gpus excludes nothing: this node has {there_are}{sick}, '
                "and it matches none of them"
            )


def _names(word: str, gpu: Gpu) -> bool:
    if word.startswith("gpu-"):
        return gpu.uuid.lower().startswith(word)
    return word in {str(gpu.index), gpu.pci_address.lower()}


def _why(word: str) -> str:
    return f'it is left out by "{word}" of --exclude-gpus'
