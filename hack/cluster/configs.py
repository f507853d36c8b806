"""Configuration files of containerd, the kubelet and CNI; those of CRI-O are in `crio`.

In: a cluster. Out: files under its config folder. Each setting that differs from a default has its
reason beside it; most make the node run on any machine that a developer has: cgroup v1 or v2, swap
on, no CAP_SYS_RESOURCE, an overlay file system below.
"""

import json
from pathlib import Path

from cluster import crio, mounts
from cluster.binaries import Binaries
from cluster.image import SANDBOX_IMAGE
from cluster.state import Cluster, write_whole
from cluster.versions import is_containerd_1


def write_configs(cluster: Cluster, binaries: Binaries) -> None:
    """Write every configuration file; the same cluster gives the same files."""
    cni = cluster.config / "cni"
    manifests = cluster.config / "manifests"
    for folder in (cluster.config, cni, manifests, *cluster.cdi_dirs):
        folder.mkdir(parents=True, exist_ok=True)
    if cluster.options.runtime == "crio":
        crio.write_configs(cluster, binaries)
    else:
        write_whole(cluster.config / "containerd.toml", containerd_config(cluster, binaries))
    write_whole(cluster.config / "kubelet.json", json.dumps(kubelet_config(cluster), indent=1))
    write_whole(cni / "10-bridge.conflist", json.dumps(cni_config(cluster), indent=1))


def containerd_config(cluster: Cluster, binaries: Binaries) -> str:
    """containerd's configuration: version 3 for 2.0 and newer, version 2 for 1.7."""
    state = cluster.state
    is_old = is_containerd_1(cluster.options.containerd)
    cri = "io.containerd.grpc.v1.cri" if is_old else "io.containerd.cri.v1.runtime"
    lines = [
        f"version = {2 if is_old else 3}",
        f"root = {_quoted(state / 'containerd')}",
        f"state = {_quoted(state / 'containerd-run')}",
        # Nothing outside the state folder: no NRI socket, no /opt/containerd.
        "disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt']",
        "imports = []",
        "[grpc]",
        f"address = {_quoted(cluster.cri_socket)}",
        f"[plugins.'{cri}']",
        # Without CAP_SYS_RESOURCE, scores below containerd's own cannot be set, and runc
        # fails with `can't get final child's PID from pipe: EOF`.
        "restrict_oom_score_adj = true",
        "disable_apparmor = true",
        "netns_mounts_under_state_dir = true",
        f"cdi_spec_dirs = {json.dumps([str(folder) for folder in cluster.cdi_dirs])}",
        *(_only_in_1_7() if is_old else ()),
        f"[plugins.'{cri}'.cni]",
        f"conf_dir = {_quoted(cluster.config / 'cni')}",
        *_cni_programs(binaries.folders["cni"], is_old=is_old),
        f"[plugins.'{cri}'.containerd]",
        *([f"snapshotter = {_quoted(snapshotter(state))}"] if is_old else []),
        f"[plugins.'{cri}'.containerd.runtimes.runc]",
        "runtime_type = 'io.containerd.runc.v2'",
        f"[plugins.'{cri}'.containerd.runtimes.runc.options]",
        "SystemdCgroup = false",
        f"BinaryName = {_quoted(binaries.path(cluster.options.oci))}",
        f"Root = {_quoted(state / 'runc')}",
        *([] if is_old else _only_since_2_0(cluster)),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: object) -> str:
    # A JSON string is a TOML basic string.
    return json.dumps(str(text))


def _only_in_1_7() -> list[str]:
    """Settings that only 1.7 has, in the table of its CRI plugin."""
    return [
        # Off in 1.7 by default; always on from 2.4 on.
        "enable_cdi = true",
        f"sandbox_image = {_quoted(SANDBOX_IMAGE)}",
        "stream_server_address = '127.0.0.1'",
        "stream_server_port = '0'",
    ]


def _cni_programs(folder: Path, *, is_old: bool) -> list[str]:
    if is_old:
        return [f"bin_dir = {_quoted(folder)}"]
    return [
        f"bin_dirs = {json.dumps([str(folder)])}",
        # The plugin would leave a file for each pod under /var/lib/cni.
        "use_internal_loopback = true",
    ]


def _only_since_2_0(cluster: Cluster) -> list[str]:
    """Settings that version 3 has in tables of other plugins."""
    return [
        "[plugins.'io.containerd.cri.v1.images']",
        f"snapshotter = {_quoted(snapshotter(cluster.state))}",
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]",
        f"sandbox = {_quoted(SANDBOX_IMAGE)}",
        "[plugins.'io.containerd.grpc.v1.cri']",
        "stream_server_address = '127.0.0.1'",
        "stream_server_port = '0'",
        "[plugins.'io.containerd.shim.v1.manager']",
        f"socket_dir = {_quoted(cluster.shim_sockets)}",
    ]


def snapshotter(state: Path) -> str:
    """How containerd mounts image layers over each other on this file system."""
    return "overlayfs" if mounts.can_hold_overlays(state) else "native"


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
        "containerRuntimeEndpoint": f"unix://{cluster.cri_socket}",
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
        # A pod whose prepare failed is only retried at the next sync, by default in a minute.
        "syncFrequency": "5s",
        # Likewise a container that ended twice: by default it starts after ten seconds or more.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
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
        "featureGates": {
            "KubeletCrashLoopBackOffMax": True,  # off by default in 1.34
            **_gates(cluster.options.feature_gates),
        },
    }


def _gates(text: str) -> dict[str, bool]:
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): value.strip().lower() == "true" for name, value in pairs}


def cni_config(cluster: Cluster) -> dict[str, object]:
    """A bridge network. For CNI it is no gateway, or ip_forward would be switched on."""
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
