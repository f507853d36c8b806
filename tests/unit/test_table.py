"""Tables on a terminal."""

from dra_driver.admin.table import aligned


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([("NAME", "UUID"), ("gpu-10", "a")]) == ["NAME    UUID", "gpu-10  a"]
