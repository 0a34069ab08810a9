"""Properties without a clock: how long an example takes to make or to try says something of the machine alone."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

__all__ = ["given", "settings"]

settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
