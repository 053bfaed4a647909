"""The same examples in every run, however slow the machine: a failure here is one that can be repeated."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")
