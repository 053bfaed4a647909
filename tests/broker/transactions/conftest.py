"""The power cuts use a directory in memory if there is one, like those of the storage engine."""

from tests.storage.faults.conftest import scratch

__all__ = ["scratch"]
