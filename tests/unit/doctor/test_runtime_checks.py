"""What the container runtime's version and configuration mean."""

import pytest

from doctored import severities
from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.admin.doctor.checks.runtime_checks import (
    containerd_version,
    default_runtime,
    runtime_cdi,
)
from dra_driver.admin.doctor.facts.runtime_config import RuntimeConfig

OK, INFO, UNKNOWN = Severity.OK, Severity.INFO, Severity.UNKNOWN
WARNING, ERROR = Severity.WARNING, Severity.ERROR


def config(**facts: object) -> RuntimeConfig:
    return RuntimeConfig(name="containerd", files=("/c",), **facts)  # type: ignore[arg-type]


ON, OFF, SILENT = config(cdi=True), config(cdi=False), config()
OLD_ON, OLD_OFF = config(cdi=True, may_be_old=True), config(cdi=False, may_be_old=True)
OLD_SILENT = config(may_be_old=True)


@pytest.mark.parametrize(
    ("configs", "version", "expected"),
    [
        (None, "containerd://2.0.1", [OK]),
        (None, "containerd://1.7.27", [WARNING]),
        # It knows version 0.6.0 of CDI at most.
        (None, "containerd://1.7.15", [WARNING, WARNING]),
        ([OLD_ON], "containerd://1.7.15", [WARNING, OK]),
        (None, "containerd://1.6.38", [ERROR]),
        (None, "cri-o://1.33.0", [OK]),
        (None, "docker://28.0.1", [UNKNOWN]),
        (None, "containerd://", [UNKNOWN]),
        (None, "", [UNKNOWN]),
        ([], "", [UNKNOWN]),
        # 1.7 with files elsewhere than doctor looks.
        ([], "containerd://1.7.27", [WARNING]),
        ([OLD_ON], "", [OK]),
        ([OLD_ON], "containerd://1.7.27", [OK]),
        ([OLD_OFF], "containerd://1.7.27", [ERROR]),
        ([OLD_SILENT], "containerd://1.7.27", [ERROR]),
        # Files that 1.7 could read, where nobody says which containerd it is.
        ([OLD_SILENT], "", [UNKNOWN]),
        ([OLD_OFF], "", [ERROR]),
        ([SILENT], "", [OK]),
        ([SILENT], "containerd://2.1.0", [OK, OK]),
        ([OFF], "containerd://2.1.0", [OK, ERROR]),
        # It does not know that setting any more.
        ([OFF], "containerd://2.4.2", [OK, OK]),
        ([ON], "containerd://2.4.2", [OK, OK]),
    ],
)
def test_cdi_is_judged_by_the_runtimes_version_and_configuration(
    configs: list[RuntimeConfig] | None, version: str, expected: list[Severity]
) -> None:
    versions = {version: ["node-1"]} if version else {}
    assert severities(runtime_cdi(configs, versions, "node-1")) == expected


def test_a_newer_containerd_elsewhere_makes_cdi_no_less_off_here() -> None:
    versions = {"containerd://2.1.0": ["node-1"], "containerd://2.4.2": ["node-2"]}
    assert severities(runtime_cdi([OFF], versions, "node-1")) == [OK, OK, ERROR]
    assert severities(runtime_cdi([OFF], versions, "node-2")) == [OK, OK, OK]


def test_a_setting_that_another_file_took_away_is_found() -> None:
    lost = config(may_be_old=True, lost=("/main.toml",), cri_file="/drop-in.toml")
    (seen,) = runtime_cdi([lost], {"containerd://1.7.27": ["node-1"]}, "node-1")
    assert seen.severity == ERROR
    assert "enable_cdi = true in /main.toml has no effect" in seen.text
    assert "set enable_cdi = true for its CRI plugin in /drop-in.toml" in seen.advice


def test_content_of_an_unreadable_file_is_not_guessed() -> None:
    torn = config(may_be_old=True, problems=("/d: it is torn",))
    versions = {"containerd://1.7.27": ["node-1"]}
    assert severities(runtime_cdi([torn], versions, "node-1")) == [WARNING]


@pytest.mark.parametrize(
    ("versions", "node", "expected"),
    [
        ({"containerd://1.7.27": ["a"], "containerd://2.0.1": ["b"]}, "b", (2, 0, 1)),
        ({"containerd://1.7.27": ["a"], "containerd://2.0.1": ["b"]}, "c", None),
        ({"containerd://1.7.27": ["a", "b"]}, "c", (1, 7, 27)),
        ({"cri-o://1.33.0": ["a"]}, "a", None),
        ({"containerd://v2.0.0-rc.1": ["a"]}, "a", (2, 0, 0)),
        ({"containerd://2.1": ["a"]}, "a", (2, 1)),
        ({"containerd://": ["a"]}, "a", None),
        ({}, "a", None),
    ],
)
def test_a_nodes_containerd_is_the_one_it_reports_or_that_all_have(
    versions: dict[str, list[str]], node: str, expected: tuple[int, ...] | None
) -> None:
    assert containerd_version(versions, node) == expected


@pytest.mark.parametrize(
    ("dirs", "expected"),
    [
        (("/etc/cdi", "/var/run/cdi"), [OK]),
        (("/run/cdi",), [OK]),
        (("/etc/cdi",), [ERROR, OK]),
        ((), [ERROR, OK]),
    ],
)
def test_a_runtime_has_to_look_where_the_driver_writes(
    dirs: tuple[str, ...], expected: list[Severity]
) -> None:
    assert severities(runtime_cdi([config(cdi=True, spec_dirs=dirs)], {})) == expected


def test_files_of_a_runtime_that_cannot_be_read_are_named() -> None:
    torn = RuntimeConfig(name="cri-o", problems=("/etc/crio/crio.conf: it is torn",))
    (seen,) = runtime_cdi([torn], {})
    assert "it is torn" in seen.text
    assert seen.advice


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, OK),
        ({"default_runtime": "runc"}, OK),
        ({"default_runtime": "nvidia"}, WARNING),
        ({"default_runtime": "a", "default_program": "/usr/bin/nvidia-container-runtime"}, WARNING),
        ({"default_program": "/opt/nvidia-container-runtime.cdi"}, WARNING),
        ({"default_runtime": "nvidia", "sees_environment": False}, INFO),
        ({"default_runtime": "nvidia", "sees_environment": True}, WARNING),
    ],
)
def test_a_default_runtime_that_gives_gpus_to_all_is_a_warning(
    facts: dict[str, object], expected: Severity
) -> None:
    assert severities(default_runtime([config(**facts)])) == [expected]
