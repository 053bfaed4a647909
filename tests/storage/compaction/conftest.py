"""These tests open hundreds of logs; see tests/storage/faults/conftest.py."""

from __future__ import annotations

from tests.storage.faults.conftest import scratch

__all__ = ["scratch"]
