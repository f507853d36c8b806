"""What the settings of several sub-commands have in common.

In: nothing. Out: types of fields, each with default, environment variable and description, and the
model that all settings are of. The alias keeps a variable's name the same in commands whose own
variables have a prefix. A command that means something of its own with one gives it another
description.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from dra_driver.gpu_words import checked_words

Port = Annotated[int, Field(le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrOff = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _checked_shares(text: str) -> str:
    if text in {"disabled", "memory", "unlimited"} or (text.isdecimal() and int(text) > 0):
        return text
    raise ValueError(f"give disabled, memory, unlimited or a positive number, not {text!r}")


NvidiaDriverRoot = Annotated[
    Path,
    Field(
        Path("/"),
        validation_alias=AliasChoices("nvidia_driver_root", "host_driver_root"),
        description="Root of the NVIDIA driver's installation, as the host sees it.",
    ),
]
ContainerDriverRoot = Annotated[
    Path | None,
    Field(
        None,
        validation_alias=AliasChoices("container_driver_root", "driver_root_ctr_path"),
        description="The same root as this process sees it; unset: /driver-root if that exists, "
        "else --nvidia-driver-root.",
    ),
]
NvidiaDevRoot = Annotated[
    Path | None,
    Field(
        None,
        validation_alias="nvidia_dev_root",
        description="Root above the device nodes' dev folder, as the host sees it; unset: the "
        "driver root if it has dev/nvidiactl, else /.",
    ),
]
ContainerDevRoot = Annotated[
    Path | None,
    Field(
        None,
        validation_alias=AliasChoices("container_dev_root", "dev_root_ctr_path"),
        description="The folder of --nvidia-dev-root as this process sees it; unset: the driver "
        "root if that is meant, else the same path.",
    ),
]
NvidiaCdiHookPath = Annotated[
    str,
    Field(
        "",
        validation_alias="nvidia_cdi_hook_path",
        description="nvidia-cdi-hook as the host sees it; unset: looked for.",
    ),
]
SysRoot = Annotated[
    Path,
    Field(Path("/sys"), validation_alias="sys_root", description="Where sysfs is mounted."),
]
ProcRoot = Annotated[
    Path,
    Field(Path("/proc"), validation_alias="proc_root", description="Where procfs is mounted."),
]
Kubeconfig = Annotated[
    Path | None,
    Field(
        None,
        description="Kubeconfig file; without one, those of KUBECONFIG, ~/.kube/config, or the "
        "pod's service account.",
    ),
]
KubeconfigContext = Annotated[str, Field("", description="Context of the kubeconfig.")]
KubeletPluginsDirectory = Annotated[
    Path,
    Field(
        Path("/var/lib/kubelet/plugins"),
        validation_alias="kubelet_plugins_directory_path",
        description="Holds this driver's socket and its records; the same path as on the host.",
    ),
]
KubeletRegistrarDirectory = Annotated[
    Path,
    Field(
        Path("/var/lib/kubelet/plugins_registry"),
        validation_alias="kubelet_registrar_directory_path",
        description="Where the kubelet looks for plugins; the same path as on the host.",
    ),
]
CdiRoot = Annotated[
    Path,
    Field(
        Path("/var/run/cdi"),
        validation_alias="cdi_root",
        description="Folder of CDI specs that the container runtime reads.",
    ),
]
MigSetting = Annotated[
    Literal["auto", "on-demand", "existing", "off"],
    Field(
        "auto",
        validation_alias="mig",
        description="MIG devices for claims: on-demand: made on every GPU, switching MIG modes; "
        "existing: those that others made; off: none; auto: made on GPUs that are in MIG mode, "
        "switching none, but existing where mig-manager's label is on the Node, and on Kubernetes "
        "older than 1.37.",
    ),
]
MigProfiles = Annotated[
    str,
    Field(
        "",
        validation_alias="mig_profiles",
        pattern=r"^([0-9][0-9a-z.+-]*(,[0-9][0-9a-z.+-]*)*)?$",
        description="MIG profiles that are made on demand, such as 1g.10gb,3g.40gb; unset: all.",
    ),
]
KubernetesRelease = Annotated[
    str,
    Field(
        "1.37",
        pattern=r"^1\.[0-9]{1,3}$",
        description="The version of Kubernetes to answer for, such as 1.36: before 1.37 less is "
        "offered by default.",
    ),
]
WholeGpusBesideShares = Annotated[
    Literal["auto", "always", "never"],
    Field(
        "auto",
        validation_alias="whole_gpus_beside_shares",
        description="Offer a device that is divided into shares as a whole, too: always, which "
        "needs counters, or never; auto: from Kubernetes 1.37 on.",
    ),
]
MemoryCounters = Annotated[
    bool,
    Field(
        False,
        validation_alias="memory_counters",
        description="Have every device consume its memory from a counter, also where no counters "
        "are needed to keep devices apart, for quotas by memory such as Kueue's. It costs the "
        "scheduler time for each pod; before Kubernetes 1.37 with the square of the nodes.",
    ),
]
ConsumableShares = Annotated[
    str,
    AfterValidator(_checked_shares),
    Field(
        "disabled",
        validation_alias="consumable_shares",
        description="Let several claims have parts of one device, by consumable capacity: "
        "disabled; memory: a claim that asks for none has all of it; unlimited: such a claim has "
        "none in particular; or a number: such a claim has one of so many shares.",
    ),
]
ExcludeGpus = Annotated[
    str,
    AfterValidator(checked_words),
    Field(
        "",
        validation_alias="exclude_gpus",
        description="GPUs that are never offered and never changed, separated by commas: each by "
        "its index, UUID, PCI address, or product name with * for any letters. A Node's label "
        "nvidia.com/dra-driver.exclude-gpus names further ones.",
    ),
]
GpuOrderSetting = Annotated[
    Literal["least-capable", "pci"],
    Field(
        "least-capable",
        validation_alias="gpu_order",
        description="Which whole GPU a claim that names no card gets: that of the least "
        "capable card, or the first by PCI address.",
    ),
]
TaintEffect = Literal["off", "None", "NoSchedule", "NoExecute"]
HttpAddress = Annotated[
    str, Field("", description="Address for metrics and /healthz, such as :8080; unset: off.")
]
MetricsPath = Annotated[
    str, Field("/metrics", pattern="^/", description="HTTP path of the metrics.")
]
LogLevelName = Annotated[
    Literal["debug", "info", "warning", "error"],
    Field("info", description="Least severe log lines that are written."),
]
LogFormatName = Annotated[
    Literal["auto", "json", "console"],
    Field("auto", description="Form of log lines; auto: console on a terminal, json elsewhere."),
]


class CommandSettings(BaseSettings):
    """How every sub-command takes its settings: flags in kebab-case, and environment variables."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        populate_by_name=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_show_env_vars=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_parse_none_str="unset",  # not None, which is an effect of taints
        cli_exit_on_error=False,
    )
