"""An API server over HTTP for contract tests: list, watch, get, create, update, patch, delete.

In: HTTP requests, and faults that a test injects. Out: the real API server's answers, and a log of
all requests. Not here: admission, defaulting, and users: RBAC has one role for all callers.
"""

import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from testbed.apiserver.claim_rules import check_claim_status
from testbed.apiserver.connection import Connections, Fault, Page, Seen
from testbed.apiserver.kinds import KINDS, kind_of
from testbed.apiserver.rules import check_slice, stamp_taints
from testbed.apiserver.store import Object, Store


@dataclass
class ApiServer:
    """Use as a context manager, or call start() and stop(); state outlives a stop.

    `token`: when set, every other Authorization is answered with 401. `tls`: certificate and key.
    `pages`: additional answers, by path. `granted`: when set, the pairs of verb and resource (with
    its group, such as `resourceclaims.resource.k8s.io`) that callers may use; the rest is 403.
    `node`: the one in callers' tokens, which matters for what they may apply.
    `kubernetes`: the version that it reports; it may change at any time.
    """

    port: int = 0
    token: str | None = None
    tls: tuple[Path, Path] | None = None
    bookmark_seconds: float = 60.0
    store: Store = field(default_factory=Store)

    pages: dict[str, Page] = field(default_factory=dict)
    granted: AbstractSet[tuple[str, str]] | None = None
    node: str = "node-1"
    kubernetes: str = "1.37"

    def __post_init__(self) -> None:
        self.pages.setdefault("/version", lambda _: self._version())
        self.store.rules += [check_slice, stamp_taints, check_claim_status]
        self.faults: list[Fault] = []
        self.log: list[Seen] = []
        self.logged = threading.Condition()
        self.watch_epoch = 0
        self._server: Connections | None = None
        self._thread: threading.Thread | None = None

    def _version(self) -> Object:
        major, minor = self.kubernetes.split(".")
        return {"major": major, "minor": minor, "gitVersion": f"v{self.kubernetes}.1"}

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = Connections(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="apiserver", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections and break the open ones, like a server that goes down."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.is_down = True
        self._server.hang_up_all()
        self.cut_watches()
        self._thread.join(timeout=10)
        self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def put(self, *objects: Object) -> None:
        """Store objects as they are, status and uid included, as a test's starting point."""
        for body in objects:
            kind = kind_of(body["apiVersion"], body["kind"])
            namespace = body["metadata"].get("namespace", "default") if kind.namespaced else ""
            self.store.create(kind, namespace, body, keep_status=True)

    def objects(self, plural: str) -> list[Object]:
        """Return all stored objects of a kind, in order of their names."""
        (kind,) = [known for known in KINDS if known.plural == plural]
        return self.store.list(kind)[0]

    def delete_all(self, plural: str) -> None:
        """Delete a collection, as the kubelet does with its node's slices."""
        for stored in self.objects(plural):
            kind = kind_of(stored["apiVersion"], stored["kind"])
            meta = stored["metadata"]
            self.store.delete(kind, meta.get("namespace", ""), meta["name"])

    def fail(self, verb: str | None = None, plural: str | None = None, **what: Any) -> Fault:
        """Inject a fault (see Fault). Set its `times` to 0 to end it."""
        fault = Fault(verb=verb, plural=plural, **what)
        self.faults.append(fault)
        return fault

    def cut_watches(self) -> None:
        """End every open watch without a message."""
        with self.store.changed:
            self.watch_epoch += 1
            self.store.changed.notify_all()

    def seen(self, verb: str | None = None, plural: str | None = None) -> list[Seen]:
        """Return the logged requests of a verb on a kind."""
        with self.logged:
            return [
                entry
                for entry in self.log
                if verb in {None, entry.verb} and plural in {None, entry.plural}
            ]

    def wait_for(self, condition: Callable[[], bool], *, seconds: float = 20.0) -> bool:
        """Wait until a condition over stored objects or the log holds; return whether it does."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def write_kubeconfig(self, path: Path, **user: str) -> Path:
        """Write a kubeconfig for this server; `user` holds its user's fields (token, tokenFile)."""
        cluster: Object = {"server": self.url}
        if self.tls:
            cluster["certificate-authority"] = str(self.tls[0])
        if self.token and not user:
            user = {"token": self.token}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def take_fault(self, verb: str, plural: str, name: str | None) -> Fault | None:
        with self.logged:
            for fault in self.faults:
                if fault.covers(verb, plural, name):
                    fault.times -= 1
                    return fault
        return None

    def note(self, entry: Seen) -> None:
        with self.logged:
            self.log.append(entry)
