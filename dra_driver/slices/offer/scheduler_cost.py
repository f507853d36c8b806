"""A warning, said once, that what is set costs the schedulers before Kubernetes 1.37 a lot of time.

In: the version of Kubernetes, asked when something with counters is to be published. Out: one log
line. An API server that does not answer is asked again with the next publication.
"""

from typing import Protocol

import structlog

from dra_driver.errors import DriverError
from dra_driver.slices.offer.mig import (
    COST_BEFORE_1_37,
    KubernetesVersion,
    has_cheap_counters,
    named,
)

log = structlog.get_logger()


class Version(Protocol):
    """Knows the version of Kubernetes (kube/server_version.py)."""

    def current(self) -> KubernetesVersion | None:
        """Return it; None where the API server does not say. Raises UnavailableError."""
        ...


class CostWarning:
    """Warns once, where counters are not cheap."""

    def __init__(self, version: Version, event: str, *, advice: str) -> None:
        """Take the event of the log line, and what to do about it; nothing is asked yet."""
        self._version = version
        self._event = event
        self._advice = advice
        self._is_given = False

    def give(self) -> None:
        """Warn, unless that was done before or the version is not known or new enough."""
        if self._is_given:
            return
        try:
            kubernetes = self._version.current()
        except DriverError:
            return
        if kubernetes is None or has_cheap_counters(kubernetes):
            return
        self._is_given = True
        log.warning(
            self._event,
            kubernetes=named(kubernetes),
            reason=COST_BEFORE_1_37,
            advice=self._advice,
        )
