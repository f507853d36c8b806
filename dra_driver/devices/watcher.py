"""The inventory, kept current by a thread of its own.

If the GPU driver is missing or does not answer, the inventory is empty and says why. The cause is
logged once and looks continue with back-off. So a node that had no GPUs at first needs no restart
(dra-driver-nvidia-gpu#1008), nor does one whose MIG devices change (k8s-device-plugin#992).
"""

import threading
from collections.abc import Callable

import structlog

from dra_driver.devices.mig.partitions import awaits_reset
from dra_driver.devices.model import Gpu, Inventory
from dra_driver.errors import DriverError
from dra_driver.host.worker import Worker

log = structlog.get_logger()

_FIRST_RETRY_SECONDS = 1.0
_SILENT_SECONDS = 2.0
"""The time between looks while a GPU does not answer. They are cheap: it is not asked again."""

_NOTHING_YET = Inventory(
    driver_version=None, cuda_version=None, problem="this node's GPUs are not known yet"
)


class InventoryWatcher(Worker):
    """Looks for GPUs again and again. `look` may raise any DriverError."""

    def __init__(
        self,
        look: Callable[[], Inventory],
        *,
        rescan_seconds: float,
        on_change: Callable[[Inventory], None],
    ) -> None:
        """Take how and how often to look; `start` begins.

        `look` may block. `rescan_seconds` is the time from the end of a look to the next, and the
        longest back-off. `on_change` is called on the watcher's thread, after the first look and
        after each that finds something else.
        """
        super().__init__("inventory")
        self._look = look
        self._rescan_seconds = rescan_seconds
        self._on_change = on_change
        self._current = _NOTHING_YET
        self._looked = threading.Event()

    def current(self) -> Inventory:
        """Return the latest inventory. Never blocks."""
        return self._current

    def wait_until_looked(self, timeout: float) -> bool:
        """Wait until the first look is over; return whether it is."""
        return self._looked.wait(timeout)

    def _run(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            inventory = self._look_once()
            if self._stop.is_set():
                return
            self._take(inventory)
            if inventory.problem is None:
                retry_seconds = _FIRST_RETRY_SECONDS
                is_silent = any(gpu.is_silent for gpu in inventory.sick)
                soon = min(_SILENT_SECONDS, self._rescan_seconds)
                self._wait(soon if is_silent else self._rescan_seconds)
            else:
                self._wait(min(retry_seconds, self._rescan_seconds))
                retry_seconds = min(2 * retry_seconds, self._rescan_seconds)

    def _look_once(self) -> Inventory:
        try:
            return self._look()
        except DriverError as error:
            return Inventory(driver_version=None, cuda_version=None, problem=str(error))

    def _take(self, inventory: Inventory) -> None:
        before, is_first = self._current, not self._looked.is_set()
        self._current = inventory
        self._looked.set()
        if is_first or inventory != before:
            _log_change(before, inventory)
            self._on_change(inventory)


def _log_change(before: Inventory, now: Inventory) -> None:
    if now.problem is not None:
        log.warning("gpus not available", cause=now.problem)
        return
    log.info(
        "gpus found",
        gpus=len(now.gpus),
        sick=len(now.sick),
        driver_version=now.driver_version,
        gone=sorted({gpu.uuid for gpu in before.gpus} - {gpu.uuid for gpu in now.gpus}),
        awaiting_reset=[gpu.uuid for gpu in now.gpus if awaits_reset(gpu)],
    )
    links = {gpu.uuid: _active_links(gpu) for gpu in before.gpus}
    for gpu in now.gpus:
        if down := links.get(gpu.uuid, frozenset()) - _active_links(gpu):
            log.warning("nvlinks went down", gpu=gpu.uuid, links=sorted(down))
        if up := _active_links(gpu) - links.get(gpu.uuid, _active_links(gpu)):
            log.info("nvlinks came up", gpu=gpu.uuid, links=sorted(up))
    for sick in now.sick:
        if sick not in before.sick:
            log.error("gpu cannot be described", index=sick.index, cause=sick.reason)


def _active_links(gpu: Gpu) -> frozenset[int]:
    return frozenset(link.number for link in gpu.nvlinks if link.is_active)
