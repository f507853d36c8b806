"""Settings of `dra-driver kubelet-plugin`, and those that other sub-commands have too.

In: the command line and environment variables; a flag wins over its variable, an empty variable
counts as unset. Out: `Settings`, one frozen object. Names and defaults are those of NVIDIA's own
driver where it has the setting, so that a DaemonSet written for it works here; what has no meaning
here is accepted, and named once in the log. Paths are as this process sees them unless a
description says otherwise.
"""

import difflib
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, CliSuppress, SettingsConfigDict

KNOWN_FEATURE_GATES = frozenset(
    {
        "TimeSlicingSettings",
        "MPSSupport",
        "PassthroughSupport",
        "DynamicMIG",
        "NVMLDeviceHealthCheck",
        "DeviceMetadata",
        "DRAListTypeAttributes",
        "FabricManagerPartitioning",
        "ConsumableShares",
        "HostManagedIMEXDaemon",
        "IMEXDaemonsWithDNSNames",
        "ComputeDomainCliques",
        "CrashOnNVLinkFabricErrors",
        "ContextualLogging",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
        "AllAlpha",
        "AllBeta",
    }
)
"""The peer's feature gates. Nothing here hangs on them: what a card can do is on."""

IGNORED = MappingProxyType(
    {
        "namespace": "this driver makes no objects in a namespace",
        "host_root": "passthrough is not part of this driver",
        "image_name": "no pods are made for MPS",
        "image_pull_secrets": "no pods are made for MPS",
        "image_pull_policy": "no pods are made for MPS",
        "service_account_name": "no pods are made for MPS",
        "kube_api_qps": "calls to the API server are few and are not held back",
        "kube_api_burst": "calls to the API server are few and are not held back",
        "additional_xids_to_ignore": "XID events are not watched",
    }
)
"""Settings of the peer that have no effect, each with the reason."""

Port = Annotated[int, Field(le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# What several sub-commands have: default, environment variable and description, once for all. The
# alias keeps a variable's name the same in commands whose own variables have a prefix. A command
# that means something of its own with one gives it another description.
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
KubeletPluginsDirectory = Annotated[
    Path,
    Field(
        Path("/var/lib/kubelet/plugins"),
        validation_alias="kubelet_plugins_directory_path",
        description="Holds this driver's socket and its records; the same path as on the host.",
    ),
]
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
        cli_exit_on_error=False,
    )


class Settings(CommandSettings):
    """Publish this node's NVIDIA GPUs and prepare them for the claims of its pods."""

    model_config = SettingsConfigDict(cli_prog_name="dra-driver kubelet-plugin")

    # Kubernetes
    node_name: str = Field(
        min_length=1, max_length=253, description="Name of the Node that this driver serves."
    )
    kubeconfig: Path | None = Field(
        None, description="Kubeconfig file; without one, the pod's service account is used."
    )
    pod_uid: str = Field(
        "",
        max_length=36,
        pattern=r"^[A-Za-z0-9-]*$",
        description="UID of this pod: gives it sockets of its own, for updates with maxSurge.",
    )
    kubelet_registrar_directory_path: Path = Field(
        Path("/var/lib/kubelet/plugins_registry"),
        description="Where the kubelet looks for plugins; the same path as on the host.",
    )
    kubelet_plugins_directory_path: KubeletPluginsDirectory

    # The GPU driver and what containers get of it
    nvidia_driver_root: NvidiaDriverRoot
    container_driver_root: ContainerDriverRoot
    nvidia_dev_root: NvidiaDevRoot
    nvidia_cdi_hook_path: NvidiaCdiHookPath = Field(
        description="nvidia-cdi-hook as the host sees it; unset: looked for; without one, driver "
        "libraries are also mounted where CUDA images search.",
    )
    cdi_root: Path = Field(
        Path("/var/run/cdi"), description="Folder of CDI specs that the container runtime reads."
    )
    sys_root: SysRoot
    proc_root: ProcRoot
    rescan_interval: Seconds = Field(
        30.0, description="Seconds between looks for GPUs that came or went."
    )

    mps_ready_timeout: Seconds = Field(
        35.0, description="Seconds to wait for a claim's MPS daemon, within the kubelet's patience."
    )

    # Operations
    healthcheck_port: Port = Field(
        -1, description="TCP port of the gRPC liveness probe; negative: off, 0: any free port."
    )
    healthcheck_address: str = Field(
        "127.0.0.1", description="Address of the liveness probe; a kubelet probes the pod's own IP."
    )
    http_endpoint: HttpAddress
    metrics_path: MetricsPath
    log_level: LogLevelName
    log_format: LogFormatName
    shutdown_grace: Seconds = Field(
        20.0, description="Seconds that calls under way get to finish at SIGTERM."
    )

    # Settings of NVIDIA's driver that are accepted so that its DaemonSets work. Those without any
    # effect (IGNORED says why) are no part of the help.
    feature_gates: str = Field(
        "", description="NVIDIA's feature gates, A=true,B=false; what a card can do is always on."
    )
    consumable_shares: Literal["disabled"] = Field(
        "disabled", description="Shares of whole GPUs; this version has none."
    )
    namespace: CliSuppress[str] = "default"
    host_root: CliSuppress[str] = "/host-root"
    image_name: CliSuppress[str] = ""
    image_pull_secrets: CliSuppress[str] = ""
    image_pull_policy: CliSuppress[str] = ""
    service_account_name: CliSuppress[str] = ""
    kube_api_qps: CliSuppress[float] = 5.0
    kube_api_burst: CliSuppress[int] = 10
    additional_xids_to_ignore: CliSuppress[str] = ""

    @field_validator("feature_gates")
    @classmethod
    def _check_gates(cls, text: str) -> str:
        for name, value in _split_gates(text):
            if name not in KNOWN_FEATURE_GATES:
                near = difflib.get_close_matches(name, KNOWN_FEATURE_GATES, n=1)
                hint = f", did you mean {near[0]}?" if near else ""
                raise ValueError(f"unknown feature gate {name!r}{hint}")
            if value.lower() not in {"true", "false", "1", "0", "t", "f"}:
                raise ValueError(f"feature gate {name}={value}: give true or false")
        return text

    @field_validator(
        "nvidia_driver_root",
        "cdi_root",
        "kubelet_registrar_directory_path",
        "kubelet_plugins_directory_path",
    )
    @classmethod
    def _check_absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError(f"give an absolute path, not {str(path)!r}: it is the host's")
        return path

    def without_effect(self) -> dict[str, str]:
        """Return the settings that were given and have no effect, each with the reason."""
        given = {name: IGNORED[name] for name in sorted(self.model_fields_set & IGNORED.keys())}
        gates = ", ".join(name for name, _ in _split_gates(self.feature_gates))
        if gates:
            given["feature_gates"] = f"{gates}: nothing hangs on gates, what a card can do is on"
        return given


def _split_gates(text: str) -> list[tuple[str, str]]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]
