"""Options that several commands have in common.

In: nothing. Out: options for fields, whose environment variables are the same in every command, and
types of their values. A command for which an option means something else rewords it.
"""

from pathlib import Path
from typing import Literal

from dra_driver.commands.command_line import PLACES, CommandSettings, bounds, option, shaped
from dra_driver.devices.gpu_words import checked_words

MigSetting = Literal["auto", "on-demand", "existing", "off"]
WholeGpusBesideShares = Literal["auto", "always", "never"]
TaintEffect = Literal["off", "None", "NoSchedule", "NoExecute"]
LogLevelName = Literal["debug", "info", "warning", "error"]
LogFormatName = Literal["auto", "json", "console"]

MOST_SECONDS = 604_800
"""A week: the system's clocks do not accept much larger numbers of seconds."""
SECONDS = bounds(above=0, most=MOST_SECONDS)
SECONDS_OR_OFF = bounds(least=0, most=MOST_SECONDS)


def _checked_shares(text: str) -> str:
    if text in {"disabled", "memory", "unlimited"} or (text.isdecimal() and int(text) > 0):
        return text
    raise ValueError(f"must be disabled, memory, unlimited or a positive number, not {text!r}")


NVIDIA_DRIVER_ROOT = option(
    group=PLACES,
    default=Path("/"),
    names=("host_driver_root",),
    variable=True,
    help="Root of the GPU driver's files, on the host.",
)
CONTAINER_DRIVER_ROOT = option(
    group=PLACES,
    default=None,
    names=("driver_root_ctr_path",),
    variable=True,
    help="The same as this process sees it; unset: /driver-root if it exists, else the same path.",
)
NVIDIA_DEV_ROOT = option(
    group=PLACES,
    default=None,
    variable=True,
    help="Folder whose dev has the device nodes, on the host; unset: the driver root if it "
    "has dev/nvidiactl, else /.",
)
NVIDIA_CDI_HOOK_PATH = option(
    group=PLACES,
    default="",
    variable=True,
    metavar="PATH",
    help="Path of nvidia-cdi-hook on the host; unset: searched for.",
)
SYS_ROOT = option(group=PLACES, default=Path("/sys"), variable=True, help="Where sysfs is mounted.")
PROC_ROOT = option(
    group=PLACES, default=Path("/proc"), variable=True, help="Where procfs is mounted."
)
CGROUP_ROOT = option(
    group=PLACES,
    default=None,
    variable=True,
    help="The node's cgroup file system; unset: where cgroup v2 is mounted.",
)


class RootSettings(CommandSettings):
    """Where the GPU driver, its device nodes, sysfs and procfs are, on the host and here."""

    nvidia_driver_root: Path = NVIDIA_DRIVER_ROOT
    container_driver_root: Path | None = CONTAINER_DRIVER_ROOT
    nvidia_dev_root: Path | None = NVIDIA_DEV_ROOT
    container_dev_root: Path | None = option(
        group=PLACES,
        default=None,
        names=("dev_root_ctr_path",),
        variable=True,
        help="The same as this process sees it; unset: --container-driver-root if it is the driver "
        "root, else the same path.",
    )
    sys_root: Path = SYS_ROOT
    proc_root: Path = PROC_ROOT


KUBELET_PLUGINS_DIRECTORY_PATH = option(
    group=PLACES,
    default=Path("/var/lib/kubelet/plugins"),
    variable=True,
    help="Folder of this driver's socket and records; the same path as on the host.",
)
KUBELET_REGISTRAR_DIRECTORY_PATH = option(
    group=PLACES,
    default=Path("/var/lib/kubelet/plugins_registry"),
    variable=True,
    help="Where the kubelet looks for plugins; the same path as on the host.",
)
CDI_ROOT = option(
    group=PLACES,
    default=Path("/var/run/cdi"),
    variable=True,
    help="Folder of CDI specs that the container runtime reads.",
)
MIG = option(
    default="auto",
    variable=True,
    help="MIG devices for claims; on-demand: made on every GPU, also switching MIG modes; "
    "existing: only those made by others; off: none; auto: made on GPUs in MIG mode, or "
    "existing if the Node has mig-manager's label or Kubernetes is older than 1.37.",
)
MIG_PROFILES = option(
    default="",
    variable=True,
    metavar="PROFILES",
    check=shaped(
        r"([0-9][0-9a-z.+-]*(,[0-9][0-9a-z.+-]*)*)?",
        "MIG profiles such as 1g.10gb,3g.40gb, separated by commas",
    ),
    help="MIG profiles made on demand, such as 1g.10gb,3g.40gb; unset: all.",
)
WHOLE_GPUS_BESIDE_SHARES = option(
    default="auto",
    variable=True,
    help="Offer a device that is divided into shares also as a whole, which needs counters; auto: "
    "from Kubernetes 1.37 on.",
)
MEMORY_COUNTERS = option(
    default=False,
    variable=True,
    help="Let every device consume its memory from a counter, for quotas by memory such as "
    "Kueue's. This slows the scheduler, before Kubernetes 1.37 too much for a large cluster.",
)
VFIO = option(
    default=False,
    variable=True,
    help="Offer GPUs that are bound to a VFIO driver to virtual machines, as devices of type vfio. "
    "The driver binds none by itself.",
)
CONSUMABLE_SHARES = option(
    default="disabled",
    variable=True,
    metavar="disabled|memory|unlimited|NUMBER",
    check=_checked_shares,
    help="Let several claims use parts of one device, by consumable capacity. What a claim "
    "without a request gets: memory: all memory; unlimited: no particular amount; NUMBER: "
    "one of that many shares.",
)
EXCLUDE_GPUS = option(
    default="",
    variable=True,
    metavar="GPUS",
    check=checked_words,
    help="GPUs that are never offered or changed, separated by commas: index, UUID or PCI address.",
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
LOG_LEVEL = option(default="info", help="Least severe log lines to write.")
LOG_FORMAT = option(
    default="auto", help="Format of log lines; auto: console on a terminal, else json."
)
