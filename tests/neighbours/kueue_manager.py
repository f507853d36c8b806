"""Kueue's manager as a process of this host, with all of its installation but the pod.

The API server reaches its webhooks by their Service, which here is another name of this host.
Kueue makes their certificates itself. A kubelet would write them into a folder; here it is done by
hand.
"""

import base64
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import yaml
from cluster.build import KUEUE_CONFIG
from testbed.api import Object
from testbed.cluster import Cluster, fetched
from testbed.commands import TestbedError, wait_until

NAMESPACE = "kueue-system"
SECRET = "kueue-webhook-server-cert"  # noqa: S105 (its name)
LEFT_OUT = ("APIService", "Deployment")
"""What is not applied: the pod, and an API of its own, for people, that nothing here serves."""

WITHOUT_THAT_API = "VisibilityOnDemand=false"


class KueueManager:
    """One manager, started again for each configuration, as its admins have to do."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._certificates = folder / "certificates"
        self._log = folder / "kueue.log"
        self._webhooks, self._health = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._runs: object = None

    def install(self) -> None:
        """Apply what its release has in config/default."""
        self._certificates.mkdir(parents=True)
        config = fetched("kueue") / KUEUE_CONFIG / "default"
        # By the loader that is written in C: its CRDs have 25,000 lines.
        wanted = yaml.load_all(self._cluster.kubectl("kustomize", config), yaml.CSafeLoader)
        here = [self._here(one) for one in wanted if one["kind"] not in LEFT_OUT]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": here})
        # They are larger than the annotation of a client-side apply may be, too.
        self._cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def run(self, config: Object, *, gates: str = "") -> None:
        """Run with a configuration and feature gates, unless it does already."""
        if (config, gates) == self._runs:
            return
        self.stop()
        path = self._folder / "config.yaml"
        path.write_text(yaml.safe_dump(config | self._of_this_host()))
        flags = ("--feature-gates", ",".join(filter(None, (WITHOUT_THAT_API, gates))))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                (fetched("kueue") / "kueue", "--config", path, *flags),
                env={**os.environ, "KUBECONFIG": self._cluster.env["KUBECONFIG"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_ready, "Kueue to be ready", timeout=120)
        self._runs = (config, gates)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        self._process = self._runs = None

    def said(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def _here(self, one: Object) -> Object:
        """An object of its installation, with webhooks at this host's port."""
        if one["kind"] == "Service":
            one["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        for service in _services(one):
            service["port"] = self._webhooks
        return one

    def _of_this_host(self) -> Object:
        webhooks = {"host": "127.0.0.1", "port": self._webhooks}
        return {
            "webhook": webhooks | {"certDir": str(self._certificates)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "leaderElection": {"leaderElect": False},
        }

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise TestbedError(f"Kueue has ended:\n{self.said()}")
        self._write_certificates()
        connection = http.client.HTTPConnection("127.0.0.1", self._health, timeout=5)
        with closing(connection), suppress(OSError):
            connection.request("GET", "/readyz")
            with connection.getresponse() as answer:
                return answer.status == http.client.OK
        return False

    def _write_certificates(self) -> None:
        """Write them once, the certificate last and whole: Kueue reads all when it sees that."""
        if (self._certificates / "tls.crt").exists():
            return
        where = ("get", "secret", SECRET, "--namespace", NAMESPACE, "-o", "yaml")
        secret: Object = yaml.safe_load(self._cluster.kubectl(*where))
        found = {key: base64.b64decode(text) for key, text in secret.get("data", {}).items()}
        for name in ("tls.key", "tls.crt") if found else ():
            partial = self._certificates / f".{name}"
            partial.write_bytes(found[name])
            partial.replace(self._certificates / name)


def _services(node: object) -> Iterator[Object]:
    """The Services of an object's webhooks."""
    if isinstance(node, dict):
        config = node.get("clientConfig")
        if isinstance(config, dict) and "service" in config:
            yield config["service"]
        for one in node.values():
            yield from _services(one)
    elif isinstance(node, list):
        for one in node:
            yield from _services(one)


def free_ports(count: int) -> list[int]:
    """Ports of this host that nothing listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
