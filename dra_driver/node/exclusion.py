"""The GPUs of this node that are left out: the setting, and the Node's label as it changes.

In: the setting, the labels, each look at the machine, and which GPUs claims use. Out: the looks
without the GPUs that are left out, a call when the label has changed, log lines for what is left
out and for words that name no GPU, and a note of both on disk for commands.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from dra_driver.claims.state.ownership import Ownership
from dra_driver.claims.takeover import checkpoint_file
from dra_driver.devices.exclusion import (
    LABEL,
    Exclusion,
    ExclusionNote,
    read_note,
    without_excluded,
    write_note,
)
from dra_driver.devices.model import ExcludedGpu, Gpu, GpuUuid, Inventory
from dra_driver.errors import StateError
from dra_driver.kube.own_node import Labels, OwnNode

log = structlog.get_logger()


class NodeExclusion:
    """What is left out on one node. For any thread."""

    def __init__(
        self,
        labels: OwnNode,
        setting: str,
        *,
        directory: Path,
        ownership: Ownership,
        on_change: Callable[[], None],
    ) -> None:
        self._labels = labels
        self._setting = setting
        self._directory = directory
        self._ownership = ownership
        self._on_change = on_change
        self._lock = threading.Lock()
        # Until the label is known what it left out last stays left out.
        known = read_note(directory).exclusion
        self._exclusion = Exclusion(setting=setting, label=known.label)
        self._is_known = False
        self._noted: ExclusionNote | None = None
        labels.listen(self._take)

    def leave_out(self, inventory: Inventory) -> Inventory:
        """Return what a look found, without the GPUs that are left out and not in use."""
        exclusion = self._exclusion
        left = without_excluded(inventory, exclusion, self._is_in_use)
        self._say(
            ExclusionNote(
                setting=exclusion.setting,
                label=exclusion.label,
                excluded=tuple(map(_line, left.excluded)),
                unmatched=left.unmatched,
            )
        )
        return left

    def reasons(self, inventory: Inventory) -> Mapping[GpuUuid, str]:
        """Return why GPUs of an inventory are not published. Raises DriverError.

        They may be in it because a claim uses them, or because the label is newer.
        """
        if not self._is_known:
            self._take(self._labels.current())
        exclusion = self._exclusion
        reasons = {gpu.uuid: exclusion.why(gpu) for gpu in inventory.gpus}
        return {uuid: why for uuid, why in reasons.items() if why is not None}

    def _take(self, labels: Labels) -> None:
        exclusion = Exclusion(setting=self._setting, label=labels.get(LABEL, ""))
        with self._lock:
            before, self._exclusion = self._exclusion, exclusion
            self._is_known = True
        if exclusion != before:
            self._on_change()

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

    def _say(self, note: ExclusionNote) -> None:
        with self._lock:
            before, self._noted = self._noted, note
        if note == before:
            return
        known = ExclusionNote() if before is None else before
        for line in note.excluded:
            if line not in known.excluded:
                log.info("gpu left out", gpu=line)
        names = set(map(_name, note.excluded))
        for name in sorted(set(map(_name, known.excluded)) - names):
            log.info("gpu no longer left out", gpu=name)
        for line in note.unmatched:
            if line not in known.unmatched:
                log.warning("exclusion without effect", reason=line)
        try:
            write_note(self._directory, note)
        except StateError as error:
            log.warning("excluded gpus not noted", reason=str(error))


def _line(gpu: ExcludedGpu) -> str:
    used = "; a claim that already has it keeps it until it ends" if gpu.is_in_use else ""
    return f"{gpu}: {gpu.why}{used}"


def _name(line: str) -> str:
    return line.partition(": ")[0]
