"""Requests to the API server as dicts, over connections that are kept alive.

Where the API server is, and with which credentials to call it, comes from a pod's environment
(here) or from a kubeconfig (kube/kubeconfig.py). Generated model classes are not used: they drop
every field they do not know (so reading and writing back a claim would erase what a newer driver
wrote), and cost 80 MiB and half a second. There is no client-side rate limit: the API server has
its own (API Priority and Fairness), and its Retry-After is passed on. Every call has a timeout.
"""

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import urlencode

from msgspec import Struct

from dra_driver.errors import AccessError, SetupError, UnavailableError
from dra_driver.kube.connections import (
    BrokenError,
    Connections,
    NotReachableError,
    Response,
    over_tls,
)
from dra_driver.kube.resource import NODES, RESOURCE_CLAIMS, Call, Resource
from dra_driver.kube.responses import WatchStream, error_in, object_in

SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts `token` and `ca.crt` (KEP-1205)."""

REREAD_SECONDS = 60.0
"""How long a token is used before the file is read again."""

_WATCH_IDLE_SECONDS = 90.0
"""The API server sends a bookmark about every minute: a longer silence is a dead connection."""

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML too
_MERGE = "application/merge-patch+json"

JsonObject = dict[str, object]


class Answer(Struct, frozen=True, kw_only=True):
    """The server's answer, and its header Date, the time by its own clock, if it has one."""

    body: JsonObject
    date: str | None


class Credentials(Protocol):
    """Our credentials: the value of the Authorization header."""

    def header(self) -> str | None:
        """Return the header's value; None when a client certificate or nothing is used."""
        ...

    def expire(self) -> None:
        """Note that the server refused the last value."""
        ...


class TokenFile:
    """Gives the current bearer token of a file that is renewed; safe to use from many threads.

    It is a projected ServiceAccount token, or a kubeconfig's `tokenFile`. Bound tokens live about
    an hour, and the kubelet replaces the file before they expire. So, as in client-go, the file is
    read again at least once a minute, and at once after an answer 401. The token itself never
    appears in a log or an error.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        """Remember where the token is. `clock` is monotonic, in seconds. Nothing is read yet."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._read_at = 0.0

    def token(self) -> str:
        """Return the token, from memory if it was read less than a minute ago.

        If the file cannot be read at the moment, because it is being replaced, the last token may
        still be valid. Raises SetupError only if no token is known.
        """
        with self._lock:
            if self._token is None or self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            if self._token is None:
                raise SetupError(
                    f"no token in {self._path}; check that the ServiceAccount token is mounted "
                    "(automountServiceAccountToken) and readable"
                )
            return self._token

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self.token()}"

    def expire(self) -> None:
        """Read the file again at the next use: the server did not accept the token."""
        with self._lock:
            self._read_at = self._clock() - REREAD_SECONDS

    def _read(self) -> None:
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return
        if text:
            self._token = text
            self._read_at = self._clock()


class KubeClient:
    """Speaks to one API server; safe to use from many threads.

    Every method takes `timeout`, in seconds, for connecting and then for the whole answer. Writes
    return what the server stored, which may lack fields. All raise:

    - UnavailableError: not reachable, timed out, 408, 429 or 5xx; try again
    - AccessError: 401 or 403
    - NotFoundError, StaleError (409), GoneError (410), InvalidError (400, 413, 422)
    - ApiError: any other refusal
    """

    def __init__(
        self,
        connections: Connections,
        credentials: Credentials,
        *,
        prefix: str = "",
        namespace: str = "default",
    ) -> None:
        """Take connections to the one server, and the path before its /api and /apis, if any.

        `namespace` is the default one, of a kubeconfig's context.
        """
        self._connections = connections
        self._prefix = prefix
        self._credentials = credentials
        self.namespace = namespace
        self._headers = {
            "Accept": "application/json",
            "User-Agent": f"dra-driver/{version('dra-driver')}",
        }

    @classmethod
    def in_cluster(
        cls, environment: Mapping[str, str], *, directory: Path = SERVICE_ACCOUNT_DIRECTORY
    ) -> Self:
        """Use the ServiceAccount that the kubelet mounted into this pod.

        Raises SetupError if this process does not run in a pod, or its pod has no token mounted.
        """
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port):
            raise SetupError(
                "this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set); "
                "name a kubeconfig with --kubeconfig"
            )
        if not port.isdecimal():
            raise SetupError(f"KUBERNETES_SERVICE_PORT is {port!r}, which is not a valid port")
        authority = directory / "ca.crt"
        if not authority.is_file():
            raise SetupError(
                f"{authority} does not exist; check that this pod mounts its ServiceAccount token"
            )
        tokens = TokenFile(directory / "token", clock=time.monotonic)
        tokens.token()
        # No proxy: the API server of one's own cluster is never behind one.
        connect = over_tls(host, int(port), authority)
        return cls(Connections(connect, host, int(port)), tokens)

    def get_claim(self, namespace: str, name: str, *, timeout: float) -> JsonObject:
        """Return one ResourceClaim."""
        return self.get(RESOURCE_CLAIMS, name, namespace=namespace, timeout=timeout)

    def get_node(self, name: str, *, timeout: float) -> JsonObject:
        """Return one Node."""
        return self.get(NODES, name, timeout=timeout)

    def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, timeout: float
    ) -> JsonObject:
        """Return one object."""
        call = Call(verb="get", resource=resource, name=name, namespace=namespace)
        return self._ask("GET", call, timeout=timeout)

    def read(self, call: Call, *, timeout: float) -> Answer:
        """Return an object or another page, and the time of the answer by the server's clock."""
        response = self.send("GET", call, timeout=timeout)
        return Answer(body=object_in(call, response.data), date=response.headers.get("date"))

    def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
        timeout: float,
    ) -> JsonObject:
        """Return a collection as the server's List object, with `items` and its metadata."""
        call = Call(verb="list", resource=resource, namespace=namespace)
        return self._ask("GET", call, query=query, timeout=timeout)

    def create(
        self,
        resource: Resource,
        body: Mapping[str, object],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        timeout: float,
    ) -> JsonObject:
        """Create an object; with `dry_run` the server does everything except storing it."""
        call = Call(verb="create", resource=resource, namespace=namespace)
        query = {"dryRun": "All"} if dry_run else None
        return self._ask("POST", call, body=body, query=query, timeout=timeout)

    def update(
        self, resource: Resource, name: str, body: Mapping[str, object], *, timeout: float
    ) -> JsonObject:
        """Replace an object; StaleError if the body's `metadata.resourceVersion` is out of date."""
        call = Call(verb="update", resource=resource, name=name)
        return self._ask("PUT", call, body=body, timeout=timeout)

    def apply_status(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, object],
        *,
        namespace: str,
        manager: str,
        timeout: float,
    ) -> JsonObject:
        """Apply fields of an object's status; RBAC's verb for it is `patch`.

        Fields that `manager` applied before and the body lacks are removed. Other managers' fields
        in the body become this manager's. With `metadata.uid`, another object with the name is a
        StaleError.
        """
        call = Call(
            verb="patch", resource=resource, name=name, namespace=namespace, subresource="status"
        )
        query = {"fieldManager": manager, "force": "true"}
        return self._ask("PATCH", call, body=body, form=_APPLY, query=query, timeout=timeout)

    def merge(  # noqa: PLR0913 (all that a patch is made of)
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, object],
        *,
        namespace: str,
        subresource: str = "",
        manager: str = "",
        timeout: float,
    ) -> JsonObject:
        """Merge fields into an object, or its `status`, lists as a whole.

        With `metadata.resourceVersion` in the body, a change made in between is a StaleError.
        """
        call = Call(
            verb="patch", resource=resource, name=name, namespace=namespace, subresource=subresource
        )
        query = {"fieldManager": manager} if manager else None
        return self._ask("PATCH", call, body=body, form=_MERGE, query=query, timeout=timeout)

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        preconditions: Mapping[str, str] | None = None,
        timeout: float,
    ) -> None:
        """Delete an object; StaleError if `preconditions` (uid, resourceVersion) do not hold."""
        call = Call(verb="delete", resource=resource, name=name, namespace=namespace)
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            options["preconditions"] = dict(preconditions)
        self._ask("DELETE", call, body=options, timeout=timeout)

    def watch(self, resource: Resource, *, query: Mapping[str, str]) -> WatchStream:
        """Open a watch and return its events as they arrive.

        `query` holds resourceVersion, selectors and timeoutSeconds; bookmarks are always requested.
        """
        call = Call(verb="watch", resource=resource)
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true"}
        response = self.send("GET", call, query=asked, timeout=_WATCH_IDLE_SECONDS, stream=True)
        return WatchStream(call, response)

    def close(self) -> None:
        """Close the kept-alive connections."""
        self._connections.close()

    def _ask(
        self,
        method: str,
        call: Call,
        *,
        body: Mapping[str, object] | None = None,
        form: str = _JSON,
        query: Mapping[str, str] | None = None,
        timeout: float,
    ) -> JsonObject:
        response = self.send(method, call, body=body, form=form, query=query, timeout=timeout)
        return object_in(call, response.data)

    def send(  # noqa: PLR0913 (all that a request is made of)
        self,
        method: str,
        call: Call,
        *,
        body: Mapping[str, object] | None = None,
        form: str = _JSON,
        query: Mapping[str, str] | None = None,
        timeout: float,
        stream: bool = False,
    ) -> Response:
        """Send a request; after a 401, send it once more with a token that was read again."""
        url = self._prefix + call.path + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()

        def attempt() -> Response:
            headers = self._all_headers(form if data else None)
            return self._connections.request(
                method, url, headers=headers, body=data, timeout=timeout, stream=stream
            )

        response = _reach(call, attempt, again=method == "GET")
        if response.status == HTTPStatus.UNAUTHORIZED:
            self._credentials.expire()
            response = _reach(call, attempt, again=method == "GET")
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise error_in(
                call,
                response.status,
                response.data,
                retry_after=response.headers.get("retry-after"),
            )
        return response

    def _all_headers(self, body_type: str | None) -> dict[str, str]:
        headers = dict(self._headers)
        try:
            authorization = self._credentials.header()
        except SetupError as error:
            raise AccessError(str(error), status=HTTPStatus.UNAUTHORIZED) from error
        if authorization:
            if not (authorization.isascii() and authorization.isprintable()):
                raise AccessError(
                    "the token of the ServiceAccount or kubeconfig has characters that are not "
                    "allowed in a token, such as line breaks; correct its file",
                    status=HTTPStatus.UNAUTHORIZED,
                )
            headers["Authorization"] = authorization
        if body_type:
            headers["Content-Type"] = body_type
        return headers


def _reach(call: Call, attempt: Callable[[], Response], *, again: bool) -> Response:
    """Send a request; a read is sent again if a kept-alive connection turns out to be closed."""
    try:
        try:
            return attempt()
        except BrokenError:
            if not again:
                raise
            return attempt()
    except NotReachableError as error:
        raise UnavailableError(
            f"cannot {call}: the API server is not reachable ({error}); it may be restarting"
        ) from error
    except TimeoutError as error:
        raise UnavailableError(
            f"cannot {call}: the API server did not answer in time ({error}); "
            "check that this node reaches the API server"
        ) from error
    except ssl.SSLError as error:
        raise UnavailableError(
            f"cannot {call}: TLS with the API server failed ({error}); "
            "check the certificate authority of the ServiceAccount or kubeconfig"
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"cannot {call}: the connection to the API server broke ({error}); it may be restarting"
        ) from error
