"""What driver and MPS supervisor export: every series, as a scrape has it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from dra_driver.claims.model.record import MIG
from dra_driver.devices.health.findings import Cause, Severity
from dra_driver.mps.domain import State
from dra_driver.ops.metrics import Metrics, MpsMetrics, UsageMetric, UsageSeries
from scrape import metrics_text


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Of each name its labels, and of each label the values that were seen; all metrics' names."""

    families: set[str] = field(default_factory=set)
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    values: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Take in what a scrape answered."""
        for family in text_string_to_metric_families(text):
            self.families.add(family.name)
            for sample in family.samples:
                if sample.name.endswith("_created"):  # when, of the text format alone
                    continue
                names = frozenset(sample.labels)
                before = self.labels.setdefault(sample.name, names)
                assert before == names, sample.name
                for label, value in sample.labels.items():
                    self.values.setdefault((sample.name, label), set()).add(value)


def exported() -> Exported:
    """All that the driver's two programs can export."""
    found = Exported()
    for metrics in (of_driver(), of_supervisor()):
        found.add(metrics_text(metrics.wsgi_app))
    return found


def of_driver() -> Metrics:
    """The driver's metrics, with something known of everything."""
    metrics = Metrics(driver="gpu.nvidia.com", node="n", version="0")
    metrics.watch_prepared(dict)
    metrics.watch_silence(lambda: {"nvml": 0.0, "events": 0.0, "0": 0.0})
    metrics.watch_conditions(tuple(Cause), tuple(Severity), dict)
    metrics.watch_sharing((MIG,), dict)
    metrics.watch_usage(_usage)
    return metrics


def of_supervisor() -> MpsMetrics:
    """The MPS supervisor's metrics, likewise."""
    metrics = MpsMetrics(driver="gpu.nvidia.com", version="0")
    metrics.watch_domains(dict, states=tuple(State))
    return metrics


def same_as(metrics: Metrics | MpsMetrics, scraped: str) -> None:
    """Assert that a scrape of a program has these metrics, with these labels, and no others."""
    wanted, found = Exported(), Exported()
    wanted.add(metrics_text(metrics.wsgi_app))
    found.add(scraped)
    assert found.families == wanted.families
    assert found.labels.items() <= wanted.labels.items()
    assert len(found.labels) > len(wanted.labels) / 2


def _usage() -> Iterator[UsageSeries]:
    for metric in UsageMetric:
        _, _, labels = metric.value
        owners = ("mps", "host") if "owner" in labels else ("",)
        for owner in owners:
            values = tuple(owner if label == "owner" else "0" for label in labels)
            yield UsageSeries(metric=metric, labels=values, value=1)
