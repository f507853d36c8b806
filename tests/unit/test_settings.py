"""Settings from flags and environment."""

from pathlib import Path

import pytest

import commands
from dra_driver.admin.doctor.command import Doctor
from dra_driver.admin.gather.command import Gather
from dra_driver.admin.status.usage_command import ShowUsage
from dra_driver.bench.command import Processes
from dra_driver.commands.command_line import CommandSettings, WrongSettingsError
from dra_driver.mps.supervisor.command import MpsSupervisor
from dra_driver.node.feature_gates import CONSUMABLE_SHARES, DYNAMIC_MIG
from dra_driver.node.settings import IGNORED, Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in commands.variables(Settings):
        monkeypatch.delenv(name, raising=False)


def parsed(*words: str) -> Settings:
    return commands.parsed(Settings, *words)


def test_only_the_node_name_is_required() -> None:
    settings = parsed("--node-name", "n1")
    assert settings.node_name == "n1"
    assert settings.cdi_root == Path("/var/run/cdi")
    assert settings.kubelet_plugins_directory_path == Path("/var/lib/kubelet/plugins")
    assert settings.healthcheck_port == -1
    assert settings.http_endpoint == ""
    assert settings.without_effect() == {}


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("NODE_NAME", "n2", "node_name", "n2"),
        ("CDI_ROOT", "/etc/cdi", "cdi_root", Path("/etc/cdi")),
        ("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver", "nvidia_driver_root", None),
        ("HOST_DRIVER_ROOT", "/run/nvidia/driver", "nvidia_driver_root", None),
        ("DRIVER_ROOT_CTR_PATH", "/driver-root", "container_driver_root", Path("/driver-root")),
        ("NVIDIA_CDI_HOOK_PATH", "/usr/bin/hook", "nvidia_cdi_hook_path", "/usr/bin/hook"),
        ("KUBELET_REGISTRAR_DIRECTORY_PATH", "/k/r", "kubelet_registrar_directory_path", None),
        ("KUBELET_PLUGINS_DIRECTORY_PATH", "/k/p", "kubelet_plugins_directory_path", None),
        ("HEALTHCHECK_PORT", "51516", "healthcheck_port", 51516),
        ("HTTP_ENDPOINT", ":8080", "http_endpoint", ":8080"),
        ("METRICS_PATH", "/m", "metrics_path", "/m"),
        ("CONFIG_FILE", "/etc/shares", "share_config", Path("/etc/shares")),
        ("KUBECONFIG", "/root/.kube/config", "kubeconfig", Path("/root/.kube/config")),
    ],
)
def test_variables_of_nvidias_driver_are_read(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setenv(variable, value)
    assert getattr(parsed(), field) == (Path(value) if expected is None else expected)


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "from-environment")
    assert parsed("--node-name=from-flag").node_name == "from-flag"


def test_flags_of_nvidias_driver_without_meaning_here_are_accepted_and_named() -> None:
    settings = parsed(
        "--node-name=n",
        "--image-name=i",
        "--kube-api-qps=5",
        "--kube-api-burst=10",
        "--host-root=/host-root",
        "--additional-xids-to-ignore=13",
        "--vmodule=driver=6",
        "--log-flush-frequency=5s",
        "--log-json-split-stream=true",
    )
    assert sorted(settings.without_effect()) == [
        "host_root",
        "image_name",
        "kube_api_burst",
        "kube_api_qps",
        "log_flush_frequency",
        "log_json_split_stream",
        "vmodule",
    ]


DAEMON_SET = {
    "LOG_VERBOSITY": "4",
    "MASK_NVIDIA_DRIVER_PARAMS": "",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "CDI_ROOT": "/var/run/cdi",
    "NVIDIA_MIG_CONFIG_DEVICES": "all",
    "ALT_PROC_DEVICES_PATH": "/alt/devices",
    "NODE_NAME": "n1",
    "NAMESPACE": "nvidia",
    "POD_NAME": "p",
    "IMAGE_NAME": "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0",
    "IMAGE_PULL_SECRETS": "one,two",
    "IMAGE_PULL_POLICY": "IfNotPresent",
    "SERVICE_ACCOUNT_NAME": "gpu-service-account",
    "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
    "FEATURE_GATES": "DynamicMIG=true,ConsumableShares=true,NVMLDeviceHealthCheck=false,",
    "CONSUMABLE_SHARES": "4",
    "KUBELET_REGISTRAR_DIRECTORY_PATH": "/var/lib/kubelet/plugins_registry",
    "KUBELET_PLUGINS_DIRECTORY_PATH": "/var/lib/kubelet/plugins",
    "HEALTHCHECK_PORT": "51516",
    "HTTP_ENDPOINT": ":8080",
    "METRICS_PATH": "/metrics",
    "V": "4",
    "VMODULE": "driver=6",
    "LOGGING_FORMAT": "text",
    "LOG_FLUSH_FREQUENCY": "5s",
    "KUBE_API_QPS": "5",
    "KUBE_API_BURST": "10",
}
"""What NVIDIA's DaemonSet gives its container, and what its chart and program allow beyond."""


def test_all_of_nvidias_daemonset_is_taken_and_what_is_in_vain_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in DAEMON_SET.items():
        monkeypatch.setenv(name, value)
    settings = parsed("-v", "4")
    assert sorted(settings.without_effect()) == [
        "alt_proc_devices_path",
        "feature gate NVMLDeviceHealthCheck",
        "image_name",
        "image_pull_policy",
        "image_pull_secrets",
        "kube_api_burst",
        "kube_api_qps",
        "log_flush_frequency",
        "namespace",
        "service_account_name",
        "vmodule",
    ]
    # The kubelet probes the pod's own address, and that DaemonSet names none.
    assert (settings.healthcheck_port, settings.healthcheck_address) == (51516, "")


@pytest.mark.parametrize("shares", ["disabled", "memory", "unlimited", "1", "4"])
@pytest.mark.parametrize("gate", [True, False, None])
def test_consumable_shares_have_no_effect_where_the_gate_is_off(
    monkeypatch: pytest.MonkeyPatch, shares: str, gate: bool | None
) -> None:
    monkeypatch.setenv("CONSUMABLE_SHARES", shares)
    if gate is not None:
        monkeypatch.setenv("FEATURE_GATES", f"ConsumableShares={str(gate).lower()}")
    settings = parsed("--node-name", "n")
    is_in_vain = gate is False and shares != "disabled"
    assert ("consumable_shares" in settings.without_effect()) is is_in_vain
    assert settings.gate_of(CONSUMABLE_SHARES) is gate


def test_the_gate_of_consumable_shares_alone_publishes_none() -> None:
    settings = parsed("--node-name=n", "--feature-gates=ConsumableShares=true")
    assert settings.consumable_shares == "disabled"
    assert settings.without_effect() == {}


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ((), False),
        (("--vfio",), True),
        (("--feature-gates=PassthroughSupport=true",), True),
        (("--feature-gates=PassthroughSupport=false",), False),
        (("--vfio", "--feature-gates=PassthroughSupport=false"), True),
    ],
)
def test_gpus_are_offered_to_virtual_machines_by_flag_or_gate(
    words: tuple[str, ...], *, offers: bool
) -> None:
    assert parsed("--node-name=n", *words).offers_passthrough is offers


@pytest.mark.parametrize("value", ["true", "false"])
def test_only_unknown_feature_gates_are_reported(value: str) -> None:
    settings = parsed("--node-name=n", f"--feature-gates=Tomorrow={value},DynamicMIG=true")
    assert list(settings.without_effect()) == ["feature gate Tomorrow"]
    assert settings.gate_of(DYNAMIC_MIG) is True


@pytest.mark.parametrize("flag", ["--taint-warning", "--taint-fault", "--taint-loss"])
@pytest.mark.parametrize("effect", ["off", "None", "NoSchedule", "NoExecute"])
def test_each_effect_can_be_given_as_a_flag(flag: str, effect: str) -> None:
    settings = parsed("--node-name=n", f"{flag}={effect}")
    assert getattr(settings, flag[2:].replace("-", "_")) == effect


@pytest.mark.parametrize(
    ("words", "effect"),
    [
        ((), "off"),
        (("--feature-gates=NVMLDeviceHealthCheck=false",), "off"),
        (("--feature-gates=NVMLDeviceHealthCheck=true",), "None"),
    ],
)
def test_xids_of_programs_have_the_peers_taint_where_its_health_checks_were_asked_for(
    words: tuple[str, ...], effect: str
) -> None:
    assert parsed("--node-name=n", *words).remark_effect == effect


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ((), True),
        (("--feature-gates=DeviceMetadata=true",), True),
        (("--feature-gates=DeviceMetadata=false",), False),
        (("--no-device-metadata",), False),
        (("--no-device-metadata", "--feature-gates=DeviceMetadata=true"), False),
        (("--device-metadata", "--feature-gates=DeviceMetadata=false"), False),
    ],
)
def test_device_metadata_is_given_unless_setting_or_gate_is_false(
    words: tuple[str, ...], on: bool
) -> None:
    settings = parsed("--node-name=n", *words)
    assert settings.gives_device_metadata is on
    in_vain = "--device-metadata" in words
    said = {"device_metadata": "feature gate DeviceMetadata is false"} if in_vain else {}
    assert settings.without_effect() == said


@pytest.mark.parametrize(
    ("gates", "given"),
    [("", None), ("DynamicMIG=true", True), ("MPSSupport=1,DynamicMIG=0", False)],
)
def test_the_gate_of_mig_on_demand_is_respected(gates: str, given: bool | None) -> None:
    assert parsed("--node-name=n", f"--feature-gates={gates}").gate_of(DYNAMIC_MIG) is given


@pytest.mark.parametrize(
    "words", [("--mig=on",), ("--mig-profiles=1g.10gb,",), ("--mig-profiles=big",)]
)
def test_invalid_values_of_mig_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match="mig"):
        parsed("--node-name=n", *words)


@pytest.mark.parametrize("flag", ["--share-config", "--config-file"])
def test_the_share_config_is_named_as_here_or_as_in_the_device_plugin(flag: str) -> None:
    settings = parsed("--node-name=n", f"{flag}=/etc/shares", "--share-config-default=a100")
    assert settings.share_config == Path("/etc/shares")
    assert settings.share_config_default == "a100"


def test_nvidias_default_profile_is_ignored_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFAULT_CONFIG", "mixed")
    settings = parsed("--node-name=n", "--share-config=/etc/shares")
    assert settings.share_config_default == ""
    assert list(settings.without_effect()) == ["default_config"]
    assert "PerNodeGPUConfig" in settings.without_effect()["default_config"]
    assert "--share-config-default" in settings.without_effect()["default_config"]


@pytest.mark.parametrize(
    ("words", "level", "form"),
    [
        ((), "info", "auto"),
        (("-v", "2"), "info", "auto"),
        (("-v", "4"), "debug", "auto"),
        (("-v=6", "--logging-format", "json"), "debug", "json"),
        (("--logging-format=text",), "info", "console"),
        (("-v", "4", "--log-level=warning", "--log-format=json"), "warning", "json"),
        (("--logging-format=text", "--log-format=json"), "info", "json"),
    ],
)
def test_klogs_flags_set_level_and_form_unless_our_own_do(
    words: tuple[str, ...], level: str, form: str
) -> None:
    settings = parsed("--node-name=n", *words)
    assert (settings.least_severe, settings.line_format) == (level, form)


@pytest.mark.parametrize("variable", ["V", "LOG_VERBOSITY"])
def test_klogs_verbosity_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "4")
    assert parsed("--node-name=n").least_severe == "debug"


def test_every_setting_without_effect_exists_and_is_no_part_of_the_help() -> None:
    assert IGNORED.keys() <= Settings.options.keys()
    for name, one in Settings.options.items():
        assert bool(one.help) is not one.hidden, name
        assert one.hidden is (name in IGNORED), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--feature-gates", "Tomorrow=soon"), "feature gate Tomorrow=soon: give true or false"),
        (("--feature-gates", "DynamicMIG"), "give true or false"),
        (("--healthcheck-port", "65536"), "at most 65535"),
        (("--cdi-root", "cdi"), "give an absolute path"),
        (("--nvidia-dev-root", "dev"), "give an absolute path"),
        (("--nvidia-cdi-hook-path", "nvidia-cdi-hook"), "give an absolute path"),
        (("--rescan-interval", "0"), "greater than 0"),
        (("--shutdown-grace", "inf"), "finite"),
        (("--consumable-shares", "some"), "disabled, memory, unlimited or a positive number"),
        (("--consumable-shares", "0"), "disabled, memory, unlimited or a positive number"),
        (("--pod-uid", "../x"), "UID of a pod"),
        (("--node-name", ""), "name of a Node"),
        (("--node-name", "n" * 224), "at most 223 characters"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(WrongSettingsError, match=message):
        parsed("--node-name", "n", *words)


@pytest.mark.parametrize("model", [Settings, MpsSupervisor, Processes, Doctor, Gather, ShowUsage])
def test_no_number_of_seconds_is_too_large_for_the_systems_clocks(
    model: type[CommandSettings],
) -> None:
    """RESCAN_INTERVAL=1e10 was taken, and ended the driver by an OverflowError."""
    seconds = {
        name: one
        for name, one in model.options.items()
        if isinstance(one.default, float) and "econds" in one.help
    }
    assert seconds
    for name, one in seconds.items():
        assert one.check(one.default) == one.default, name
        with pytest.raises(ValueError, match="must be at most"):
            one.check(1e10)


@pytest.mark.parametrize("text", ["0", "0, GPU-5c9e7a1b,0000:65:00.0", ""])
def test_a_list_of_gpus_is_taken_as_it_is_written(text: str) -> None:
    assert parsed("--node-name=n", f"--exclude-gpus={text}").exclude_gpus == text


def test_a_list_with_a_word_that_can_name_no_gpu_is_refused_with_the_word() -> None:
    with pytest.raises(WrongSettingsError, match=r"'GPU-x' is not an index \(3\), UUID"):
        parsed("--node-name=n", "--exclude-gpus=0,GPU-x")
