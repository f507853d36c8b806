"""HTTP connections of the contract tests' API server: one request in, one answer or a stream out.

In: HTTP/1.1 requests. Out: answers as the real API server gives them, Status objects for refusals,
and chunked watch streams with bookmarks. Injected faults come before everything else.
"""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from testbed.apiserver.apply import applied
from testbed.apiserver.claim_rules import check_bytes, check_granted
from testbed.apiserver.kinds import KINDS, SELECTED, Kind, Target, target_of
from testbed.apiserver.rules import check_event
from testbed.apiserver.store import Event, Object, Refusal, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request in the log; `verb` is an RBAC verb, `status` what was answered."""

    verb: str
    plural: str
    name: str | None
    query: dict[str, str]
    headers: dict[str, str]
    status: int


@dataclass(kw_only=True)
class Fault:
    """A fault of the next `times` requests of a verb on an object (None matches any)."""

    verb: str | None = None
    plural: str | None = None
    name: str | None = None
    status: int | None = None
    message: str = "injected"
    retry_after: int | None = None
    delay: float = 0.0
    hang_up: bool = False
    times: float = 1
    released: threading.Event = field(default_factory=threading.Event)
    """When set, ends the delay of delayed requests."""

    def covers(self, verb: str, plural: str, name: str | None) -> bool:
        asked = ((self.verb, verb), (self.plural, plural), (self.name, name))
        return self.times > 0 and all(mine in {None, theirs} for mine, theirs in asked)


Page = Callable[[Object], Object]
"""Answers a request to a path of no kind, given its body."""


class Api(Protocol):
    """The part of the server that a connection uses."""

    token: str | None
    tls: tuple[Path, Path] | None
    bookmark_seconds: float
    store: Store
    watch_epoch: int
    pages: dict[str, Page]
    granted: AbstractSet[tuple[str, str]] | None
    node: str

    def take_fault(self, verb: str, plural: str, name: str | None) -> Fault | None: ...

    def note(self, entry: Seen) -> None: ...


class Connections(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], api: Api) -> None:
        self.api = api
        self._open: set[socket.socket] = set()
        self.is_down = False
        self._context: ssl.SSLContext | None = None
        if api.tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*api.tls)
        super().__init__(address, Connection)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # TLS handshakes happen here, in the connection's own thread.
        if self._context:
            try:
                request = self._context.wrap_socket(request, server_side=True)
            except OSError:
                request.close()
                return
        self._open.add(request)
        try:
            if self.is_down:  # its thread started late
                self.shutdown_request(request)
            else:
                super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def hang_up_all(self) -> None:
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected."""


class Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Connections

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing on stderr; the log is in memory."""

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def _handle(self) -> None:
        self.api = self.server.api
        length = int(self.headers.get("Content-Length") or 0)
        self.raw = self.rfile.read(length)
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query))
        target = target_of(url.path)
        self.verb = self._verb(target)
        self.target = target
        try:
            self._serve(target)
        except Refusal as refusal:
            self._refuse(refusal)

    def _verb(self, target: Target | None) -> str:
        if self.command == "GET":
            if target is not None and target.name is None:
                return "watch" if self.query.get("watch") in {"1", "true"} else "list"
            return "get"
        if self.command == "DELETE" and target is not None and target.name is None:
            return "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[
            self.command
        ]

    def _serve(self, target: Target | None) -> None:
        if self._fault(target):
            return
        token = self.api.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        self._authorize(target)
        path = urlsplit(self.path).path
        if (page := self.api.pages.get(path)) is not None:
            self._answer_object(200, page(self._body() if self.raw else {}))
        elif target is None and not _is_known_group(self.path):
            self._answer(404, b"404 page not found\n", content_type="text/plain")
        elif target is None:
            # For a known group, the real API server answers with a Status without an object.
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        elif self.verb == "watch":
            self._watch(target)
        else:
            self._answer_object(*self._do(target))

    def _authorize(self, target: Target | None) -> None:
        """Refuse what the role does not grant, with RBAC's message."""
        granted = self.api.granted
        if granted is None or target is None:
            return
        resource = str(target)
        if (self.verb, resource) not in granted:
            raise Refusal(403, "Forbidden", f'User "test" cannot {self.verb} resource "{resource}"')

    def _fault(self, target: Target | None) -> bool:
        """Apply injected faults to this request; return whether one has answered it."""
        plural, name = (target.kind.plural, target.name) if target else ("", None)
        fault = self.api.take_fault(self.verb, plural, name)
        if fault is None:
            return False
        fault.released.wait(fault.delay)
        if fault.hang_up:
            self.close_connection = True
            self._note(0)
            return True
        if fault.status is None:
            return False
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        self._refuse(Refusal(fault.status, "Injected", fault.message), headers)
        return True

    def _do(self, target: Target) -> tuple[int, Object]:
        namespace = target.namespace or ("default" if target.kind.namespaced else "")
        store, name = self.api.store, target.name or ""
        if self.verb in {"list", "deletecollection"}:
            return 200, self._collection(target)
        if self.verb == "create":
            dry_run = self.query.get("dryRun") == "All"
            body = self._body()
            check_event(target.kind, namespace, body, None)
            return 201, store.create(
                target.kind, namespace, body, keep_status=False, dry_run=dry_run
            )
        if self.verb == "delete":
            preconditions = self._body().get("preconditions") if self.raw else None
            return 200, store.delete(target.kind, namespace, name, preconditions)
        if self.verb == "get":
            return 200, store.get(target.kind, namespace, name)
        body = self._body()
        status_only = target.subresource == "status"
        if self.verb == "patch":
            form = self.headers.get("Content-Type")
            if form == "application/apply-patch+yaml":
                return 200, self._apply(target, namespace, body)
            if form != "application/merge-patch+json":
                raise Refusal(415, "UnsupportedMediaType", "only apply and merge are served")
            old = store.get(target.kind, namespace, name)
            body = _merge(old, body)
            if status_only and target.kind.kind == "ResourceClaim":
                check_bytes(old, is_applied=False)
                self._check_granted({**old, "status": body.get("status", {})}, old)
        check_event(target.kind, namespace, body, store.get(target.kind, namespace, name))
        return 200, store.update(target.kind, namespace, name, body, status_only=status_only)

    def _apply(self, target: Target, namespace: str, body: Object) -> Object:
        """Apply to the status of a claim; nothing else is applied here."""
        if (target.kind.kind, target.subresource) != ("ResourceClaim", "status"):
            raise Refusal(415, "UnsupportedMediaType", "only status of claims can be applied")

        def change(old: Object) -> Object:
            force = self.query.get("force") in {"1", "true"}
            new = applied(old, body, manager=self.query.get("fieldManager"), force=force)
            check_bytes(old, is_applied=True)
            self._check_granted(new, old)
            return new

        return self.api.store.apply(target.kind, namespace, target.name or "", body, change)

    def _check_granted(self, new: Object, old: Object) -> None:
        granted = self.api.granted
        if granted is not None:
            right = ("associated-node:patch", "resourceclaims/driver.resource.k8s.io")
            check_granted(new, old, "patch", self.api.node, may=right in granted)

    def _collection(self, target: Target) -> Object:
        self._check_selector(target.kind)
        store = self.api.store
        at, _, first = self.query.get("continue", "").partition(":")
        if at:
            items, version = store.snapshot(int(at))
        else:
            items, version = store.list(target.kind, target.namespace)
        items = self._selected(items)
        if self.verb == "deletecollection":
            for item in items:
                meta = item["metadata"]
                self.api.store.delete(target.kind, meta.get("namespace", ""), meta["name"])
        start = int(first or 0)
        end = start + int(self.query.get("limit") or len(items))
        following = ""
        if end < len(items):
            following = f"{version}:{end}"
            store.keep_snapshot(version, items)
        return _list_object(target.kind, items[start:end], version, following)

    def _body(self) -> Object:
        try:
            body = json.loads(self.raw)
        except ValueError as error:
            raise Refusal(400, "BadRequest", f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal(400, "BadRequest", "the body is no object")
        return body

    def _selected(self, items: Iterable[Object]) -> list[Object]:
        fields, labels = (self._terms(name) for name in ("fieldSelector", "labelSelector"))
        return [
            item
            for item in items
            if all(_field(item, key) == value for key, value in fields)
            and labels <= (item["metadata"].get("labels") or {}).items()
        ]

    def _check_selector(self, kind: Kind) -> None:
        allowed = {"metadata.name", *SELECTED.get(kind.plural, ())}
        allowed |= {"metadata.namespace"} if kind.namespaced else set()
        for name, _ in sorted(self._terms("fieldSelector")):
            if name not in allowed:
                raise Refusal(400, "BadRequest", f"field label not supported: {name}")

    def _terms(self, name: str) -> set[tuple[str, str]]:
        """A selector's terms, all of them of the form key=value."""
        terms = (term.partition("=") for term in self.query.get(name, "").split(",") if term)
        return {(key, value) for key, _, value in terms}

    def _watch(self, target: Target) -> None:
        """Stream events until the client leaves, timeoutSeconds pass, or a test cuts the watch."""
        self._check_selector(target.kind)
        store, epoch = self.api.store, self.api.watch_epoch
        end = time.monotonic() + float(self.query.get("timeoutSeconds", "1800"))
        bookmarks = self.query.get("allowWatchBookmarks") in {"1", "true"}
        version = int(self.query.get("resourceVersion") or 0)
        self._note(200)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if version == 0:
            items, version = store.list(target.kind, target.namespace)
            for item in self._selected(items):
                self._send_event("ADDED", item)
        next_bookmark = time.monotonic() + self.api.bookmark_seconds
        while time.monotonic() < end and epoch == self.api.watch_epoch:
            with store.changed:
                # Both under the lock, or a cut in between would wake nobody.
                if store.version <= version and epoch == self.api.watch_epoch:
                    store.changed.wait(min(next_bookmark, end) - time.monotonic())
                try:
                    events = list(store.events_after(version, target.kind))
                except Refusal as refusal:
                    self._send_event("ERROR", _status_object(refusal))
                    break
                version = store.version
            for event in events:
                inside = target.namespace in {None, event.object["metadata"].get("namespace")}
                if inside and (change := self._change(event)):
                    self._send_event(change, event.object)
            if bookmarks and time.monotonic() >= next_bookmark:
                next_bookmark += self.api.bookmark_seconds
                self._send_event("BOOKMARK", _bookmark(target.kind, version))
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _change(self, event: Event) -> str:
        """Return an event as this watch sees it: an object that leaves the selection is deleted."""
        was_there = event.before is not None and bool(self._selected([event.before]))
        if event.type == "DELETED" or not self._selected([event.object]):
            return "DELETED" if was_there else ""
        return "MODIFIED" if was_there else "ADDED"

    def _send_event(self, kind: str, item: Object) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _refuse(self, refusal: Refusal, headers: dict[str, str] | None = None) -> None:
        self._answer_object(refusal.code, _status_object(refusal), headers)

    def _answer_object(
        self, status: int, body: Object, headers: dict[str, str] | None = None
    ) -> None:
        self._answer(status, json.dumps(body).encode(), headers=headers)

    def _answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self._note(status)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _note(self, status: int) -> None:
        self.api.note(
            Seen(
                verb=self.verb,
                plural=self.target.kind.plural if self.target else "",
                name=self.target.name if self.target else None,
                query=self.query,
                headers=dict(self.headers.items()),
                status=status,
            )
        )


def _is_known_group(path: str) -> bool:
    groups = {kind.group for kind in KINDS if kind.group}
    return any(path.startswith(f"/apis/{group}/") for group in groups)


def _field(item: Object, path: str) -> str:
    value: Any = item
    for part in path.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""


def _merge(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not (isinstance(patch, dict) and isinstance(old, dict)):
        return patch
    merged = dict(old)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key, {}), value)
    return merged


def _list_object(kind: Kind, items: list[Object], version: int, following: str) -> Object:
    for item in items:
        # The real API server leaves these out of list items.
        item.pop("apiVersion", None)
        item.pop("kind", None)
    return {
        "apiVersion": kind.api_version,
        "kind": f"{kind.kind}List",
        "metadata": {"resourceVersion": str(version)}
        | ({"continue": following} if following else {}),
        "items": items,
    }


def _bookmark(kind: Kind, version: int) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"resourceVersion": str(version)},
    }


def _status_object(refusal: Refusal) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": refusal.message,
        "reason": refusal.reason,
        "details": refusal.details,
        "code": refusal.code,
    }
