"""By which rule pod starts beside an upgrade are judged, in tests/e2e/test_install.py."""

from e2e.pod_starts import Start, too_long


def start(made: float, seconds: float) -> Start:
    return Start(pod=f"pod-{made}", made=made, seconds=seconds)


def test_a_wait_for_a_kubelets_next_try_is_too_long_and_one_that_load_explains_is_not() -> None:
    usual = [start(0, 2.0), start(3, 3.0), start(9, 8.0)]
    loaded, without_driver = start(20, 35.0), start(60, 62.0)
    assert too_long([loaded, without_driver], usual) == [without_driver]


def test_a_start_overlaps_an_upgrade_that_it_waits_in_from_its_making_to_its_running() -> None:
    upgrade = (10.0, 20.0)
    assert [start(made, 4.0).overlaps(upgrade) for made in (5.0, 7.0, 12.0, 19.0, 21.0)] == [
        False,
        True,
        True,
        True,
        False,
    ]
