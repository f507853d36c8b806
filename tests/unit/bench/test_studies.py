"""Scenarios in reports: roles, rounds and their spread, isolation, what a report comes to."""

import statistics
from pathlib import Path

import pytest

from bench_reports import SIMULATED, report, result
from bench_studies import study
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.bench.model import (
    Case,
    Goal,
    Relation,
    Report,
    Study,
    Tenant,
    read_report,
    write_report,
)
from dra_driver.bench.report import plot
from dra_driver.bench.report.page import page
from dra_driver.bench.report.summary import spread, summary
from dra_driver.bench.report.verdict import advice
from dra_driver.bench.report.view import COSTS, as_text, rows
from dra_driver.bench.strategies import Part, Sharing, Strategy
from dra_driver.bench.workload import Workload, WorkloadKind

SERVICE = Workload(kind=WorkloadKind.INFERENCE, rate=20.0)
BUSY = Workload(kind=WorkloadKind.COMPUTE)


def measured(strategy: Strategy, *figures: tuple[float, float], repetition: int = 0) -> Case:
    """A case whose tenants had so much throughput, and such a 99th percentile."""
    tenants = tuple(
        Tenant(number=number, result=result(throughput, p99))
        for number, (throughput, p99) in enumerate(figures)
    )
    return Case(strategy=strategy, repetition=repetition, state="measured", tenants=tenants)


def on_mig(title: str, *roles: str) -> Strategy:
    works = {"service": SERVICE, "neighbour": BUSY}
    return Strategy(
        sharing=Sharing.MIG,
        profile="1g.10gb",
        name=title,
        parts=tuple(Part(role=role, work=works[role]) for role in roles),
    )


def test_the_interval_of_few_values_is_students() -> None:
    found = spread([1.0, 2.0, 3.0])
    assert found is not None
    assert found.half is not None
    assert found.half == pytest.approx(4.303 * 1.0 / 3**0.5)
    many = [float(value % 7) for value in range(200)]
    wide = spread(many)
    assert wide is not None
    assert wide.half == pytest.approx(1.972 * statistics.stdev(many) / 200**0.5, rel=0.01)
    assert spread([5.0, None]) == spread([5.0])
    assert spread([None]) is None


def test_each_role_is_compared_with_itself_alone_in_the_same_round() -> None:
    found = {(row.strategy.name, row.role): row for row in summary(study())}
    light, heavy = (found["time-slicing", role] for role in ("light", "heavy"))
    throughput = light.figure("throughput")
    assert throughput is not None
    assert throughput.mean == pytest.approx(0.93)
    assert len(throughput.values) == 3
    slower = heavy.figure("time")
    assert slower is not None
    assert slower.mean == pytest.approx(1 / 0.62)
    both = found["time-slicing", None].figure("throughput")
    assert both is not None
    assert both.mean == pytest.approx(0.93 + 0.62)
    p99 = light.figure("p99")
    assert p99 is not None
    assert p99.half is not None
    assert p99.half > 0
    assert p99.mean == pytest.approx(9.0, rel=0.06)


def test_isolation_is_what_neighbours_cost_on_the_same_share() -> None:
    alone_on, beside = on_mig("alone on 1g", "service"), on_mig("beside", "service", "neighbour")
    whole = Strategy(
        sharing=Sharing.ALONE, name="alone", parts=(Part(role="service", work=SERVICE),)
    )
    relations = (
        Relation(case="alone", against=("alone",)),
        Relation(case="alone on 1g", against=("alone",)),
        Relation(
            case="beside", against=("alone",), undisturbed=("alone on 1g",), group="with neighbours"
        ),
    )
    found = report(
        study=Study(name="made up", answers="Which?", relations=relations),
        cases=(
            measured(whole, (20.0, 10.0)),
            measured(alone_on, (20.0, 40.0)),
            measured(beside, (20.0, 44.0), (100.0, 5.0)),
        ),
    )
    table = rows(found)
    by_name = {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
    assert by_name["alone on 1g"]["p99"] == "4.00"
    assert by_name["alone on 1g"]["isolation"] == "–"  # noqa: RUF001
    assert by_name["beside"]["isolation"] == "1.10"
    assert by_name["  of which service"]["p99"] == "4.40"
    # The neighbour has no base, so the case has no figure of all together.
    assert by_name["beside"]["all"] == "–"  # noqa: RUF001


def test_the_sentence_names_the_best_and_by_how_much() -> None:
    told = advice(study())
    assert told.sentence.startswith(
        "Lowest 99th percentile of latency of light: MPS, 30 % of the SMs for heavy (1.3"
    )
    assert "most throughput of heavy: MPS (0.88 times alone), then MPS, heavy below" in (
        told.sentence
    )
    assert told.strategy is not None
    assert told.strategy.name == "MPS, 30 % of the SMs for heavy"
    assert "# In the container of heavy: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in told.claim
    assert check_manifest(told.claim).findings == ()
    assert told.share_config == ""  # a node gives out equal shares
    assert as_text(study()).count(told.sentence) == 1


def test_simulated_gpus_give_no_advice() -> None:
    passed = Case(strategy=on_mig("x", "service"), state="passed")
    goals = (Goal(figure="p99"),)
    simulated = report(
        card=SIMULATED, cases=(passed,), study=Study(name="x", answers="?", goals=goals)
    )
    assert advice(simulated).sentence == ""
    drawn = page([simulated], plot.svg)
    assert "<svg" not in drawn
    assert "<table" not in drawn
    with pytest.raises(ValueError, match="simulated GPUs do no work"):
        study(card=SIMULATED)


def test_a_page_begins_with_the_sentence_and_its_tables_fit_it() -> None:
    found = study()
    drawn = page([found], plot.svg)
    told = advice(found)
    assert drawn.index(told.sentence) < drawn.index("<dl>") < drawn.index("<svg")
    assert "Ready to copy, for MPS, 30 % of the SMs for heavy" in drawn
    for columns in (None, COSTS):
        table = rows(found) if columns is None else rows(found, columns)
        wide = sum(max(len(row[at]) for row in table) + 2 for at in range(len(table[0])))
        assert wide <= 140


def test_a_report_of_a_scenario_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_report(study(), path)
    assert read_report(path) == study()
    assert isinstance(read_report(path), Report)
