"""The cluster's certificates and kubeconfigs, made with the openssl command (3.0 or newer).

Out: what kubeadm would make: an authority for the cluster, one for the front proxy
(the API server's aggregation layer), a certificate for each component whose subject is the
identity RBAC and the node authorizer know (`system:node:NAME` in `system:nodes` …), and a
key pair that signs service account tokens. Keys are P-256, because these are made in milliseconds.
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.state import Cluster, write_whole

SERVICE_CIDR = "10.214.0.0/24"
# The first address of the service network: the Service `kubernetes` in `default`.
KUBERNETES_SERVICE_IP = "10.214.0.1"
VALID_DAYS = "3650"
CURVE = "ec_paramgen_curve:P-256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate to issue: its subject, and the names of a server."""

    file: str
    common_name: str
    organization: str = ""
    names: tuple[str, ...] = ()


def identities(cluster: Cluster) -> list[Identity]:
    """Every certificate that the cluster's own authority signs."""
    local = ("DNS:localhost", "IP:127.0.0.1")
    services = (
        *("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"),
        *("DNS:kubernetes.default.svc.cluster.local", f"IP:{KUBERNETES_SERVICE_IP}"),
    )
    node = cluster.node_name
    node_names = (f"DNS:{node}", f"IP:{cluster.node_ip}")
    return [
        Identity(
            file="apiserver",
            common_name="kube-apiserver",
            names=(*local, *services, *node_names),
        ),
        Identity(file="etcd", common_name="etcd", names=local),
        Identity(file="apiserver-etcd", common_name="kube-apiserver-etcd-client"),
        Identity(
            file="apiserver-kubelet",
            common_name="kube-apiserver-kubelet-client",
            organization="system:masters",
        ),
        Identity(file="admin", common_name="kubernetes-admin", organization="system:masters"),
        Identity(
            file="kube-controller-manager",
            common_name="system:kube-controller-manager",
            names=local,
        ),
        Identity(file="kube-scheduler", common_name="system:kube-scheduler", names=local),
        Identity(
            file="kubelet",
            common_name=f"system:node:{node}",
            organization="system:nodes",
            names=(*local, *node_names),
        ),
    ]


def write_pki(cluster: Cluster) -> None:
    """Write missing certificates, keys and kubeconfigs."""
    folder = cluster.pki
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("ca", "front-proxy-ca"):
        if not (folder / f"{name}.crt").exists():
            extensions = (
                "basicConstraints=critical,CA:TRUE",
                "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
                "subjectKeyIdentifier=hash",
            )
            _certificate(folder / name, f"/CN=local-cluster-{name}", extensions)
    for identity in identities(cluster):
        if not (folder / f"{identity.file}.crt").exists():
            issue(folder, "ca", identity)
    if not (folder / "front-proxy-client.crt").exists():
        client = Identity(file="front-proxy-client", common_name="front-proxy-client")
        issue(folder, "front-proxy-ca", client)
    if not (folder / "service-account.pub").exists():
        private, public = folder / "service-account.key", folder / "service-account.pub"
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", CURVE, "-out", str(private))
        _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    for name in ("admin", "kube-controller-manager", "kube-scheduler", "kubelet"):
        path = cluster.kubeconfig if name == "admin" else cluster.config / f"{name}.kubeconfig"
        write_whole(path, kubeconfig(cluster, name))


def kubeconfig(cluster: Cluster, identity: str) -> str:
    """A kubeconfig (JSON, which is YAML) with everything in it, for one identity."""

    def embedded(file: str) -> str:
        return base64.b64encode((cluster.pki / file).read_bytes()).decode()

    server = {
        "server": cluster.apiserver_url,
        "certificate-authority-data": embedded("ca.crt"),
    }
    user = {
        "client-certificate-data": embedded(f"{identity}.crt"),
        "client-key-data": embedded(f"{identity}.key"),
    }
    context = {"cluster": cluster.name, "user": identity}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster.name, "cluster": server}],
        "users": [{"name": identity, "user": user}],
        "contexts": [{"name": cluster.name, "context": context}],
        "current-context": cluster.name,
    }
    return json.dumps(document, indent=1)


def issue(folder: Path, authority: str, identity: Identity) -> None:
    """Make a key and a certificate for one identity, signed by an authority of the folder."""
    organization = f"/O={identity.organization}" if identity.organization else ""
    usages = "clientAuth,serverAuth" if identity.names else "clientAuth"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={usages}",
        "authorityKeyIdentifier=keyid",
    ]
    if identity.names:
        extensions.append(f"subjectAltName={','.join(identity.names)}")
    ca = folder / authority
    signed = ("-CA", f"{ca}.crt", "-CAkey", f"{ca}.key")
    subject = f"{organization}/CN={identity.common_name}"
    _certificate(folder / identity.file, subject, extensions, *signed)


def _certificate(stem: Path, subject: str, extensions: Sequence[str], *more: str) -> None:
    """Make a key and a certificate, which is renamed to its place last: with it, its key is there.

    Without the machine's openssl.cnf, because the extensions that it adds differ.
    """
    partial = stem.with_name(f".{stem.name}.crt")
    _openssl(
        *("req", "-x509", "-config", "/dev/null", "-days", VALID_DAYS, "-subj", subject, *more),
        *("-newkey", "ec", "-pkeyopt", CURVE, "-noenc", "-keyout", f"{stem}.key"),
        *("-out", str(partial), *(word for each in extensions for word in ("-addext", each))),
    )
    partial.replace(f"{stem}.crt")


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(
            "the openssl command is missing: install it (Debian: apt-get install openssl)"
        ) from error
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
