"""Whatever befalls a watch, what it has told ends with what a list says.

Objects come, change, go and come back, with and without the label that is followed; the history is
compacted; streams are cut, connections break, the server refuses, or is away for a while.
"""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from testbed.apiserver.kinds import kind_of
from testbed.apiserver.server import ApiServer

from clock import Clock
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.resource import NODES
from dra_driver.kube.watch import Backoff, Changed, Listed, Watch
from sampling import examples

NODE = kind_of("v1", "Node")
OWN = "own"
NAMES = st.sampled_from([OWN, "one", "two"])
REFUSALS = st.sampled_from([400, 403, 404, 410, 429, 500, 503])

Object = dict[str, Any]


class Mirror:
    """What one who believes a watch has."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    def take(self, news: Listed | Changed) -> None:
        match news:
            case Listed(items=items):
                self.objects = {_name(item): _seen(item) for item in items}
            case Changed(type="DELETED", object=gone):
                del self.objects[_name(gone)]
            case Changed(object=item):
                self.objects[_name(item)] = _seen(item)


def _name(item: Any) -> str:
    return str(item["metadata"]["name"])


def _seen(item: Any) -> Object:
    """What is compared: items of a list do not say what kind they are."""
    return dict(item["metadata"])


class Watches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = ApiServer(bookmark_seconds=0.02)
        self.server.start()
        with tempfile.TemporaryDirectory() as folder:
            self.client = from_kubeconfig(self.server.write_kubeconfig(Path(folder) / "kubeconfig"))
        self.mirror = Mirror()
        common: Any = {"clock": Clock(), "random": lambda: 0.5}
        self.watch = Watch(
            self.client,
            NODES,
            selectors={"labelSelector": "followed=yes"},
            tell=self.mirror.take,
            **common,
        )
        self.own = OwnNode(self.client, OWN, **common)
        self.heard: list[object] = []
        self.own.listen(self.heard.append)
        for watch in (self.watch, self.own._watch):
            watch._backoff = Backoff(first=0.001, most=0.01, random=lambda: 0.5)
        self.watch.start()
        self.own.start()

    @rule(name=NAMES, is_followed=st.booleans(), value=st.sampled_from(["a", "b"]))
    def put(self, name: str, *, is_followed: bool, value: str) -> None:
        """Make an object, or change it, perhaps so that it is followed no more."""
        labels = {"followed": "yes" if is_followed else "no", "value": value}
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        body["metadata"]["labels"] = labels
        if name in self.there():
            self.server.store.update(NODE, "", name, body, status_only=False)
        else:
            self.server.put(body)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.there():
            self.server.store.delete(NODE, "", name)

    @rule()
    def forget(self) -> None:
        """Forget the history, as etcd is compacted; a stream that is behind is told so."""
        self.server.store.compact()

    @rule()
    def cut(self) -> None:
        self.server.cut_watches()

    @rule()
    def break_connections(self) -> None:
        assert self.server._server is not None
        self.server._server.hang_up_all()

    @rule(verb=st.sampled_from(["list", "watch"]), status=REFUSALS, times=st.integers(1, 3))
    def refuse(self, verb: str, status: int, times: int) -> None:
        self.server.fail(verb, status=status, times=times)
        self.server.cut_watches()

    @rule(verb=st.sampled_from(["list", "watch"]))
    def hang_up(self, verb: str) -> None:
        self.server.fail(verb, hang_up=True, times=1)
        self.server.cut_watches()

    @rule()
    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    @rule()
    def settle(self) -> None:
        """In the end all is known, and nothing else."""
        self.server.wait_for(self.is_known)
        assert self.mirror.objects == self.followed()
        own = self.there().get(OWN)
        if own is not None:
            assert self.own.current() == self.heard[-1] == own["metadata"]["labels"]

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.watch.stop(10)
            self.own.stop(10)
            self.client.close()
            self.server.stop()

    def there(self) -> dict[str, Object]:
        return {_name(item): item for item in self.server.objects("nodes")}

    def followed(self) -> dict[str, Object]:
        return {
            name: _seen(item)
            for name, item in self.there().items()
            if item["metadata"]["labels"]["followed"] == "yes"
        }

    def is_known(self) -> bool:
        own = self.there().get(OWN)
        return self.mirror.objects == self.followed() and (
            own is None or (bool(self.heard) and self.heard[-1] == own["metadata"]["labels"])
        )


class TestWatches(Watches.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(
        max_examples=examples(30),
        stateful_step_count=20,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # threads do not fail twice alike
    )
