"""Settings from flags and environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import CliApp

from dra_driver.settings import IGNORED, Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(field.upper(), raising=False)


def parsed(*words: str) -> Settings:
    return CliApp.run(Settings, cli_args=list(words))


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


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTHCHECK_PORT", "")
    assert parsed("--node-name", "n").healthcheck_port == -1


def test_flags_of_nvidias_driver_without_meaning_here_are_accepted_and_named() -> None:
    settings = parsed(
        "--node-name=n",
        "--image-name=i",
        "--kube-api-qps=5",
        "--kube-api-burst=10",
        "--host-root=/host-root",
        "--additional-xids-to-ignore=13",
        "--feature-gates=TimeSlicingSettings=true,DynamicMIG=false",
    )
    given = settings.without_effect()
    assert sorted(given) == [
        "additional_xids_to_ignore",
        "feature_gates",
        "host_root",
        "image_name",
        "kube_api_burst",
        "kube_api_qps",
    ]
    assert given["feature_gates"].startswith("TimeSlicingSettings, DynamicMIG: ")


def test_every_setting_without_effect_exists_and_is_no_part_of_the_help() -> None:
    assert IGNORED.keys() <= Settings.model_fields.keys()
    for name, field in Settings.model_fields.items():
        assert bool(field.description) is (name not in IGNORED), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--feature-gates", "TimeSlicingSetting=true"), "did you mean TimeSlicingSettings"),
        (("--feature-gates", "DynamicMIG"), "give true or false"),
        (("--healthcheck-port", "65536"), "less than or equal to 65535"),
        (("--cdi-root", "cdi"), "give an absolute path"),
        (("--rescan-interval", "0"), "greater than 0"),
        (("--shutdown-grace", "inf"), "finite"),
        (("--consumable-shares", "memory"), "disabled"),
        (("--pod-uid", "../x"), "pattern"),
        (("--node-name", ""), "Field required"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parsed("--node-name", "n", *words)


def test_settings_cannot_be_changed() -> None:
    settings = parsed("--node-name", "n")
    with pytest.raises(ValidationError, match="frozen"):
        settings.node_name = "m"  # type: ignore[misc]
