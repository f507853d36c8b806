"""What was measured, compared; and the times at which requests are served."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_reports import case, cases, report, result, strategy
from dra_driver.bench.model import Case, Tenant, percentile, read_report
from dra_driver.bench.report.figures import compared, fairness
from dra_driver.bench.report.verdict import advice
from dra_driver.bench.strategies import Sharing
from dra_driver.bench.tenant import arrivals
from dra_driver.errors import StateError


class Time:
    """A clock that moves when something takes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[[], None]:
        def step() -> None:
            self.now += seconds

        return step

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7


def test_fairness_is_one_where_all_have_the_same_and_a_part_where_one_has_all() -> None:
    assert fairness([5, 5, 5]) == pytest.approx(1)
    assert fairness([9, 0, 0]) == pytest.approx(1 / 3)
    assert fairness([0, 0]) is None


def test_a_request_that_waits_counts_from_its_arrival() -> None:
    time = Time()
    done = arrivals.open_loop(time.takes(1.0), iter([0.0, 0.1, 0.2]), 10.0, time, time.sleep)
    assert done.steps == 3
    assert done.latencies == pytest.approx([1.0, 1.9, 2.8])


def test_arrivals_are_the_same_for_the_same_seed_and_as_many_for_each() -> None:
    def moments(seed: int, number: int = 0) -> list[float]:
        return list(arrivals.random_arrivals(50.0, 100.0, seed, number))

    assert moments(1) == moments(1) != moments(2)
    for seed, number in ((1, 0), (1, 5), (2, 0), (3, 63)):
        found = moments(seed, number)
        assert len(found) == 5000
        assert found == sorted(found)
        assert 0 <= found[0] < found[-1] < 100
        gaps = [after - before for before, after in itertools.pairwise(found)]
        # As of requests that know nothing of each other: as often longer than 0.69 of the mean.
        assert sum(gap > 0.0139 for gap in gaps) == pytest.approx(2500, rel=0.06)


def test_tenants_that_do_not_disturb_each_other_have_the_same_figures() -> None:
    def served(number: int) -> arrivals.Timings:
        time = Time()
        moments = arrivals.random_arrivals(20.0, 20.0, 1, number)
        return arrivals.open_loop(time.takes(0.02), moments, 20.0, time, time.sleep)

    alone = served(0)
    assert alone.steps == 400
    for other in map(served, range(1, 8)):
        assert other.steps >= 399  # one may arrive at the very end
        for share in (0.5, 0.99):
            wanted = percentile(alone.latencies, share)
            assert percentile(other.latencies, share) == pytest.approx(wanted, rel=0.02)


def test_everything_is_compared_with_the_work_alone() -> None:
    measure = cases()[0]
    four = strategy(Sharing.TIME_SLICING, 4)
    told = compared(case(four, [10.0, 10.0, 5.0, 15.0], 44.0, 50.0), [measure])
    assert told.total_throughput == pytest.approx(2.0)
    assert told.least_throughput == pytest.approx(0.25)
    assert told.run_time == pytest.approx(4.0)
    assert told.p99 == pytest.approx(4.0)
    assert told.fairness == pytest.approx(40**2 / (4 * 450))
    assert told.memory_fairness == pytest.approx(1.0)
    assert told.energy_per_work == pytest.approx((7000 / 800) / (4840 / 400))


def test_a_tenant_without_a_result_got_nothing() -> None:
    two = strategy(Sharing.MPS, 2)
    tenants = (Tenant(number=0, result=result(20.0, 11.0)), Tenant(number=1, failure="refused"))
    told = compared(Case(strategy=two, state="measured", tenants=tenants), cases()[:1])
    assert told.fairness == pytest.approx(0.5)
    assert told.least_throughput == 0
    assert told.run_time is None


def test_a_report_of_a_real_card_is_read() -> None:
    found = read_report(Path(__file__).parents[2] / "data/bench/inference-h100.json")
    assert found.card.name == "NVIDIA H100 80GB HBM3"
    assert [len(case.tenants) for case in found.cases] == [1, 2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert advice(found).sentence.startswith("2 services: lowest 99th percentile of latency: ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"version": 1', '"version": 2', "is not a report of version 1: version: "),
        ('"p99_ms": 11.0', '"p99_ms": NaN', "is not a report"),
        (
            '"p99_ms": 11.0',
            '"p99_ms": "11"',
            "is not a report of version 1: cases.0.tenants.0",
        ),
        ('"cases"', '"more": 1, "cases"', "more: Extra inputs are not permitted"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = report().model_dump_json(indent=2)
    assert old in text
    path = tmp_path / "bench.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StateError) as caught:
        read_report(path)
    assert said in str(caught.value)
