"""The driver's own identity on a cluster: a ServiceAccount token that is bound to the node.

In a pod the kubelet provides such a token and renews it. For a driver that runs as a process of the
host this module does the same: it writes a kubeconfig with a token file, and a thread renews the
file at half of the token's life. The admission policy of the manifests lets no other token write
slices.
"""

import base64
import threading
from pathlib import Path

import yaml

from testbed.cluster import Cluster
from testbed.commands import TestbedError

SERVICE_ACCOUNT = ("dra-driver", "dra-driver")
"""Namespace and name, as in manifests/install.yaml."""


class NodeCredentials:
    """A kubeconfig in `folder` for the driver on the cluster's node, and a pod's folder of secrets.

    `life` is each token's life in seconds; the API server allows no less than 600.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, life: int = 3600) -> None:
        self._cluster = cluster
        self._life = life
        self.service_account = folder / "serviceaccount"
        self._token = self.service_account / "token"
        self.kubeconfig = folder / "driver.kubeconfig"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="renew-token", daemon=True)

    def create(self) -> None:
        """Write a folder like a pod's, and the kubeconfig."""
        self.service_account.mkdir(exist_ok=True)
        self._write_token()
        self._write_kubeconfig()

    def keep_fresh(self) -> None:
        """Renew the token from now on, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing the token."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _write_token(self) -> None:
        namespace, name = SERVICE_ACCOUNT
        node = self._cluster.api.get("Node", self._cluster.node)["metadata"]
        token = self._cluster.kubectl(
            *("create", "token", name, "--namespace", namespace),
            *("--bound-object-kind", "Node", "--bound-object-name", node["name"]),
            *("--bound-object-uid", node["uid"], "--duration", f"{self._life}s"),
        )
        fresh = self._token.with_suffix(".new")
        fresh.write_text(token.strip())
        fresh.chmod(0o600)
        fresh.replace(self._token)

    def _write_kubeconfig(self) -> None:
        config = yaml.safe_load(Path(self._cluster.env["KUBECONFIG"]).read_text())
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
        (self.service_account / "ca.crt").write_bytes(base64.b64decode(authority))
        config["users"] = [{"name": "driver", "user": {"tokenFile": str(self._token)}}]
        for context in config["contexts"]:
            context["context"]["user"] = "driver"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)

    def _renew(self) -> None:
        pause = self._life / 2
        while not self._stopping.wait(pause):
            try:
                self._write_token()
                pause = self._life / 2
            except (TestbedError, OSError):
                pause = 5  # the API server is away: the old token still serves for a while
