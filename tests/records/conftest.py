"""Hypothesis runs the same examples every time, also on slow machines, so that a failure can be repeated."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")
