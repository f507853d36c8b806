import pytest

from resource_nvidia_com.quantity import quantity_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("10737418240", 10737418240),
        ("2Gi", 2 * 1024**3),
        ("10M", 10 * 1000**2),
        ("1G", 1000**3),
        ("1.5Ki", 1536),
        (".5Mi", 512 * 1024),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("100m", 1),
        ("1500m", 2),
        ("-1Ki", -1024),
        ("+1Ki", 1024),
        ("5.", 5),
    ],
)
def test_a_quantity_has_the_value_that_kubernetes_gives_it(text: str, value: int) -> None:
    assert quantity_bytes(text) == value
