"""The Kubernetes API as plain objects, over one kept-alive connection per thread.

In: a kubeconfig with a client certificate, a token or a token file. Out: dicts as the API server
sent them. A program that looks every half second would spend most of a small machine's time on
starting kubectl; this costs about a millisecond a look.
"""

import base64
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]
"""An object of the API, as JSON has it."""

PATHS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices"),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses"),
}
"""Kind → (group and version, plural)."""


class ApiStatusError(Exception):
    """The API server said no: `code` is the HTTP status, the text its reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """What a user may do with kubectl, for one user of one cluster."""

    timeout_s = 30.0
    """How long the API server may be silent."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, token: str | None = None) -> None:
        self._address = urlsplit(server)
        self._tls = tls
        self._token = token
        self._own = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    @classmethod
    def from_kubeconfig(cls, path: Path, *, token: str | None = None) -> "Api":
        """Read the current context of a kubeconfig; `token` takes the place of the one in it."""
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        token = token or user.get("token")
        if not token and "tokenFile" in user:
            token = Path(user["tokenFile"]).read_text().strip()
        if not cluster["server"].startswith("https:"):
            return cls(cluster["server"], None, token)
        tls = ssl.create_default_context(
            cadata=_material(cluster, "certificate-authority").decode()
        )
        if "client-certificate" in user or "client-certificate-data" in user:
            _load_client_certificate(tls, user)
        return cls(cluster["server"], tls, token)

    def close(self) -> None:
        """Close all connections. A later request opens a new one."""
        for connection in self._open:
            connection.close()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        """Send one request and return the body of the answer, in the form of `accept`.

        Raises:
            ApiStatusError: The answer was not 2xx.
            OSError: There is no API server.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            status, answer = self._exchange(method, path, data, headers)
        except (http.client.HTTPException, ConnectionError, ssl.SSLError):
            # A kept-alive connection may have been closed meanwhile: once more on a new one.
            status, answer = self._exchange(method, path, data, headers)
        if status >= 300:
            raise ApiStatusError(status, _reason(answer))
        return answer

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """Return one object."""
        return _object(self.request("GET", _path(kind, namespace, name)))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return one object, or None when there is none of that name."""
        try:
            return self.get(kind, name, namespace)
        except ApiStatusError as error:
            if error.code == 404:
                return None
            raise

    def all(self, kind: str, namespace: str | None = None, **selectors: str) -> list[Object]:
        """Return all objects of a kind; `fieldSelector` and `labelSelector` narrow them."""
        query = "?" + urlencode(selectors) if selectors else ""
        answer = json.loads(self.request("GET", _path(kind, namespace) + query))
        items: list[Object] = answer["items"]
        return items

    def create(self, thing: Mapping[str, object], namespace: str | None = None) -> Object:
        """Create an object, in `namespace` if its kind has one."""
        path = _path(str(thing["kind"]), namespace)
        return _object(self.request("POST", path, thing))

    def patch(
        self, kind: str, name: str, change: object, namespace: str | None = None, part: str = ""
    ) -> Object:
        """Apply a JSON merge patch to an object, or to a part of it such as `/status`."""
        path = _path(kind, namespace, name) + part
        return _object(self.request("PATCH", path, change, "application/merge-patch+json"))

    def delete(
        self, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> None:
        """Delete an object; one that is gone already is fine. `grace` is in seconds."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self.request("DELETE", _path(kind, namespace, name), body)
        except ApiStatusError as error:
            if error.code != 404:
                raise

    def delete_all(self, kind: str, namespace: str | None = None) -> None:
        """Delete all objects of a kind, without a grace period."""
        self.request("DELETE", _path(kind, namespace), {"gracePeriodSeconds": 0})

    def log(self, pod: str, container: str, namespace: str) -> str:
        """Return what a container has printed."""
        path = _path("Pod", namespace, pod) + "/log?" + urlencode({"container": container})
        return self.request("GET", path).decode()

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None
        connection = getattr(self._own, "connection", None)
        if connection is None:
            host, port = self._address.hostname or "127.0.0.1", self._address.port
            if self._tls is None:
                connection = http.client.HTTPConnection(host, port, timeout=self.timeout_s)
            else:
                connection = http.client.HTTPSConnection(
                    host, port, timeout=self.timeout_s, context=self._tls
                )
            self._own.connection = connection
            self._open.append(connection)
        return connection


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    prefix, plural = PATHS[kind]
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def _object(answer: bytes) -> Object:
    value: Object = json.loads(answer)
    return value


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _material(entry: Mapping[str, str], field: str) -> bytes:
    """Return a certificate or key that a kubeconfig holds either inline or as a path."""
    inline = entry.get(f"{field}-data")
    return base64.b64decode(inline) if inline else Path(entry[field]).read_bytes()


def _load_client_certificate(tls: ssl.SSLContext, user: Mapping[str, str]) -> None:
    # ssl loads certificates from files only; the file is gone when this returns.
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(_material(user, "client-certificate") + b"\n" + _material(user, "client-key"))
        pair.flush()
        tls.load_cert_chain(pair.name)
