"""The chart's alerts: Prometheus takes them, and each fires when it should and not before."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import said

from charts import REPOSITORY, Object, Render, of_kind
from exported import exported
from promql import mistakes, placeholders, result_labels, selectors

ALERTS = REPOSITORY / "manifests/alerts.yaml"
EVERYTHING = Path(__file__).with_name("chart_values.yaml")
EXPORTED = exported()
DRIVER = 'driver="gpu.nvidia.com",node="n"'

Series = dict[str, str]
"""Values by series, as promtool writes them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What makes an alert fire, and by which minute; what comes close and does not."""

    firing: Series
    quiet: Series
    minute: int
    early: int = -1
    """A minute before `minute` at which it does not fire yet."""


def one(metric: str, labels: str, firing: str, quiet: str, minute: int, early: int = -1) -> Case:
    series = f"{metric}{{{','.join(filter(None, (DRIVER, labels)))}}}"
    return Case(firing={series: firing}, quiet={series: quiet}, minute=minute, early=early)


def condition(cause: str, severity: str, minute: int, early: int = -1) -> Case:
    labels = f'cause="{cause}",severity="{severity}"'
    return one("nvidia_dra_gpu_health_conditions", labels, "0 0 1x500", "0x500", minute, early)


def buckets(under: float) -> Series:
    """A claim a minute, all of which take about as long."""
    bounds = ("0.05", "12.8", "25.6", "51.2", "+Inf")
    name = "nvidia_dra_request_duration_seconds_bucket"
    labels = f'{DRIVER},operation="prepare"'
    return {
        f'{name}{{{labels},le="{bound}"}}': "0+1x60" if float(bound) >= under else "0x60"
        for bound in bounds
    }


UP = 'up{job="dra-driver-metrics",node="n",pod="p"}'
CONTAINER = 'namespace="a",pod="p",container="c",claim="a/c",gpu="0",device="gpu-0",uuid="u"'
USED, LIMIT = (
    f"nvidia_dra_container_gpu_memory_{what}_bytes{{{DRIVER},{CONTAINER}}}"
    for what in ("used", "limit")
)
ERRORS = "nvidia_dra_node_{}_errors_total"

CASES: dict[str, list[Case]] = {
    "DRADriverDown": [
        Case(firing={UP: "1 1 0x20"}, quiet={UP: "1 0 1x20"}, minute=8, early=5),
        Case(firing={UP: "0x20"}, quiet={UP.replace("dra-driver", "other"): "0x20"}, minute=8),
    ],
    "DRADriverNotRegistered": [
        one("nvidia_dra_kubelet_registered", "", "0x20", "0 0 0 0 1x20", 6, 4)
    ],
    "DRADriverCannotPublish": [
        one("nvidia_dra_publish_errors_total", "", "0+1x40", "0 0 0 1x40", 20, 3)
    ],
    "DRAClaimsFail": [
        one(ERRORS.format(kind), f'error_type="{kind}_devices"', "0+1x40", "0 0 1 2x40", 15, 1)
        for kind in ("prepare", "unprepare")
    ],
    "DRAClaimsSlow": [Case(firing=buckets(51.2), quiet=buckets(12.8), minute=25, early=10)],
    "DRARecordsDamaged": [one("nvidia_dra_quarantined_records", "", "0 1x20", "0x20", 3, 0)],
    "DRACleanupsPending": [
        one("nvidia_dra_pending_cleanups", 'strategy="MPS"', "1x60", "1x20 0x40", 35, 20)
    ],
    "DRAShareConfigNotTaken": [
        one("nvidia_dra_share_config_valid", "", "1 0x20", "1 0 0 1x20", 7, 4)
    ],
    "DRAMemoryLimitsNotInForce": [
        one("nvidia_dra_memory_limits_not_in_force", "", "2x20", "1 1 0x20", 6, 4)
    ],
    "NVMLDoesNotAnswer": [
        one("nvidia_dra_nvml_silent_seconds", 'gpu="nvml"', "0+60x20", "0 60 0x20", 4, 1),
        one("nvidia_dra_nvml_silent_seconds", 'gpu="events"', "0+60x20", "0 60 0x20", 4, 1),
    ],
    "GPUSick": [one("nvidia_dra_gpus", 'state="sick"', "0 1x20", "0 1 0x20", 5, 2)],
    "GPULost": [condition("xid", "loss", 3, 1), condition("gpu-lost", "loss", 3, 1)],
    "GPUFault": [condition("xid", "fault", 9, 5), condition("fabric", "fault", 9, 5)],
    "GPUSlowedDown": [condition("slowdown", "warning", 14, 10)],
    "GPUNeedsCare": [
        condition("row-remap", "warning", 65, 50),
        condition("ecc", "warning", 65, 50),
    ],
    "GPUXIDsOften": [one("nvidia_dra_xids_total", "", "0+1x70", "0+1x10 10x60", 60, 10)],
    "MPSDaemonDied": [one("nvidia_dra_mps_daemon_deaths_total", "", "0 0 1x20", "3x20", 4, 1)],
    "MPSDomainFailed": [
        one("nvidia_dra_mps_domains", f'state="{state}"', "1x20", "1 1 0x20", 6, 4)
        for state in ("failed", "faulted")
    ],
    "GPUMemoryAboveLimit": [
        Case(
            firing={USED: "900x20", LIMIT: "800x20"},
            quiet={USED: "900 900 700x20", LIMIT: "800x20"},
            minute=6,
            early=4,
        )
    ],
    "GPUContainersEnded": [
        one("nvidia_dra_memory_over_limit_total", 'action="ended"', "0 1x20", "1x40", 4, 0)
    ],
    "GPUIdleInPod": [
        one("nvidia_dra_container_gpu_processes", CONTAINER, "0x400", "0x300 1 0x90", 370, 300)
    ],
    "GPUUsageLeftOut": [
        one("nvidia_dra_usage_containers_left_out", "", "7x40", "7x5 0x40", 20, 10)
    ],
}


@pytest.fixture
def rules(render: Render) -> list[Object]:
    return group_of(render("--values", EVERYTHING))["rules"]  # type: ignore[no-any-return]


def group_of(things: list[Object]) -> Object:
    (rule,) = of_kind(things, "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    return group  # type: ignore[no-any-return]


def test_alerts_use_existing_metrics_and_labels(rules: list[Object]) -> None:
    for rule in rules:
        expr = rule["expr"].replace("dra-driver-metrics", "x")
        assert list(mistakes(expr, EXPORTED)) == [], rule["alert"]
        texts = " ".join(rule["annotations"].values())
        asked = placeholders(texts, r"\$labels\.(\w+)")
        there = result_labels(expr, EXPORTED)
        # An alert for which Prometheus does not know the node says nothing.
        assert "node" in asked, rule["alert"]
        assert asked <= there, rule["alert"]


def test_the_page_lists_each_alert_with_its_severity(rules: list[Object]) -> None:
    page = (REPOSITORY / "docs/operations.md").read_text()
    listed = re.findall(r"^\| `([A-Z]\w+)` \| (critical|warning|info) \|", page, re.MULTILINE)
    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in rules]


def test_alerts_lead_to_a_page_and_a_heading_of_it(render: Render) -> None:
    named = group_of(render("--set", "prometheusRule.enabled=true"))["rules"]
    linked = group_of(render("--values", EVERYTHING))["rules"]
    for first, second in zip(named, linked, strict=True):
        page = first["annotations"]["runbook"]
        assert (
            second["annotations"]["runbook_url"] == f"https://git.local/dra-driver/blob/v1/{page}"
        )
        path, _, anchor = page.partition("#")
        text = (REPOSITORY / path).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
        assert not anchor or anchor in anchors, page


def test_the_chart_names_its_own_job_whatever_it_is_called(render: Render) -> None:
    words = ("--set", "prometheusRule.enabled=true,serviceMonitor.enabled=true,fullnameOverride=x")
    things = render(*words)
    (service,) = of_kind(things, "Service")
    (down,) = (rule for rule in group_of(things)["rules"] if rule["alert"] == "DRADriverDown")
    # Prometheus Operator calls a job by its Service.
    (asked,) = selectors(down["expr"])
    assert [value for name, _, value in asked.matchers if name == "job"] == [
        service["metadata"]["name"]
    ]


def test_a_prometheus_without_its_operator_takes_the_same_alerts(
    promtool: Path, render: Render
) -> None:
    group = group_of(render("--set", "prometheusRule.enabled=true"))
    assert yaml.safe_load(ALERTS.read_text()) == {"groups": [group]}
    assert f"{len(group['rules'])} rules found" in said(promtool, "check", "rules", ALERTS)


def test_alerts_fire_when_they_should_and_not_before(
    promtool: Path, rules: list[Object], tmp_path: Path
) -> None:
    assert {rule["alert"] for rule in rules} == set(CASES)
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "alerts", "rules": rules}]})
    )
    tests = []
    for alert, cases in CASES.items():
        for case in cases:
            minutes = {case.minute: 1} | ({case.early: 0} if case.early >= 0 else {})
            tests.append(played(alert, case.firing, minutes))
            tests.append(played(alert, case.quiet, dict.fromkeys(range(1, case.minute + 5), 0)))
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in said(promtool, "test", "rules", file)


def played(alert: str, series: Series, fires: dict[int, int]) -> dict[str, Any]:
    """How many of an alert fire at each minute. No other may ever fire."""
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    others = f'ALERTS{{alertname!="{alert}",alertstate="firing"}}'
    last = max(fires)
    questions = [(f"count({firing}) or vector(0)", at, count) for at, count in fires.items()]
    questions.append((f"count(max_over_time({others}[{last + 1}m])) or vector(0)", last, 0))
    return {
        "name": alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": count}]}
            for expr, at, count in questions
        ],
    }


def test_the_dashboard_comes_with_the_label_of_the_sidecar(render: Render) -> None:
    assert of_kind(render(), "ConfigMap") == []
    (made,) = of_kind(render("--set", "dashboards.enabled=true"), "ConfigMap")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert "annotations" not in made["metadata"]
    ((name, text),) = made["data"].items()
    file = REPOSITORY / "manifests/chart/dashboards" / name
    assert json.loads(text) == json.loads(file.read_text())
    both = of_kind(render("--values", EVERYTHING), "ConfigMap")
    (made,) = (one for one in both if name in one["data"])
    assert made["metadata"]["labels"]["grafana_dashboard"] == "gpu"
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPUs"}


def test_queries_on_pages_use_existing_metrics() -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL):
            for query in block.splitlines():
                if not query.startswith("#"):
                    assert list(mistakes(query, EXPORTED)) == [], page
