"""Metrics as a scraper reads them."""

import pytest

from dra_driver.ops.metrics import DeviceType, Metrics, Operation, SliceWrite
from scrape import metrics_text


def new() -> Metrics:
    return Metrics(driver="gpu.nvidia.com", node="node-1", version="0.1.0")


def text(metrics: Metrics) -> str:
    return metrics_text(metrics.wsgi_app)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("requests_total", 'operation="prepare"'),
        ("requests_total", 'operation="unprepare"'),
        ("requests_inflight", 'operation="prepare"'),
        ("request_duration_seconds_count", 'operation="prepare"'),
        ("node_prepare_errors_total", 'error_type="lock_acquire"'),
        ("node_prepare_errors_total", 'error_type="prepare_devices"'),
        ("node_unprepare_errors_total", 'error_type="unprepare_devices"'),
        ("kubelet_registered", ""),
        ("gpus", 'state="sick"'),
        ("xids_total", ""),
        ("publish_errors_total", ""),
        ("memory_limits_not_in_force", ""),
        ("slice_writes_total", 'operation="create"'),
    ],
)
def test_every_series_exists_before_anything_happened(name: str, labels: str) -> None:
    every = ",".join(filter(None, ('driver="gpu.nvidia.com"', labels)))
    assert f"nvidia_dra_{name}{{{every}}} 0.0" in text(new()).splitlines()


@pytest.mark.parametrize("bound", [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8])
def test_durations_have_the_buckets_that_dashboards_of_nvidias_driver_use(bound: float) -> None:
    bucket = f'_bucket{{driver="gpu.nvidia.com",le="{bound}",operation="prepare"}}'
    assert f"nvidia_dra_request_duration_seconds{bucket} 0.0" in text(new()).splitlines()


def test_gpu_conditions_are_read_at_each_scrape() -> None:
    metrics = new()
    wrong: dict[tuple[str, str], int] = {}
    metrics.watch_conditions(("xid", "ecc"), ("fault", "loss"), lambda: wrong)
    series = (
        'nvidia_dra_gpu_health_conditions{{cause="{}",driver="gpu.nvidia.com",severity="{}"}} {}'
    )
    for cause in ("xid", "ecc"):
        for severity in ("fault", "loss"):
            assert series.format(cause, severity, 0.0) in text(metrics)
    wrong["xid", "fault"] = 2
    assert series.format("xid", "fault", 2.0) in text(metrics)
    metrics.xid_heard()
    assert 'nvidia_dra_xids_total{driver="gpu.nvidia.com"} 1.0' in text(metrics)


def test_requests_are_in_flight_only_while_they_run() -> None:
    metrics = new()
    series = 'nvidia_dra_requests_inflight{driver="gpu.nvidia.com",operation="unprepare"}'
    with metrics.request(Operation.UNPREPARE):
        assert f"{series} 1.0" in text(metrics)
    assert f"{series} 0.0" in text(metrics)


def test_prepared_devices_are_counted_when_asked() -> None:
    metrics = new()
    counts = {DeviceType.GPU: 3}
    metrics.watch_prepared(lambda: counts)
    labels = 'device_type="gpu",driver="gpu.nvidia.com",node="node-1"'
    series = f"nvidia_dra_prepared_devices{{{labels}}}"
    assert f"{series} 3.0" in text(metrics)
    counts[DeviceType.GPU] = 2
    assert f"{series} 2.0" in text(metrics)
    assert 'device_type="mig",driver="gpu.nvidia.com",node="node-1"} 0.0' in text(metrics)


def test_claims_without_their_memory_limits_are_counted_when_asked() -> None:
    metrics, claims = new(), ["one"]
    metrics.watch_memory_limits(lambda: len(claims))
    series = 'nvidia_dra_memory_limits_not_in_force{driver="gpu.nvidia.com"}'
    assert f"{series} 1.0" in text(metrics)
    claims.clear()
    assert f"{series} 0.0" in text(metrics)


def test_publishing_is_counted() -> None:
    metrics = new()
    metrics.published(slices=1, devices=8)
    metrics.slice_written(SliceWrite.UPDATE)
    metrics.gpus(ok=7, sick=1)
    metrics.registered(yes=True)
    lines = text(metrics)
    assert 'nvidia_dra_published_devices{driver="gpu.nvidia.com"} 8.0' in lines
    assert 'nvidia_dra_slice_writes_total{driver="gpu.nvidia.com",operation="update"} 1.0' in lines
    assert 'nvidia_dra_gpus{driver="gpu.nvidia.com",state="sick"} 1.0' in lines
    assert 'nvidia_dra_kubelet_registered{driver="gpu.nvidia.com"} 1.0' in lines
    assert 'nvidia_dra_last_publish_timestamp_seconds{driver="gpu.nvidia.com"} 0.0' not in lines


def test_two_drivers_in_one_process_do_not_share_counts() -> None:
    first, second = new(), new()
    first.request_succeeded(Operation.PREPARE, 0.004)
    series = 'nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare"}'
    assert f"{series} 1.0" in text(first)
    assert f"{series} 0.0" in text(second)


def test_the_age_of_a_silence_is_exported_per_gpu() -> None:
    metrics = Metrics(driver="d", node="n", version="1")
    metrics.watch_silence(lambda: {"nvml": 0.0, "3": 12.5})
    body = text(metrics)
    assert 'nvidia_dra_nvml_silent_seconds{driver="d",gpu="3"} 12.5' in body
    assert 'nvidia_dra_nvml_silent_seconds{driver="d",gpu="nvml"} 0.0' in body
