"""The cluster's components: how each is started, and how it reports that it is healthy.

In: a cluster and its programs. Out: command lines. Flags are those that kubeadm
gives, with everything on 127.0.0.1; certificates, RBAC, the node authorizer and
NodeRestriction are on as in a real cluster, because drivers have to work with them.
"""

import http.client
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import crio
from cluster.binaries import Binaries
from cluster.certs import SERVICE_CIDR
from cluster.state import Cluster

PROBE_TIMEOUT_S = 2.0
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A client's preface of HTTP/2, without settings; the server answers (RFC 9113, 3.4)."""
PROGRAM = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component: its name, its command line, and the check whether it is healthy."""

    name: str
    argv: tuple[str, ...]
    healthy: Callable[[], bool]


def components(cluster: Cluster, binaries: Binaries) -> dict[str, Component]:
    """All components by name, in the order in which they start."""
    listed = (
        _etcd(cluster, binaries),
        _runtime(cluster, binaries),
        _apiserver(cluster, binaries),
        _controller_manager(cluster, binaries),
        _scheduler(cluster, binaries),
        _kubelet(cluster, binaries),
    )
    return {own.name: replace(own, argv=own.argv + _given(cluster, own.name)) for own in listed}


NAMES = (
    "etcd",
    "containerd",
    "crio",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
)


def _etcd(cluster: Cluster, binaries: Binaries) -> Component:
    pki, ports = cluster.pki, cluster.ports
    client = f"https://127.0.0.1:{ports.etcd_client}"
    peer = f"https://127.0.0.1:{ports.etcd_peer}"
    certificate = ("--cert-file", pki / "etcd.crt", "--key-file", pki / "etcd.key")
    peer_certificate = ("--peer-cert-file", pki / "etcd.crt", "--peer-key-file", pki / "etcd.key")
    return _component(
        "etcd",
        binaries.path("etcd"),
        *("--name", "default", "--data-dir", cluster.state / "etcd"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
        *certificate,
        *("--client-cert-auth=true", "--trusted-ca-file", pki / "ca.crt"),
        *peer_certificate,
        *("--peer-client-cert-auth=true", "--peer-trusted-ca-file", pki / "ca.crt"),
        healthy=lambda: get(cluster, ports.etcd_client, "/health", "apiserver-etcd") is not None,
    )


def _runtime(cluster: Cluster, binaries: Binaries) -> Component:
    name = cluster.options.runtime
    words = (
        crio.flags(cluster) if name == "crio" else ("--config", cluster.config / "containerd.toml")
    )
    return _component(
        name, binaries.path(name), *words, healthy=lambda: _answers(cluster.cri_socket)
    )


def _apiserver(cluster: Cluster, binaries: Binaries) -> Component:
    pki, ports = cluster.pki, cluster.ports
    return _component(
        "kube-apiserver",
        binaries.path("kube-apiserver"),
        *(f"--bind-address={cluster.apiserver_host}", f"--secure-port={ports.apiserver}"),
        # Pods find no Service here, and an endpoint may not be a loopback address.
        *(f"--advertise-address={cluster.node_ip}", "--endpoint-reconciler-type=none"),
        f"--etcd-servers=https://127.0.0.1:{ports.etcd_client}",
        f"--etcd-cafile={pki}/ca.crt",
        f"--etcd-certfile={pki}/apiserver-etcd.crt",
        f"--etcd-keyfile={pki}/apiserver-etcd.key",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *_gates(cluster),
        healthy=lambda: get(cluster, ports.apiserver, "/readyz") is not None,
    )


def _controller_manager(cluster: Cluster, binaries: Binaries) -> Component:
    pki, port = cluster.pki, cluster.ports.controller_manager
    return _component(
        "kube-controller-manager",
        binaries.path("kube-controller-manager"),
        *_client_flags(cluster, "kube-controller-manager", port),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki}/service-account.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--flex-volume-plugin-dir={cluster.kubelet_root}/volume-plugins",
        healthy=lambda: get(cluster, port, "/healthz") is not None,
    )


def _scheduler(cluster: Cluster, binaries: Binaries) -> Component:
    port = cluster.ports.scheduler
    return _component(
        "kube-scheduler",
        binaries.path("kube-scheduler"),
        *_client_flags(cluster, "kube-scheduler", port),
        healthy=lambda: get(cluster, port, "/healthz") is not None,
    )


def _kubelet(cluster: Cluster, binaries: Binaries) -> Component:
    healthz = cluster.ports.kubelet_healthz
    return _component(
        "kubelet",
        *(sys.executable, PROGRAM, "kubelet-view", cluster.state),
        binaries.path("kubelet"),
        f"--config={cluster.config}/kubelet.json",
        f"--kubeconfig={cluster.config}/kubelet.kubeconfig",
        f"--root-dir={cluster.kubelet_root}",
        f"--cert-dir={cluster.pki}",
        f"--hostname-override={cluster.node_name}",
        f"--node-ip={cluster.node_ip}",
        # The label that GPU feature discovery sets on a node with NVIDIA GPUs.
        "--node-labels=nvidia.com/gpu.present=true",
        healthy=lambda: get(cluster, healthz, "/healthz", tls=False) is not None,
    )


def _client_flags(cluster: Cluster, name: str, port: int) -> list[str]:
    kubeconfig = cluster.config / f"{name}.kubeconfig"
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={cluster.pki}/{name}.crt",
        f"--tls-private-key-file={cluster.pki}/{name}.key",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # There is only one of each, so no leader is elected.
        "--leader-elect=false",
        *_gates(cluster),
    ]


def _gates(cluster: Cluster) -> list[str]:
    gates = cluster.options.feature_gates
    return [f"--feature-gates={gates}"] if gates else []


def _given(cluster: Cluster, name: str) -> tuple[str, ...]:
    """The user's flags for a component; they come last and so take precedence."""
    given = (word.partition(":") for word in cluster.options.flags.split())
    return tuple(flag for component, _, flag in given if component == name)


def _component(name: str, *argv: str | Path, healthy: Callable[[], bool]) -> Component:
    return Component(name=name, argv=tuple(map(str, argv)), healthy=healthy)


def get(
    cluster: Cluster, port: int, path: str, identity: str = "admin", *, tls: bool = True
) -> bytes | None:
    """GET from a component on this machine: the body of a 200 answer, else None."""
    try:
        connection = _connect(cluster, port, identity, tls=tls)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.read() if reply.status == http.client.OK else None
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return None


def _connect(
    cluster: Cluster, port: int, identity: str, *, tls: bool
) -> http.client.HTTPConnection:
    if not tls:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT_S)
    context = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    certificate = cluster.pki / identity
    context.load_cert_chain(f"{certificate}.crt", f"{certificate}.key")
    host = cluster.apiserver_host if port == cluster.ports.apiserver else "127.0.0.1"
    return http.client.HTTPSConnection(host, port, timeout=PROBE_TIMEOUT_S, context=context)


def _answers(address: Path) -> bool:
    """Tell whether a gRPC server serves; CRI-O's socket exists long before that.

    Until it serves, CRI-O deletes layers without an image, also of images that are being imported.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(address))
            probe.sendall(HTTP2_HELLO)
            return probe.recv(1) != b""
        except OSError:
            return False
