"""Settings of `dra-driver kubelet-plugin`.

In: the command line and environment variables; a flag wins over its variable, an empty variable
counts as unset. Out: `Settings`, one frozen object. Names and defaults are those of NVIDIA's own
driver where it has the setting, so that a DaemonSet written for it works here; what has no meaning
here is accepted, and named once in the log. Paths are as this process sees them unless a
description says otherwise.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, field_validator
from pydantic_settings import CliSuppress, SettingsConfigDict

from dra_driver.common_settings import (
    CdiRoot,
    CommandSettings,
    ConsumableShares,
    ContainerDevRoot,
    ContainerDriverRoot,
    ExcludeGpus,
    GpuOrderSetting,
    HttpAddress,
    KubeletPluginsDirectory,
    KubeletRegistrarDirectory,
    LogFormatName,
    LogLevelName,
    MemoryCounters,
    MetricsPath,
    MigProfiles,
    MigSetting,
    NvidiaCdiHookPath,
    NvidiaDevRoot,
    NvidiaDriverRoot,
    Port,
    ProcRoot,
    Seconds,
    SecondsOrOff,
    SysRoot,
    TaintEffect,
    WholeGpusBesideShares,
)
from dra_driver.feature_gates import (
    CONSUMABLE_SHARES,
    DEVICE_METADATA,
    NVML_HEALTH,
    checked_gates,
    gate_value,
    gates_in_vain,
)

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
        "vmodule": "--log-level holds for all modules",
        "log_flush_frequency": "each line is written at once",
        "log_text_split_stream": "all lines go to standard error",
        "log_json_split_stream": "all lines go to standard error",
        "log_text_info_buffer_size": "each line is written at once",
        "log_json_info_buffer_size": "each line is written at once",
        "mask_nvidia_driver_params": "a script of NVIDIA's image does that, before its driver",
        "alt_proc_devices_path": "/proc/devices is read below --proc-root",
        "nvidia_fabricmanager_address": "Fabric Manager is not asked for anything",
        "nvidia_fabricmanager_unix_socket": "Fabric Manager is not asked for anything",
        "default_config": "in NVIDIA's driver it names a profile of device types (feature gate "
        "PerNodeGPUConfig), in the device plugin's config manager a config: here --mig says what a "
        "node offers, and --share-config-default which share config holds",
    }
)
"""Settings of the peer that have no effect, each with the reason."""

_DEBUG_VERBOSITY = 4
"""Where klog's convention has debugging begin; NVIDIA's chart sets it."""


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
    kubelet_registrar_directory_path: KubeletRegistrarDirectory
    kubelet_plugins_directory_path: KubeletPluginsDirectory

    # The GPU driver and what containers get of it
    nvidia_driver_root: NvidiaDriverRoot
    container_driver_root: ContainerDriverRoot
    nvidia_dev_root: NvidiaDevRoot
    container_dev_root: ContainerDevRoot
    nvidia_cdi_hook_path: NvidiaCdiHookPath = Field(
        description="nvidia-cdi-hook as the host sees it; unset: looked for; without one, driver "
        "libraries are also mounted where CUDA images search.",
    )
    cdi_root: CdiRoot
    sys_root: SysRoot
    proc_root: ProcRoot
    rescan_interval: Seconds = Field(
        30.0, description="Seconds between looks for GPUs that came or went."
    )
    nvml_timeout: Seconds = Field(
        10.0,
        description="Seconds that a GPU gets to answer NVML before it is taken for sick; more for "
        "GPUs that are slow to initialise.",
    )

    health_settle: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        60.0,
        description="Seconds for which a GPU has to look well before its taint is lifted, longer "
        "if it keeps coming back, and for which a slowdown has to last.",
    )
    taint_remark: Literal["auto", "off", "None"] = Field(
        "auto",
        description="Taint of a GPU on which a program failed, or whose XID is ignored: off, or "
        "None, which keeps nobody away; auto: None where NVIDIA's feature gate "
        "NVMLDeviceHealthCheck is true.",
    )
    taint_warning: TaintEffect = Field(
        "off",
        description="Taint of a GPU that works and should be looked after: off, None, NoSchedule "
        "or NoExecute.",
    )
    taint_fault: TaintEffect = Field(
        "NoSchedule", description="Taint of a GPU on which new work fails or may be wrong."
    )
    taint_loss: TaintEffect = Field(
        "NoSchedule", description="Taint of a GPU on which all work has failed."
    )
    additional_xids_to_ignore: str = Field(
        "",
        pattern=r"^[0-9, ]*$",
        description="XIDs that say nothing of this node's GPUs, beside those of programs: 92,119.",
    )

    mig: MigSetting
    mig_profiles: MigProfiles
    exclude_gpus: ExcludeGpus
    gpu_order: GpuOrderSetting
    memory_counters: MemoryCounters
    share_config: Path | None = Field(
        None,
        validation_alias=AliasChoices("share_config", "config_file"),
        description="How this node's devices are shared, as the device plugin's config file says "
        "it; in a folder of such files the Node's label nvidia.com/device-plugin.config names one; "
        "unset: nothing is shared.",
    )
    share_config_default: str = Field(
        "",
        max_length=253,
        description="Name of the share config for a Node without that label; unset: the one named "
        "default, else the only one.",
    )
    beside_device_plugin: Literal["withhold", "publish"] = Field(
        "withhold",
        description="What to do while a device plugin gives out this node's GPUs: publish none, so "
        "that none is given out twice, or all the same.",
    )
    share_placement: Literal["auto", "spread", "pack"] = Field(
        "auto",
        description="Which GPU the next share is of: another one, or the same until it is full; "
        "auto: packed where MPS lets a request have several, else spread.",
    )
    whole_gpus_beside_shares: WholeGpusBesideShares
    share_memory: Literal["auto", "mps"] = Field(
        "auto",
        description="What keeps shares to their memory; auto: the best that the node has, mps: not "
        "control groups, so that pods can share one claim of a share.",
    )
    cgroup_root: Path | None = Field(
        None,
        description="The node's /sys/fs/cgroup; unset: where cgroup v2 is mounted.",
    )
    claim_status: bool = Field(
        True,
        description="Write into each claim's own status which GPUs, MIG devices and shares it has.",
    )
    device_metadata: bool = Field(
        True,
        description="Have files in containers that say which devices they were given, as KEP-5304 "
        "has it.",
    )
    usage_metrics: bool = Field(
        False,
        description="Serve metrics of who uses the GPUs: memory, how busy, processes by container. "
        "Processes of containers are seen from the host's PID namespace only (hostPID).",
    )
    mps_ready_timeout: Seconds = Field(
        35.0, description="Seconds to wait for a claim's MPS daemon, within the kubelet's patience."
    )

    # Operations
    health_socket: Path | None = Field(
        None,
        description="Unix socket for the pod's own probes (dra-driver-probe); unset: off.",
    )
    healthcheck_port: Port = Field(
        -1,
        description="TCP port of gRPC health checks from the network; negative: off, 0: any free "
        "port.",
    )
    healthcheck_address: str = Field("", description="Address of that port; unset: all.")
    http_endpoint: HttpAddress
    metrics_path: MetricsPath
    log_level: LogLevelName
    log_format: LogFormatName
    v: int = Field(
        0,
        ge=0,
        validation_alias=AliasChoices("v", "log_verbosity"),
        description="klog's verbosity: 4 and more is --log-level debug, unless that is given.",
    )
    logging_format: Literal["", "text", "json"] = Field(
        "", description="klog's format: text is --log-format console, unless that is given."
    )
    shutdown_grace: Seconds = Field(
        20.0, description="Seconds that calls under way get to finish at SIGTERM."
    )
    shutdown_delay: SecondsOrOff = Field(
        2.0,
        description="Seconds that calls are still served after deregistering at SIGTERM, as the "
        "kubelet needs a moment to notice.",
    )

    eviction_wait: SecondsOrOff = Field(
        600.0,
        description="Seconds that the driver stays for claims of pods that are evicted after it, "
        "as GPU Operator does before it replaces the GPU driver; 0: off.",
    )

    # Settings of NVIDIA's driver that are accepted so that its DaemonSets work. Those without any
    # effect (IGNORED says why) are no part of the help.
    feature_gates: Annotated[str, AfterValidator(checked_gates)] = Field(
        "", description="NVIDIA's feature gates, A=true,B=false; what a card can do is always on."
    )
    consumable_shares: ConsumableShares
    namespace: CliSuppress[str] = "default"
    host_root: CliSuppress[str] = "/host-root"
    image_name: CliSuppress[str] = ""
    image_pull_secrets: CliSuppress[str] = ""
    image_pull_policy: CliSuppress[str] = ""
    service_account_name: CliSuppress[str] = ""
    kube_api_qps: CliSuppress[float] = 5.0
    kube_api_burst: CliSuppress[int] = 10
    vmodule: CliSuppress[str] = ""
    log_flush_frequency: CliSuppress[str] = ""
    log_text_split_stream: CliSuppress[str] = ""
    log_json_split_stream: CliSuppress[str] = ""
    log_text_info_buffer_size: CliSuppress[str] = ""
    log_json_info_buffer_size: CliSuppress[str] = ""
    mask_nvidia_driver_params: CliSuppress[str] = ""
    alt_proc_devices_path: CliSuppress[str] = ""
    nvidia_fabricmanager_address: CliSuppress[str] = ""
    nvidia_fabricmanager_unix_socket: CliSuppress[str] = ""
    default_config: CliSuppress[str] = ""

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

    @property
    def least_severe(self) -> str:
        """The log level that holds: this driver's own setting before klog's."""
        if "log_level" in self.model_fields_set or self.v < _DEBUG_VERBOSITY:
            return self.log_level
        return "debug"

    @property
    def line_format(self) -> str:
        """The form of log lines that holds: this driver's own setting before klog's."""
        if "log_format" in self.model_fields_set or not self.logging_format:
            return self.log_format
        return "console" if self.logging_format == "text" else self.logging_format

    def gate_of(self, gate: str) -> bool | None:
        """Return what one of NVIDIA's feature gates is set to; None if it is not."""
        return gate_value(gate, self.feature_gates)

    @property
    def gives_device_metadata(self) -> bool:
        """Whether containers get files with device metadata: unless setting or gate is false."""
        return self.device_metadata and self.gate_of(DEVICE_METADATA) is not False

    @property
    def remark_effect(self) -> str:
        """The taint of XIDs that say nothing of the GPU: off, or None as in NVIDIA's driver."""
        if self.taint_remark != "auto":
            return self.taint_remark
        return "None" if self.gate_of(NVML_HEALTH) else "off"

    def without_effect(self) -> dict[str, str]:
        """Return what was asked for in vain, each with the reason."""
        given = {name: IGNORED[name] for name in sorted(self.model_fields_set & IGNORED.keys())}
        if self.consumable_shares != "disabled" and self.gate_of(CONSUMABLE_SHARES) is False:
            given["consumable_shares"] = f"feature gate {CONSUMABLE_SHARES} is false"
        asked = self.device_metadata and "device_metadata" in self.model_fields_set
        if asked and not self.gives_device_metadata:
            given["device_metadata"] = f"feature gate {DEVICE_METADATA} is false"
        for gate, why in gates_in_vain(self.feature_gates).items():
            given[f"feature gate {gate}"] = why
        return given
