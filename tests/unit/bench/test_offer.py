"""What slices offer to the benchmark (bench/pods/offer.py)."""

from dra_driver.bench.pods.offer import offered
from published import device, slices


def test_a_slice_that_cannot_be_read_hides_no_other() -> None:
    (good,) = slices([device("gpu-0")], node="n-1")
    (odd,) = slices([device("gpu-1", driverVersion="1")], node="n-2")
    odd["spec"]["devices"][0]["attributes"]["driverVersion"] = {"version": "580.95.05"}
    assert offered([odd, good]).gpus == 1
    assert offered([odd, good], "n-2").gpus == 0
