"""Settings that all tests share."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How fast a machine generates examples says nothing about the code: no test is timed.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture
def logs_restored() -> Iterator[None]:
    """Give other tests the logging that was there before this one configured it."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
