"""The API server's version, asked for from time to time, because clusters are upgraded.

The minor version may end in a plus sign (`36+`), and some clusters leave it out; then gitVersion is
read. While the server is unreachable, the last answer stays valid. A server that refuses the page
/version, or has one that cannot be understood, has no version.
"""

import threading
from collections.abc import Callable

import structlog

from dra_driver.errors import DriverError, UnavailableError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.resource import VERSION, Call

_REQUEST_SECONDS = 10.0

log = structlog.get_logger()


class ServerVersion:
    """The version of one API server. `current` may be called from any thread.

    An answer is valid for `again` seconds of the clock, which is monotonic.
    """

    def __init__(self, api: KubeClient, *, clock: Callable[[], float], again: float = 30.0) -> None:
        self._api = api
        self._clock = clock
        self._again = again
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int] | None] | None = None
        self._asked_at = 0.0

    def current(self) -> tuple[int, int] | None:
        """Return the latest major and minor version; None: the server does not report it.

        Raises UnavailableError if the server is unreachable, and has not answered before.
        """
        with self._lock:
            if self._known is None or self._clock() - self._asked_at >= self._again:
                self._ask()
            return None if self._known is None else self._known[0]

    def _ask(self) -> None:
        version, refusal = None, None
        try:
            page = self._api.read(Call(verb="get", resource=VERSION), timeout=_REQUEST_SECONDS).body
            # Some clusters leave the minor version out.
            version = version_numbers(f"{page.get('major', '')}.{page.get('minor', '')}")
            version = version or version_numbers(str(page.get("gitVersion", "")))
            refusal = f"{page.get('gitVersion')!r} is not understood"
        except UnavailableError:
            if self._known is None:
                raise
        except DriverError as error:
            refusal = str(error)
        self._asked_at = self._clock()
        if version is None and self._known is not None:
            return  # the last answer is valid until the server gives another one
        before, self._known = self._known, (version,)
        if version is None:
            log.warning(
                "kubernetes version not known",
                reason=refusal,
                advice="let the driver's ServiceAccount read /version (ClusterRole"
                " system:discovery); until then the driver assumes a version older than 1.37",
            )
        elif before is not None and before[0] != version:
            log.info("kubernetes version changed", version=".".join(map(str, version)))


def version_numbers(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version such as v1.37.1+k3s1; None if it has none."""
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0].rstrip("+")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
