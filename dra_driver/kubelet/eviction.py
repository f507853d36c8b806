"""Makes a driver that is evicted before the pods with claims wait for them.

A pod with claims cannot end while no driver unprepares them. Before it replaces the GPU driver, GPU
Operator's driver manager gives labels of the Node a value by which DaemonSets leave, and only then
evicts pods with GPUs (k8s-driver-manager#203). Without the wait these pods would never end, and the
manager would not continue. The MPS supervisor, which is evicted as well and has no access to the
API server, sees by a lock that it is needed until the driver leaves.
"""

from collections.abc import Callable
from pathlib import Path

import structlog

from dra_driver.errors import DriverError, StateError
from dra_driver.host.ofd_lock import NamedLock
from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import texts_by_name

PAUSED = "paused-for-driver-upgrade"
"""Part of each label's value by which GPU Operator's driver manager evicts pods from a Node."""

_REQUEST_SECONDS = 2.0
_LOOK_SECONDS = 0.25
_ASK_EVERY = 8
"""How often claims are checked for each check of the Node's labels."""

log = structlog.get_logger()


class Eviction:
    """Whether this driver is evicted for another GPU driver, and the wait for claims."""

    def __init__(
        self,
        api: KubeClient,
        node_name: str,
        *,
        is_in_use: Callable[[], bool],
        lock: Path,
        longest: float,
        clock: Callable[[], float],
    ) -> None:
        """Take what to ask; nothing is asked yet.

        `is_in_use` tells whether a claim is prepared here, or raises StateError. `lock` is the file
        that the MPS supervisor looks at; without its folder there is none. `longest` is in seconds,
        0 for no wait; the clock is monotonic.
        """
        self._api = api
        self._node_name = node_name
        self._asked_if_in_use = is_in_use
        self._folder = lock.parent
        self._lock = NamedLock(lock)
        self._longest = longest
        self._clock = clock

    def wait_for_claims(self, pause: Callable[[float], bool]) -> bool:
        """Wait until no claim is prepared, if this driver is evicted; return whether it is.

        The wait also ends when the labels are back, because then another driver will come, and when
        `pause`, which is given seconds, says that the process has to end at once.
        """
        if not self._is_paused(otherwise=False):
            return False
        end = self._clock() + self._longest
        if self._longest and self._is_in_use():
            self._tell_supervisor()
            log.info("claims of evicted pods waited for", seconds=self._longest)
            try:
                self._wait(end, pause)
            finally:
                self._lock.release()
        return True

    def _wait(self, end: float, pause: Callable[[float], bool]) -> None:
        looks = 0
        while self._is_in_use():
            looks += 1
            if self._clock() >= end:
                log.warning("claims of evicted pods still prepared", seconds=self._longest)
                return
            if pause(_LOOK_SECONDS):
                return
            if looks % _ASK_EVERY == 0 and not self._is_paused(otherwise=True):
                log.info("claims no longer waited for", reason="the Node's labels are back")
                return

    def _is_in_use(self) -> bool:
        try:
            return self._asked_if_in_use()
        except StateError as error:
            log.warning("claims not waited for", reason=str(error))
            return False

    def _is_paused(self, *, otherwise: bool) -> bool:
        """Tell whether pods are evicted from the Node; `otherwise` if that is not known."""
        try:
            node = self._api.get_node(self._node_name, timeout=_REQUEST_SECONDS)
        except DriverError:
            return otherwise
        labels = texts_by_name(node, "metadata", "labels")
        return any(PAUSED in value for value in labels.values())

    def _tell_supervisor(self) -> None:
        try:
            if self._folder.is_dir():
                self._lock.take("driver")
        except StateError as error:
            log.warning("mps supervisor not told to wait", reason=str(error))
