"""What holds for all tests: how long an example takes to make or to try says something of the machine alone."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
