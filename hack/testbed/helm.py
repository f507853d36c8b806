"""Helm, compiled from its Go module, on a local cluster."""

import os
from pathlib import Path

from testbed.cluster import Cluster, fetched
from testbed.commands import run


class Helm:
    """Helm in one namespace of a cluster. Raises TestbedError if Helm is not available."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.program = fetched("helm") / "helm"
        self._kubeconfig = cluster.env["KUBECONFIG"]
        self._namespace = namespace

    def __call__(self, verb: str, *words: str | Path, timeout: float = 120) -> str:
        """Run a command; return its output.

        Raises TestbedError if it failed, or took longer than `timeout` seconds.
        """
        return run(
            (self.program, verb, *words, "--namespace", self._namespace),
            env={**os.environ, "KUBECONFIG": self._kubeconfig},
            timeout=timeout,
        )
