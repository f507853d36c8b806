"""Configuration files of containerd, the kubelet and CNI.

In comes a cluster; out come files under its config folder. Each setting that differs from a
default has its reason beside it; most make the node run on any machine a developer has: cgroup
v1 or v2, swap on, no CAP_SYS_RESOURCE, an overlay file system below.
"""

import json
from pathlib import Path

from local_cluster import mounts
from local_cluster.binaries import Binaries
from local_cluster.image import SANDBOX_IMAGE
from local_cluster.state import Cluster, write_whole


def write_configs(cluster: Cluster, binaries: Binaries) -> None:
    """Write every configuration file; the same cluster gives the same files."""
    cni = cluster.config / "cni"
    manifests = cluster.config / "manifests"
    for folder in (cluster.config, cni, manifests, *cluster.cdi_dirs):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(cluster.config / "containerd.toml", containerd_config(cluster, binaries))
    write_whole(cluster.config / "kubelet.json", json.dumps(kubelet_config(cluster), indent=1))
    write_whole(cni / "10-bridge.conflist", json.dumps(cni_config(cluster), indent=1))


def containerd_config(cluster: Cluster, binaries: Binaries) -> str:
    """containerd's configuration, as version 3, which containerd 2.0 and newer read."""
    state = cluster.state
    quoted = json.dumps  # a JSON string is a TOML basic string
    lines = [
        "version = 3",
        f"root = {quoted(str(state / 'containerd'))}",
        f"state = {quoted(str(state / 'containerd-run'))}",
        # Nothing outside the state folder: no NRI socket, no /opt/containerd.
        "disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt']",
        "imports = []",
        "[grpc]",
        f"address = {quoted(str(cluster.containerd_address))}",
        "[plugins.'io.containerd.cri.v1.images']",
        f"snapshotter = {quoted(snapshotter(state))}",
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]",
        f"sandbox = {quoted(SANDBOX_IMAGE)}",
        "[plugins.'io.containerd.cri.v1.runtime']",
        # Without CAP_SYS_RESOURCE a score below containerd's own cannot be set, and runc
        # fails with "can't get final child's PID from pipe: EOF".
        "restrict_oom_score_adj = true",
        "disable_apparmor = true",
        "netns_mounts_under_state_dir = true",
        f"cdi_spec_dirs = {quoted([str(folder) for folder in cluster.cdi_dirs])}",
        "[plugins.'io.containerd.cri.v1.runtime'.cni]",
        f"bin_dirs = {quoted([str(binaries.folders['cni'])])}",
        f"conf_dir = {quoted(str(cluster.config / 'cni'))}",
        # The plugin would leave a file for each pod under /var/lib/cni.
        "use_internal_loopback = true",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]",
        "runtime_type = 'io.containerd.runc.v2'",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]",
        "SystemdCgroup = false",
        f"BinaryName = {quoted(str(binaries.path('runc')))}",
        f"Root = {quoted(str(state / 'runc'))}",
        "[plugins.'io.containerd.grpc.v1.cri']",
        "stream_server_address = '127.0.0.1'",
        "stream_server_port = '0'",
        "[plugins.'io.containerd.shim.v1.manager']",
        f"socket_dir = {quoted(str(cluster.shim_sockets))}",
    ]
    return "\n".join(lines) + "\n"


def snapshotter(state: Path) -> str:
    """How containerd lays image layers over each other on this file system."""
    # An overlay cannot lie on an overlay (a state folder inside a container): copy then.
    return "native" if mounts.holding(state).kind in ("overlay", "tmpfs", "nfs") else "overlayfs"


def kubelet_config(cluster: Cluster) -> dict[str, object]:
    """A KubeletConfiguration."""
    pki = cluster.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # The API server connects here for logs and exec; the bridge is this machine's alone.
        "address": cluster.node_ip,
        "port": cluster.ports.kubelet,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": cluster.ports.kubelet_healthz,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "rotateCertificates": False,
        "containerRuntimeEndpoint": f"unix://{cluster.containerd_address}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cluster.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        # A negative score, the default, needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        # A developer's disk is often nearly full: that must not evict pods or images.
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        # A pod whose prepare failed is tried again at the next sync only.
        "syncFrequency": cluster.options.sync_frequency,
        "nodeStatusUpdateFrequency": "5s",
        # No Services are routed here, so no iptables are needed.
        "makeIPTablesUtilChains": False,
        "staticPodPath": str(cluster.config / "manifests"),
        "podLogsDir": str(cluster.logs / "pods"),
        "volumePluginDir": str(cluster.kubelet_root / "volume-plugins"),
        "clusterDomain": "cluster.local",
        # There is no DNS server. Without an address every pod gets a warning event; here,
        # where nothing listens on port 53, a query is refused at once.
        "clusterDNS": [cluster.node_ip],
        "serializeImagePulls": False,
        "featureGates": _gates(cluster.options.feature_gates),
    }


def _gates(text: str) -> dict[str, bool]:
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): value.strip().lower() == "true" for name, value in pairs}


def cni_config(cluster: Cluster) -> dict[str, object]:
    """A bridge network. It is no gateway to CNI: then ip_forward would be switched on."""
    return {
        "cniVersion": "1.0.0",
        "name": cluster.network_name,
        "plugins": [
            {
                "type": "bridge",
                "bridge": cluster.bridge,
                "isGateway": False,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(cluster.state / "cni"),
                    "ranges": [[{"subnet": cluster.pod_cidr, "gateway": cluster.node_ip}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
