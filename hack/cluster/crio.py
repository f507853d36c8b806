"""CRI-O instead of containerd: its configuration, and how it gets images.

In: a cluster, its programs and an archive of images. Out: the files that CRI-O is started with, and
images in its storage. It has no socket that accepts an image, so they are written into the storage
directly, by a program of its own tests. All its files are in the state folder, like containerd's;
the reasons for settings that both have are in `configs`.
"""

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from cluster import mounts
from cluster.binaries import Binaries
from cluster.errors import ClusterError
from cluster.image import SANDBOX_IMAGE
from cluster.processes import MARK
from cluster.release import unpack
from cluster.state import Cluster, write_whole

OVERLAY = "overlay"
# A mount of its own would hide what is mounted below it when the cluster goes down.
OVERLAY_OPTION = "overlay.skip_mount_home=true"
CGROUPS = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")
CAP_SYS_RESOURCE = 1 << 24
# For privileged containers CRI-O asks for every capability, containerd for those it has itself.
RESOURCE = r's/,\s*"CAP_SYS_RESOURCE"//g'
IMPORT_S = 300


def write_configs(cluster: Cluster, binaries: Binaries) -> None:
    """Write CRI-O's files; the same cluster gives the same files."""
    config = cluster.config
    write_whole(config / "crio.toml", crio_config(cluster, binaries))
    anything = {"default": [{"type": "insecureAcceptAnything"}]}
    write_whole(config / "policy.json", json.dumps(anything))
    # Otherwise it refuses names without a registry, such as nvidia/cuda, even of existing images.
    write_whole(config / "registries.conf", 'unqualified-search-registries = ["docker.io"]\n')
    (config / "registries.d").mkdir(exist_ok=True)
    (config / "crio.d").mkdir(exist_ok=True)
    cluster.shim_sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _changes():
        program = binaries.path(cluster.options.oci)
        write_whole(config / "oci", _runtime_for_this_machine(program), mode=0o755)


def flags(cluster: Cluster) -> tuple[str | Path, ...]:
    """CRI-O's command line."""
    config = cluster.config
    return (
        *("--config", config / "crio.toml", "--config-dir", config / "crio.d"),
        *("--registries-conf", config / "registries.conf"),
        *("--registries-conf-dir", config / "registries.d"),
    )


def crio_config(cluster: Cluster, binaries: Binaries) -> str:
    """CRI-O's configuration, without host ports, for which it needs iptables or nft."""
    own, config, oci = cluster.state / "crio", cluster.config, cluster.options.oci
    tables: dict[str, dict[str, object]] = {
        "crio": {
            "root": own / "storage",
            "runroot": own / "run",
            "storage_driver": storage_driver(cluster.state),
            "storage_option": _storage_options(cluster.state),
            "log_dir": cluster.logs / "pods",
            "version_file": own / "version",
            "version_file_persist": own / "version-kept",
            "clean_shutdown_file": own / "clean.shutdown",
        },
        "crio.api": {
            "listen": cluster.cri_socket,
            "stream_address": "127.0.0.1",
            "stream_port": "0",
        },
        "crio.runtime": {
            "default_runtime": oci,
            "cgroup_manager": "cgroupfs",
            "cdi_spec_dirs": [str(folder) for folder in cluster.cdi_dirs],
            "hooks_dir": [],
            "apparmor_profile": "unconfined",
            "container_exits_dir": own / "exits",
            # A socket's path may have 107 bytes, and a container's id has 64 of them.
            "container_attach_socket_dir": cluster.shim_sockets,
            "namespaces_dir": own / "namespaces",
            "pinns_path": binaries.path("pinns"),
            "irqbalance_config_file": "",
            "irqbalance_config_restore_file": "disable",
            "enable_criu_support": False,
            "disable_hostport_mapping": True,
        },
        f"crio.runtime.runtimes.{oci}": {
            "runtime_path": config / "oci" if _changes() else binaries.path(oci),
            "runtime_root": cluster.state / "runc",
            "monitor_path": binaries.path("conmon"),
            # Found in the cluster's control groups, and by its mark, when the cluster is removed.
            "monitor_cgroup": "pod",
            "monitor_env": [f"{MARK}={cluster.state}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "crio.image": {
            "pause_image": SANDBOX_IMAGE,
            "pause_command": "",  # that of the image
            "signature_policy": config / "policy.json",
            "signature_policy_dir": config / "policies",
        },
        "crio.network": {
            "network_dir": config / "cni",
            "plugin_dirs": [str(binaries.folders["cni"])],
        },
        "crio.nri": {"enable_nri": False},
    }
    return "\n".join(
        line
        for name, settings in tables.items()
        for line in (f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in settings.items()))
    )


def _toml(value: object) -> str:
    # JSON's strings, lists and booleans are TOML's.
    return json.dumps(value, default=str)


def _changes() -> list[str]:
    """Expressions of sed that remove from a container's and a process's file what cannot work here.

    The kubelet sends limits of huge pages with every container, and for some a negative OOM score.
    containerd leaves the limits out if cgroup v1 is mounted without that controller, and replaces
    lower scores by its own (restrict_oom_score_adj). CRI-O checks only whether the kernel has the
    controller (/proc/cgroups), and runc fails: `cannot set hugetlb limit: container could
    not join or create cgroup`, or `failed to update /proc/self/oom_score_adj: Permission denied`.
    """
    knows_hugetlb = any((CGROUPS / name).exists() for name in ("hugetlb", "cgroup.controllers"))
    may_lower = int(re.findall(r"CapEff:\s*(\w+)", STATUS.read_text())[0], 16) & CAP_SYS_RESOURCE
    return [
        *([] if knows_hugetlb else [r's/("hugepageLimits":\s*)\[[^]]*\]/\1[]/']),
        *([] if may_lower else [r's/("oomScoreAdj":\s*)-[0-9]+/\10/', RESOURCE]),
    ]


def _runtime_for_this_machine(program: Path) -> str:
    """A script in front of runc or crun that changes what it is given: a bundle, or for an exec the
    file of its process, which has a privileged container's capabilities, too."""
    changes = ";".join(_changes())
    return (
        "#!/bin/sh\n"
        "for word; do\n"
        "  case $last in\n"
        f"  --bundle) sed -zEi '{changes}' \"$word/config.json\" ;;\n"
        f"  --process) sed -zEi '{changes}' \"$word\" ;;\n"
        "  esac\n"
        "  last=$word\n"
        "done\n"
        f'exec {program} "$@"\n'
    )


def storage_driver(state: Path) -> str:
    """How CRI-O mounts image layers over each other on this file system."""
    return OVERLAY if mounts.can_hold_overlays(state) else "vfs"


def _storage_options(state: Path) -> list[str]:
    return [OVERLAY_OPTION] if storage_driver(state) == OVERLAY else []


def import_images(cluster: Cluster, binaries: Binaries, archive: Path) -> None:
    """Import the images of an OCI archive into CRI-O, with the same names as in containerd.

    Raises ClusterError if one cannot be read or written.
    """
    layout = archive.with_name(f".{archive.name}.layout")
    try:
        unpack(archive, layout)
        index = json.loads((layout / "index.json").read_text())
        for number, manifest in enumerate(index["manifests"]):
            name = manifest["annotations"]["io.containerd.image.name"]
            _copy(cluster, binaries, name, "--import-from", f"oci:{layout}:@{number}")
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        raise ClusterError(f"{archive} is no archive of images with names: {error}") from error
    finally:
        shutil.rmtree(layout, ignore_errors=True)


def tag(cluster: Cluster, binaries: Binaries, name: str, other: str) -> None:
    """Add a name to an image that CRI-O has."""
    _copy(cluster, binaries, name, "--add-name", other)


def _copy(cluster: Cluster, binaries: Binaries, name: str, *words: str) -> None:
    own = cluster.state / "crio"
    options = [f"--storage-opt={option}" for option in _storage_options(cluster.state)]
    command = [
        *(str(binaries.path("copyimg")), "--root", str(own / "storage")),
        *("--runroot", str(own / "run"), "--storage-driver", storage_driver(cluster.state)),
        *(*options, "--signature-policy", str(cluster.config / "policy.json")),
        *("--image-name", name, *words),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, check=False)
    if done.returncode != 0:
        raise ClusterError(f"CRI-O's storage refused {name}: {done.stderr.strip()}")
