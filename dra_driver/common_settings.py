"""Options that several commands have in common.

In: nothing. Out: options for fields, whose environment variables are the same in every command, and
types of their values. A command that means something of its own with one rewords it.
"""

from pathlib import Path
from typing import Literal

from dra_driver.command_line import bounds, option, shaped
from dra_driver.gpu_words import checked_words

MigSetting = Literal["auto", "on-demand", "existing", "off"]
WholeGpusBesideShares = Literal["auto", "always", "never"]
GpuOrderSetting = Literal["least-capable", "pci"]
TaintEffect = Literal["off", "None", "NoSchedule", "NoExecute"]
LogLevelName = Literal["debug", "info", "warning", "error"]
LogFormatName = Literal["auto", "json", "console"]

SECONDS = bounds(above=0)
SECONDS_OR_OFF = bounds(least=0)

NODE_NAME = shaped(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "the name of a Node")


def _checked_shares(text: str) -> str:
    if text in {"disabled", "memory", "unlimited"} or (text.isdecimal() and int(text) > 0):
        return text
    raise ValueError(f"give disabled, memory, unlimited or a positive number, not {text!r}")


NVIDIA_DRIVER_ROOT = option(
    default=Path("/"),
    names=("host_driver_root",),
    variable=True,
    help="Root of the GPU driver's installation, as the host sees it.",
)
CONTAINER_DRIVER_ROOT = option(
    default=None,
    names=("driver_root_ctr_path",),
    variable=True,
    help="The same root as this process sees it; unset: /driver-root if that exists, else "
    "--nvidia-driver-root.",
)
NVIDIA_DEV_ROOT = option(
    default=None,
    variable=True,
    help="Root above the device nodes' dev folder, as the host sees it; unset: the driver root if "
    "it has dev/nvidiactl, else /.",
)
CONTAINER_DEV_ROOT = option(
    default=None,
    names=("dev_root_ctr_path",),
    variable=True,
    help="The folder of --nvidia-dev-root as this process sees it; unset: the driver root if that "
    "is meant, else the same path.",
)
NVIDIA_CDI_HOOK_PATH = option(
    default="",
    variable=True,
    metavar="PATH",
    help="nvidia-cdi-hook as the host sees it; unset: looked for.",
)
SYS_ROOT = option(default=Path("/sys"), variable=True, help="Where sysfs is mounted.")
PROC_ROOT = option(default=Path("/proc"), variable=True, help="Where procfs is mounted.")
HOST_ROOT = option(
    default=None,
    variable=True,
    help="The node's root folder as this process sees it; unset: / on the node itself, "
    "in a pod the driver root if that is the host's.",
)
CGROUP_ROOT = option(
    default=None,
    variable=True,
    help="The node's /sys/fs/cgroup; unset: where cgroup v2 is mounted.",
)
KUBECONFIG = option(
    default=None,
    help="Kubeconfig file; without one, those of KUBECONFIG, ~/.kube/config, or the pod's service "
    "account.",
)
CONTEXT = option(default="", help="Context of the kubeconfig.")
KUBELET_PLUGINS_DIRECTORY_PATH = option(
    default=Path("/var/lib/kubelet/plugins"),
    variable=True,
    help="Holds this driver's socket and its records; the same path as on the host.",
)
KUBELET_REGISTRAR_DIRECTORY_PATH = option(
    default=Path("/var/lib/kubelet/plugins_registry"),
    variable=True,
    help="Where the kubelet looks for plugins; the same path as on the host.",
)
CDI_ROOT = option(
    default=Path("/var/run/cdi"),
    variable=True,
    help="Folder of CDI specs that the container runtime reads.",
)
MIG = option(
    default="auto",
    variable=True,
    help="MIG devices for claims: on-demand: made on every GPU, switching MIG modes; existing: "
    "those that others made; off: none; auto: made on GPUs that are in MIG mode, switching none, "
    "but existing where mig-manager's label is on the Node, and on Kubernetes older than 1.37.",
)
MIG_PROFILES = option(
    default="",
    variable=True,
    metavar="PROFILES",
    check=shaped(
        r"([0-9][0-9a-z.+-]*(,[0-9][0-9a-z.+-]*)*)?",
        "MIG profiles such as 1g.10gb,3g.40gb, separated by commas",
    ),
    help="MIG profiles that are made on demand, such as 1g.10gb,3g.40gb; unset: all.",
)
KUBERNETES = option(
    default="1.37",
    metavar="VERSION",
    check=shaped(r"1\.[0-9]{1,3}", "a version of Kubernetes such as 1.36"),
    help="The version of Kubernetes to answer for, such as 1.36: before 1.37 less is offered by "
    "default.",
)
WHOLE_GPUS_BESIDE_SHARES = option(
    default="auto",
    variable=True,
    help="Offer a device that is divided into shares as a whole, too: always, which needs "
    "counters, or never; auto: from Kubernetes 1.37 on.",
)
MEMORY_COUNTERS = option(
    default=False,
    variable=True,
    help="Have every device consume its memory from a counter, also where no counters are needed "
    "to keep devices apart, for quotas by memory such as Kueue's. It costs the scheduler time for "
    "each pod; before Kubernetes 1.37 with the square of the nodes.",
)
CONSUMABLE_SHARES = option(
    default="disabled",
    variable=True,
    metavar="disabled|memory|unlimited|NUMBER",
    check=_checked_shares,
    help="Let several claims have parts of one device, by consumable capacity: disabled; memory: a "
    "claim that asks for none has all of it; unlimited: such a claim has none in particular; or a "
    "number: such a claim has one of so many shares.",
)
EXCLUDE_GPUS = option(
    default="",
    variable=True,
    metavar="GPUS",
    check=checked_words,
    help="GPUs that are never offered and never changed, separated by commas: each by its index, "
    "UUID, PCI address, or product name with * for any letters. A Node's label "
    "nvidia.com/dra-driver.exclude-gpus names further ones.",
)
GPU_ORDER = option(
    default="least-capable",
    variable=True,
    help="Which whole GPU a claim that names no card gets: that of the least capable card, or the "
    "first by PCI address.",
)
HTTP_ENDPOINT = option(
    default="",
    metavar="ADDRESS",
    help="Address for metrics and /healthz, such as :8080; unset: off.",
)
METRICS_PATH = option(
    default="/metrics",
    metavar="PATH",
    check=shaped("/.*", "a path that begins with /"),
    help="HTTP path of the metrics.",
)
LOG_LEVEL = option(default="info", help="Least severe log lines that are written.")
LOG_FORMAT = option(
    default="auto", help="Form of log lines; auto: console on a terminal, json elsewhere."
)
