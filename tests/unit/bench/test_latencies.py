"""Latencies of a user's own command, in each form: read, or refused with the line."""

import pytest

from dra_driver.bench import latencies
from dra_driver.bench.workload import LatencyForm
from dra_driver.errors import SetupError

METRIC = "x:request_latency_seconds"
HISTOGRAM = """\
some log line
# TYPE x:request_latency_seconds histogram
x:request_latency_seconds_bucket{le="0.1",model="a"} 30
x:request_latency_seconds_bucket{le="0.2",model="a"} 90.0
x:request_latency_seconds_bucket{le="+Inf",model="a"} 90 1700000000000
x:request_latency_seconds_bucket{le="0.1",model="b"} 10
x:request_latency_seconds_bucket{le="0.2",model="b"} 10
x:request_latency_seconds_bucket{le="+Inf",model="b"} 10
x:request_latency_seconds_count{model="a"} 90
x:request_latency_seconds_created 5
"""
SUMMARY = """\
nv_inference_us{quantile="0.5",model="a"} 1500
nv_inference_us{quantile="0.99",model="a"} 9e3
nv_inference_us_count{model="a"} 321
"""
HEAD = "Concurrency,Inferences/Second,Client Send,Server Queue,p50 latency,p90 latency,p99 latency"


def test_a_line_of_json_has_percentiles_or_all_latencies() -> None:
    text = 'starting\n{"event": "log"}\n{"p50_ms": 2, "p99_ms": 7.5, "count": 40}\nbye\n'
    said = latencies.read(LatencyForm.JSON, text)
    assert (said.latency.p50_ms, said.latency.p99_ms, said.latency.count) == (2, 7.5, 40)
    assert said.throughput is None
    line = '{"latencies_ms": [3, 1, 2], "throughput": 55.5, "unit": "images"}'
    said = latencies.read(LatencyForm.JSON, line)
    assert (said.latency.p50_ms, said.latency.p99_ms, said.latency.count) == (2, 3, 3)
    assert (said.throughput, said.unit) == (55.5, "images")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no JSON at all", "there is no line of JSON"),
        ('{"p50_ms": 2, "p99_ms": 7}', "count: Field required"),
        ('{"p50_ms": "2", "p99_ms": 7, "count": 1}', "p50_ms: Input should be a valid number"),
        ('{"p50_ms": 2, "p99_ms": NaN, "count": 1}', "p99_ms: Input should be a finite number"),
        ('{"p50_ms": 8, "p99_ms": 7, "count": 1}', "p99_ms is less than p50_ms"),
        ('{"latencies_ms": []}', "latencies_ms: List should have at least 1 item"),
        ('{"latencies_ms": [1, -1]}', "latencies_ms.1: Input should be greater than or equal"),
        ('{"latencies_ms": [1], "p95_ms": 1}', "p95_ms: Extra inputs are not permitted"),
        ('{"p50_ms": 2,', "Invalid JSON"),
    ],
)
def test_json_that_is_not_as_it_should_be_is_refused_with_the_line(line: str, why: str) -> None:
    with pytest.raises(SetupError) as refused:
        latencies.read(LatencyForm.JSON, f"{line}\n")
    assert why in str(refused.value)
    assert line.startswith("no") or repr(line) in str(refused.value)


def test_a_histograms_label_sets_are_added_and_its_quantiles_interpolated() -> None:
    said = latencies.read(LatencyForm.PROMETHEUS, HISTOGRAM, METRIC)
    # 40 of 100 are up to 0.1 s, the other 60 up to 0.2 s.
    assert said.latency.p50_ms == pytest.approx(100 + 100 * 10 / 60)
    assert said.latency.p99_ms == pytest.approx(100 + 100 * 59 / 60)
    assert said.latency.count == 100


def test_a_summary_in_microseconds_is_converted() -> None:
    said = latencies.read(LatencyForm.PROMETHEUS, SUMMARY, "nv_inference_us")
    assert (said.latency.p50_ms, said.latency.p99_ms, said.latency.count) == (1.5, 9.0, 321)


@pytest.mark.parametrize(
    ("text", "metric", "why"),
    [
        (HISTOGRAM, "x:request_latency", "the unit of x:request_latency is not known"),
        (HISTOGRAM, "y_seconds", "no histogram and no summary y_seconds"),
        (HISTOGRAM.replace("+Inf", "0.3"), METRIC, "do not grow up to le=+Inf"),
        (HISTOGRAM.replace("} 30", "} 95"), METRIC, "do not grow up to le=+Inf"),
        (HISTOGRAM.replace("} 90.0", "} 80"), METRIC, "more than 1% of x:request_latency_seconds"),
        (
            HISTOGRAM.replace('"0.1"', '"fast"'),
            METRIC,
            "is not a number: 'x:request_latency_seconds",
        ),
        (HISTOGRAM.replace("90.0", "many"), METRIC, "text format: 'x:request_latency_seconds"),
        (HISTOGRAM.replace('le="0.2",', 'le="0.2'), METRIC, "text format"),
        ('m_ms_bucket{le="+Inf"} 0\n', "m_ms", "m_ms has counted nothing"),
        (SUMMARY + SUMMARY, "nv_inference_us", "a second label set"),
        (SUMMARY.replace("0.99", "0.9"), "nv_inference_us", 'has no quantile="0.99"'),
        (SUMMARY.replace("9e3", "NaN"), "nv_inference_us", "its value is not a latency"),
        (SUMMARY.replace("321", "0"), "nv_inference_us", "it has counted nothing"),
        (SUMMARY.replace("us_count", "us_sum"), "nv_inference_us", "occurs 0 times"),
    ],
)
def test_an_exposition_without_latencies_is_refused(text: str, metric: str, why: str) -> None:
    with pytest.raises(SetupError) as refused:
        latencies.read(LatencyForm.PROMETHEUS, text, metric)
    assert why in str(refused.value)


def test_perf_analyzers_row_is_read_in_microseconds() -> None:
    said = latencies.read(
        LatencyForm.PERF_ANALYZER, f"{HEAD}\n4,113.6,127,25267,35208,35622,35900\n"
    )
    assert (said.latency.p50_ms, said.latency.p99_ms, said.latency.count) == (35.208, 35.9, None)
    assert (said.throughput, said.unit) == (113.6, "inferences")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Request concurrency: 4\n", "no line of perf_analyzer's head"),
        (f"{HEAD}\n", "has 0 rows, not one"),
        (f"{HEAD}\n1,2,3,4,5,6,7\n2,2,3,4,5,6,7\n", "has 2 rows, not one: measure one concurrency"),
        (f"{HEAD}\n1,fast,3,4,5,6,7\n", "is missing: '1,fast,3,4,5,6,7'"),
        (f"{HEAD.replace('p99', 'p95')}\n1,2,3,4,5,6,7\n", "p99 latency is missing"),
        (f"{HEAD}\n1,inf,3,4,5,6,7\n", "Inferences/Second is not a rate"),
    ],
)
def test_a_table_that_is_not_perf_analyzers_is_refused(text: str, why: str) -> None:
    with pytest.raises(SetupError) as refused:
        latencies.read(LatencyForm.PERF_ANALYZER, text)
    assert why in str(refused.value)
