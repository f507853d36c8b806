"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# How fast a machine generates examples says nothing about the code: no test is timed.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
