"""The power cuts work in memory where that can be had, as those of the storage engine do."""

from tests.storage.faults.conftest import scratch

__all__ = ["scratch"]
