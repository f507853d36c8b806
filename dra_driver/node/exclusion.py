"""The GPUs of this node that are left out.

In: the setting, each look at the machine, and which GPUs claims use. Out: the looks without the
GPUs that are left out, and log lines for these and for words that name no GPU.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog

from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.takeover import checkpoint_file
from dra_driver.devices.exclusion import why_excluded, without_excluded
from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.errors import StateError
from dra_driver.gpu_words import gpu_words

log = structlog.get_logger()


class NodeExclusion:
    """What is left out on one node. `leave_out` is for one thread at a time."""

    def __init__(self, setting: str, *, directory: Path, ownership: Ownership) -> None:
        self._words = gpu_words(setting)
        self._directory = directory
        self._ownership = ownership
        self._said: frozenset[str] = frozenset()

    def leave_out(self, inventory: Inventory) -> Inventory:
        """Return what a look found, without the GPUs that are left out and not in use."""
        left = without_excluded(inventory, self._words, self._is_in_use)
        lines = tuple(map(_line, left.excluded))
        for line in lines:
            if line not in self._said:
                log.info("gpu left out", gpu=line)
        for line in left.unmatched:
            if line not in self._said:
                log.warning("exclusion without effect", reason=line)
        self._said = frozenset((*lines, *left.unmatched))
        return left

    def reasons(self, inventory: Inventory) -> Mapping[GpuUuid, str]:
        """Return why GPUs of an inventory are not published: a claim uses them, so they stay."""
        reasons = {gpu.uuid: why_excluded(self._words, gpu) for gpu in inventory.gpus}
        return {uuid: why for uuid, why in reasons.items() if why is not None}

    def _is_in_use(self, gpu: Gpu) -> bool:
        """Tell whether claims use a GPU, or have left something on it.

        Claims of NVIDIA's DRA driver that are still to be taken over count as well. An unreadable
        record may be about any GPU.
        """
        ownership, uuid = self._ownership, gpu.uuid
        try:
            if ownership.holders(uuid) or ownership.made(uuid) or ownership.turned_on(uuid):
                return True
        except StateError:
            return True  # better seen than not taken back
        if not checkpoint_file.is_there(self._directory):
            return False
        from dra_driver.claims.takeover import peer_claims  # noqa: PLC0415 (see checkpoint_file)

        peers = peer_claims.look(self._directory, None)
        return peers.problem is not None or gpu.minor in peers.minors


def _line(gpu: ExcludedGpu) -> str:
    used = "; a claim that already has it keeps it until it ends" if gpu.is_in_use else ""
    return f"{gpu}: {gpu.why}{used}"
