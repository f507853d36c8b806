"""Settings of `dra-driver kubelet-plugin`.

In: the command line and environment variables; a flag wins over its variable, an empty variable
counts as unset. Out: `Settings`, one frozen object. Names and defaults are those of NVIDIA's own
driver where it has the setting, so that a DaemonSet written for it works here; what has no meaning
here is accepted, and named once in the log. Paths are as this process sees them unless a
description says otherwise.
"""

from pathlib import Path
from types import MappingProxyType
from typing import Literal

from dra_driver.commands import common_settings
from dra_driver.commands.command_line import bounds, changed, option, shaped
from dra_driver.commands.common_settings import (
    MOST_SECONDS,
    SECONDS,
    SECONDS_OR_OFF,
    LogFormatName,
    LogLevelName,
    MigSetting,
    TaintEffect,
    WholeGpusBesideShares,
)
from dra_driver.node.feature_gates import (
    CONSUMABLE_SHARES,
    DEVICE_METADATA,
    NVML_HEALTH,
    PASSTHROUGH,
    checked_gates,
    gate_value,
    gates_in_vain,
)

IGNORED = MappingProxyType(
    {
        "namespace": "this driver creates no objects in a namespace",
        "host_root": "passthrough uses only /sys and /dev of the host",
        "image_name": "this driver creates no pods for MPS",
        "image_pull_secrets": "this driver creates no pods for MPS",
        "image_pull_policy": "this driver creates no pods for MPS",
        "service_account_name": "this driver creates no pods for MPS",
        "kube_api_qps": "this driver does not limit its few calls to the API server",
        "kube_api_burst": "this driver does not limit its few calls to the API server",
        "vmodule": "--log-level applies to all modules",
        "log_flush_frequency": "each line is written at once",
        "log_text_split_stream": "all lines go to standard error",
        "log_json_split_stream": "all lines go to standard error",
        "log_text_info_buffer_size": "each line is written at once",
        "log_json_info_buffer_size": "each line is written at once",
        "mask_nvidia_driver_params": "a script in NVIDIA's image uses it",
        "alt_proc_devices_path": "/proc/devices is read below --proc-root",
        "nvidia_fabricmanager_address": "this driver does not use Fabric Manager",
        "nvidia_fabricmanager_unix_socket": "this driver does not use Fabric Manager",
        "default_config": "NVIDIA's DRA driver (PerNodeGPUConfig) and the device plugin mean "
        "different things by it: use --mig or --share-config-default",
    }
)
"""Settings of NVIDIA's driver that are accepted without effect and not in the help: why."""

_DEBUG_VERBOSITY = 4
"""klog's level for debugging, by convention; NVIDIA's chart sets it."""


def _absolute(path: Path | str) -> Path | str:
    if path and not Path(path).is_absolute():
        raise ValueError(f"give an absolute path, not {str(path)!r}: it is the host's")
    return path


class Settings(common_settings.RootSettings, variables=True, without_effect=tuple(IGNORED)):
    """Publish this node's NVIDIA GPUs and prepare them for the claims of its pods."""

    # Kubernetes
    node_name: str = option(
        check=shaped(
            ".{1,223}",
            "the name of a Node, at most 223 characters, because names of slices contain it",
        ),
        help="Name of the Node that this driver serves.",
    )
    kubeconfig: Path | None = option(
        default=None, help="Kubeconfig file; unset: the pod's ServiceAccount."
    )
    pod_uid: str = option(
        default="",
        check=shaped("[A-Za-z0-9-]{0,36}", "the UID of a pod"),
        help="UID of this pod, for sockets of its own, which updates with maxSurge need.",
    )
    kubelet_registrar_directory_path: Path = changed(
        common_settings.KUBELET_REGISTRAR_DIRECTORY_PATH, check=_absolute
    )
    kubelet_plugins_directory_path: Path = changed(
        common_settings.KUBELET_PLUGINS_DIRECTORY_PATH, check=_absolute
    )

    # The GPU driver and what containers get of it
    nvidia_driver_root: Path = changed(common_settings.NVIDIA_DRIVER_ROOT, check=_absolute)
    nvidia_dev_root: Path | None = changed(common_settings.NVIDIA_DEV_ROOT, check=_absolute)
    nvidia_cdi_hook_path: str = changed(
        common_settings.NVIDIA_CDI_HOOK_PATH,
        check=_absolute,
        help="Path of nvidia-cdi-hook on the host; unset: searched for. Without one, driver "
        "libraries are also mounted where CUDA images look.",
    )
    cdi_root: Path = changed(common_settings.CDI_ROOT, check=_absolute)
    rescan_interval: float = option(
        default=30.0, check=SECONDS, help="Seconds between scans for new and missing GPUs."
    )
    nvml_timeout: float = option(
        default=10.0,
        check=SECONDS,
        help="Seconds after which a GPU that does not answer NVML counts as sick. Raise it if "
        "GPUs are slow to initialise.",
    )

    health_settle: float = option(
        default=60.0,
        check=bounds(least=1, most=MOST_SECONDS),
        help="Seconds that a GPU must look healthy before its taint is removed, and that a "
        "slowdown must last.",
    )
    taint_warning: TaintEffect = option(
        default="off",
        help="Taint of a GPU that works but needs care.",
    )
    taint_fault: TaintEffect = option(
        default="NoSchedule", help="Taint of a GPU on which new work fails or may be wrong."
    )
    taint_loss: TaintEffect = option(
        default="NoSchedule", help="Taint of a GPU on which all work has failed."
    )
    additional_xids_to_ignore: str = option(
        default="",
        check=shaped("[0-9, ]*", "numbers of XIDs, separated by commas, such as 92,119"),
        help="XIDs to ignore, besides those of programs, such as 92,119.",
    )

    mig: MigSetting = common_settings.MIG
    mig_profiles: str = common_settings.MIG_PROFILES
    exclude_gpus: str = common_settings.EXCLUDE_GPUS
    memory_counters: bool = common_settings.MEMORY_COUNTERS
    share_config: Path | None = option(
        default=None,
        names=("config_file",),
        help="The device plugin's config file, which says how devices are shared, or a folder of "
        "them, from which the Node's label nvidia.com/device-plugin.config picks one; unset: "
        "nothing is shared.",
    )
    share_config_default: str = option(
        default="",
        check=shaped(".{0,253}", "a name of at most 253 characters"),
        help="Share config of a Node without that label; unset: the one named default, else the "
        "only one.",
    )
    beside_device_plugin: Literal["withhold", "publish"] = option(
        default="withhold",
        help="What to do while a device plugin gives out this node's GPUs: publish none of them, "
        "or publish them anyway.",
    )
    whole_gpus_beside_shares: WholeGpusBesideShares = common_settings.WHOLE_GPUS_BESIDE_SHARES
    share_memory: Literal["auto", "mps"] = option(
        default="auto",
        help="What limits the memory of shares; auto: the best that the node has; mps: never "
        "control groups, so that several pods can use one claim of a share.",
    )
    over_limit: Literal["report", "end"] = option(
        default="report",
        help="What to do about a container with more GPU memory than its share or its MPS limit: "
        "report it in an event, or end its processes, too. Needs the host's PID namespace.",
    )
    cgroup_root: Path | None = common_settings.CGROUP_ROOT
    claim_status: bool = option(
        default=True,
        help="Write each claim's GPUs, MIG devices and shares into its status.",
    )
    device_metadata: bool = option(
        default=True,
        help="Give containers files that describe their devices, as in KEP-5304.",
    )
    vfio: bool = common_settings.VFIO
    usage_metrics: bool = option(
        default=False,
        help="Serve metrics of who uses the GPUs. Needs the host's PID namespace (hostPID).",
    )
    mps_ready_timeout: float = option(
        check=SECONDS,
        default=35.0,
        help="Seconds to wait for a claim's MPS daemon; the kubelet waits 45.",
    )

    # Operations
    health_socket: Path | None = option(
        default=None,
        help="Unix socket for the pod's own probes (dra-driver-probe); unset: off.",
    )
    healthcheck_port: int = option(
        check=bounds(most=65535),
        default=-1,
        help="TCP port of gRPC health checks from the network; negative: off, 0: any free port.",
    )
    healthcheck_address: str = option(default="", help="Address of that port; unset: all.")
    http_endpoint: str = common_settings.HTTP_ENDPOINT
    metrics_path: str = common_settings.METRICS_PATH
    log_level: LogLevelName = common_settings.LOG_LEVEL
    log_format: LogFormatName = common_settings.LOG_FORMAT
    v: int = option(
        check=bounds(least=0),
        default=0,
        names=("log_verbosity",),
        help="Verbosity as in klog: 4 and higher means --log-level debug, unless that is set.",
    )
    logging_format: Literal["", "text", "json"] = option(
        default="", help="Format as in klog: text means --log-format console, unless that is set."
    )
    shutdown_grace: float = option(
        check=SECONDS, default=20.0, help="Seconds for running calls to finish after SIGTERM."
    )
    shutdown_delay: float = option(
        check=SECONDS_OR_OFF,
        default=2.0,
        help="Seconds to serve calls after deregistering at SIGTERM, because the kubelet notices "
        "late.",
    )

    eviction_wait: float = option(
        check=SECONDS_OR_OFF,
        default=600.0,
        help="Seconds to wait for claims of pods that are evicted after the driver, as by GPU "
        "Operator before it replaces the GPU driver; 0: off.",
    )

    # Settings of NVIDIA's driver that are accepted so that its DaemonSets work; see IGNORED, too.
    feature_gates: str = option(
        check=checked_gates,
        default="",
        help="NVIDIA's feature gates, such as A=true,B=false.",
    )
    consumable_shares: str = common_settings.CONSUMABLE_SHARES

    @property
    def least_severe(self) -> str:
        """The log level in use: this driver's own setting, else klog's."""
        if "log_level" in self.given or self.v < _DEBUG_VERBOSITY:
            return self.log_level
        return "debug"

    @property
    def line_format(self) -> str:
        """The format of log lines in use: this driver's own setting, else klog's."""
        if "log_format" in self.given or not self.logging_format:
            return self.log_format
        return "console" if self.logging_format == "text" else self.logging_format

    def gate_of(self, gate: str) -> bool | None:
        """Return the value of one of NVIDIA's feature gates; None if it is not set."""
        return gate_value(gate, self.feature_gates)

    @property
    def gives_device_metadata(self) -> bool:
        """Whether containers get device metadata: yes, unless the setting or gate is false."""
        return self.device_metadata and self.gate_of(DEVICE_METADATA) is not False

    @property
    def offers_passthrough(self) -> bool:
        """Whether GPUs are offered to virtual machines."""
        return self.vfio or self.gate_of(PASSTHROUGH) is True

    @property
    def remark_effect(self) -> str:
        """The taint of XIDs that programs cause: off, or None as in NVIDIA's driver."""
        return "None" if self.gate_of(NVML_HEALTH) else "off"

    def without_effect(self) -> dict[str, str]:
        """Return the settings that have no effect, each with the reason."""
        given = {name: IGNORED[name] for name in sorted(self.given & IGNORED.keys())}
        if self.consumable_shares != "disabled" and self.gate_of(CONSUMABLE_SHARES) is False:
            given["consumable_shares"] = f"feature gate {CONSUMABLE_SHARES} is false"
        asked = self.device_metadata and "device_metadata" in self.given
        if asked and not self.gives_device_metadata:
            given["device_metadata"] = f"feature gate {DEVICE_METADATA} is false"
        for gate, why in gates_in_vain(self.feature_gates).items():
            given[f"feature gate {gate}"] = why
        return given
