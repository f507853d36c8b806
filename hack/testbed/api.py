"""The Kubernetes API as plain objects, over connections that are kept alive.

In: a kubeconfig. Out: dicts as the API server sent them. The `kubernetes` package reads the file,
and connects. A request takes about a millisecond; to start kubectl every half second would use most
of a small machine's CPU time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import kube_config

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


def thing(kind: str, name: str, **fields: object) -> Object:
    """Return an object of a kind with these fields, to be created."""
    version = PATHS[kind][0].removeprefix("/apis/").removeprefix("/api/")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


class ApiStatusError(Exception):
    """The API server refused: `code` is the HTTP status, the text its reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """The operations of kubectl, for one user of one cluster."""

    timeout_s = 30.0
    """How long the API server may be silent."""

    def __init__(self, configuration: Configuration, token: str | None = None) -> None:
        self._server = configuration.host
        self._pool = RESTClientObject(configuration).pool_manager
        own = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        self._authorization = f"Bearer {token}" if token else (own or "").strip()

    @classmethod
    def from_kubeconfig(cls, path: Path, *, token: str | None = None) -> "Api":
        """Read the current context of a kubeconfig; `token` replaces the one in it."""
        # More connections than any benchmark has threads: urllib3 warns of each above the limit.
        configuration = Configuration(host="", connection_pool_maxsize=256)
        kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            str(path), client_configuration=configuration, persist_config=False
        )
        configuration.proxy = None  # the servers are on this machine, whatever the environment says
        return cls(configuration, token)

    def close(self) -> None:
        """Close all connections. A later request opens a new one."""
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        """Send one request and return the body of the answer, in the form of `accept`.

        A body is converted to JSON, unless it is bytes.

        Raises:
            ApiStatusError: The answer was not 2xx.
            OSError: There is no API server.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        if self._authorization:
            headers["Authorization"] = self._authorization
        data = body if isinstance(body, bytes | None) else _compact(body)
        try:
            try:
                answer = self._send(method, path, data, headers)
            except (urllib3.exceptions.ProtocolError, urllib3.exceptions.SSLError):
                # A kept-alive connection may have been closed meanwhile: retry on a new one.
                answer = self._send(method, path, data, headers)
        except urllib3.exceptions.HTTPError as error:
            raise OSError(str(error)) from error
        if answer.status >= 300:
            raise ApiStatusError(answer.status, _reason(answer.data))
        return answer.data

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """Return one object."""
        return _object(self.request("GET", _path(kind, namespace, name)))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return one object; None if there is none of that name."""
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
        """Delete an object; a missing one is no error. `grace` is in seconds."""
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

    def _send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        return self._pool.request(
            method,
            self._server + path,
            body=data,
            headers=headers,
            timeout=self.timeout_s,
            retries=False,
        )


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    prefix, plural = PATHS[kind]
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def _compact(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _object(answer: bytes) -> Object:
    value: Object = json.loads(answer)
    return value


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]
