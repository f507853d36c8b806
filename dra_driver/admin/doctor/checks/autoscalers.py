"""Nodes that Cluster Autoscaler misjudges, because it expects GPUs of a device plugin there.

A node with the label that its cloud's provider uses for GPU nodes should have `nvidia.com/gpu` in
its allocatable, which a DRA driver does not add. So the node counts as unready, its GPUs as idle,
and it is removed (1.36.1: gpu_processor.go, utilization/info.go). docs/works-with.md has more.
Pure.
"""

from collections.abc import Iterable, Iterator

from dra_driver.admin.api.nodes import Node
from dra_driver.admin.doctor.checks.finding import Seen, info, ok, warning
from dra_driver.host.words import named
from dra_driver.kube.fields import Object, mapping, text
from resource_nvidia_com.resource_names import GPU

STATUS = ("kube-system", "cluster-autoscaler-status")
"""Namespace and name of Cluster Autoscaler's default ConfigMap."""

STAYS = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
"""The annotation that keeps a node from being removed."""

GPU_LABELS = frozenset(
    {
        "aliyun.accelerator/nvidia_name",
        "baidu/nvidia_name",
        "cloud.digitalocean.com/gpu-node",
        "cloud.google.com/gke-accelerator",
        "cloud.tencent.com/tke-accelerator",
        "cluster-api/accelerator",
        "hcloud/gpu-node",
        "k8s.amazonaws.com/accelerator",
        "k8s.scw.cloud/gpu",
        "kubernetes.azure.com/accelerator",
        "magnum.openstack.org/gpu",
        "node.kubernetes.ovhcloud.com/gpu",
    }
)
"""`GPULabel` of its providers for clouds with NVIDIA GPUs; each looks only at its own."""

BY_DRA = "cloud.google.com/gke-gpu-dra-driver"
"""With the value `true`, GCE's provider expects GPUs of a DRA driver; no other provider does."""


def judged(
    nodes: Iterable[Object], slices: Iterable[Object], *, runs: bool | None
) -> Iterator[Seen]:
    """Check the labels of nodes with published GPUs.

    Args:
        nodes: all, or the requested ones.
        slices: of this driver.
        runs: whether Cluster Autoscaler's ConfigMap exists; None if that is not known.
    """
    if runs is False:
        yield ok("Cluster Autoscaler is not installed")
        return
    offering = {text(each, "spec", "nodeName") for each in slices}
    by_label: dict[str, list[str]] = {}
    for node in nodes:
        one = Node.of(node)
        if one.name in offering and not _is_safe(node, one):
            for label in sorted(GPU_LABELS & one.labels.keys()):
                by_label.setdefault(label, []).append(one.name)
    report = warning if runs else info
    for label, names in sorted(by_label.items()):
        yield report(
            f"{'' if runs else 'if it is installed, '}Cluster Autoscaler considers "
            f"{named(sorted(names))} unready, and their GPUs idle, because of the label "
            f"{label}: it removes such nodes",
            f"remove the label, or where the cloud sets it, annotate the nodes with {STAYS}=true: "
            "docs/works-with.md#cluster-autoscaler",
        )
    if not by_label:
        yield ok("no node with GPUs has a label that misleads Cluster Autoscaler")


def _is_safe(node: Object, one: Node) -> bool:
    return (
        GPU in mapping(node, "status", "allocatable")
        or mapping(node, "metadata", "annotations").get(STAYS) == "true"
        or one.labels.get(BY_DRA) == "true"
    )
