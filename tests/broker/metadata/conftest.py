"""The scratch directory of the crash tests, which is in memory if possible, as in the tests of the storage engine."""

from tests.storage.faults.conftest import scratch

__all__ = ["scratch"]
