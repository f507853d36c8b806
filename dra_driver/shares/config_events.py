"""Posts an Event on the Node whose share config cannot be taken, where its author looks first.

In: a state of the share config. Out: an Event that `kubectl describe node` shows. It names the Node
by its name in the place of a UID, as a kubelet's own do, so the Node need not be asked for.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from dra_driver.devices.names import CONTROLLER
from dra_driver.errors import DriverError, UnavailableError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.events import Happening, Regarding, Reporter, utc_now, warning_event
from dra_driver.kube.resource import EVENTS

log = structlog.get_logger()

NOT_TAKEN: Final = "ShareConfigNotTaken"
_REQUEST_SECONDS = 10.0


class ShareConfigEvents:
    """Posts such events; for any thread."""

    def __init__(self, api: KubeClient, node: str, now: Callable[[], datetime] = utc_now) -> None:
        self._api = api
        self._about = Regarding(api_version="v1", kind="Node", namespace="", name=node, uid=node)
        self._now = now

    def post(self, problem: str, holds: str) -> None:
        """Say why the newest config cannot be taken, and which one holds; empty for none.

        Raises:
            UnavailableError: the API server cannot be reached.
        """
        rest = f"; what holds is {holds}" if holds else "; no GPU is offered without a config"
        note = f"the share config cannot be taken: {problem}{rest}"
        what = Happening(reason=NOT_TAKEN, action="ReadingShareConfig", note=note, time=self._now())
        body = warning_event(
            self._about, what, Reporter(controller=CONTROLLER, instance=self._about.name)
        )
        try:
            self._api.create(
                EVENTS, body, namespace=self._about.event_namespace, timeout=_REQUEST_SECONDS
            )
        except UnavailableError:
            raise
        except DriverError as error:
            log.warning("event not created", regarding="the Node", reason=str(error))
