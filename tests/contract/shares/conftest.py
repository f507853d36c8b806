"""A node whose labels are followed on a server, and its share configs."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

from dra_driver.devices.names import CONTROLLER
from dra_driver.kube.client import KubeClient
from dra_driver.kube.events import Events
from dra_driver.kube.kubeconfig import from_kubeconfig
from dra_driver.kube.outbox import Outbox
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.resource import NODES
from dra_driver.shares.choice import LABEL
from dra_driver.shares.source import (
    ShareConfigs,
    ShareConfigState,
    ShareConfigTiming,
)
from worlds.process import eventually

QUICK = ShareConfigTiming(look=0.05, settle=0.02)


def node(**labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}


class World:
    """Node n1, and the share configs of a driver on it."""

    def __init__(self, server: ApiServer, client: KubeClient, root: Path) -> None:
        self.server, self.client, self.root = server, client, root
        self.labels = OwnNode(client, "n1", clock=time.monotonic, random=lambda: 0.5)
        self.outbox = Outbox()
        self.outbox.start()
        self.changes: list[ShareConfigState] = []
        self.configs: ShareConfigs | None = None

    def start(
        self,
        path: Path | None,
        default: str = "",
        timing: ShareConfigTiming = QUICK,
        kept: Path | None = None,
    ) -> ShareConfigs:
        self.configs = ShareConfigs(
            path,
            default=default,
            node=self.labels,
            events=Events(self.client, self.outbox, controller=CONTROLLER, node="n1"),
            on_change=self._changed,
            kept=kept,
            timing=timing,
        )
        self.labels.start()
        self.configs.start()
        return self.configs

    def stop(self) -> None:
        """End the driver's life; `start` begins another."""
        assert self.configs is not None
        self._stop_configs(self.configs)
        assert self.labels.stop(10)
        self.labels = OwnNode(self.client, "n1", clock=time.monotonic, random=lambda: 0.5)

    @staticmethod
    def _stop_configs(configs: ShareConfigs) -> None:
        configs.stop(10)
        assert not configs._thread.is_alive()

    def _changed(self) -> None:
        assert threading.current_thread().name == "share-config"
        self.changes.append(self.state())

    def state(self) -> ShareConfigState:
        assert self.configs is not None
        return self.configs.current()

    def until(self, condition: Callable[[ShareConfigState], Any]) -> ShareConfigState:
        """Wait for a state; return it."""
        eventually(lambda: condition(self.state()), "the share config")
        return self.state()

    def until_replicas(self, *replicas: int) -> ShareConfigState:
        return self.until(lambda state: replicas_of(state) == replicas and not state.problem)

    def until_problem(self, text: str) -> ShareConfigState:
        return self.until(lambda state: state.problem and text in state.problem)

    def label(self, value: str | None) -> None:
        labels = {} if value is None else {LABEL: value}
        self.client.update(NODES, "n1", node(**labels), timeout=5)


def replicas_of(state: ShareConfigState) -> tuple[int, ...] | None:
    return (
        None
        if state.config is None
        else tuple(resource.replicas for resource in state.config.resources)
    )


def config(replicas: int, kind: str = "timeSlicing") -> str:
    """A config that divides each GPU into so many replicas."""
    return (
        f"version: v1\nsharing:\n  {kind}:\n    resources:\n"
        f"    - name: nvidia.com/gpu\n      replicas: {replicas}\n"
    )


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.put(node())
        yield made


@pytest.fixture
def world(server: ApiServer, tmp_path: Path) -> Iterator[World]:
    client = from_kubeconfig(server.write_kubeconfig(tmp_path / "kubeconfig"))
    root = tmp_path / "configs"
    root.mkdir()
    made = World(server, client, root)
    yield made
    if made.configs is not None:
        made._stop_configs(made.configs)
    assert made.labels.stop(10)
    assert made.outbox.stop(10)
    client.close()
