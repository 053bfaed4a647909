from __future__ import annotations

import gc
import sys

import pytest

from stratalog.client._consumer_records import FetchedRecords
from stratalog.client._fetched_batches import Progress
from stratalog.client.metadata import TopicPartition
from stratalog.records.builder import build_batch


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_in_a_garbage_cycle_release_their_bytes_in_order(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    body = bytearray(build_batch([(b"key", b"value")] * 10, codec=codec))
    fetched = FetchedRecords(TopicPartition("t", 0), Progress(0), 0, memoryview(body), 0, len(body))
    assert len(fetched.take(3)) == 3
    cycle: list[object] = [fetched]
    cycle.append(cycle)
    del fetched, cycle
    gc.collect()
    assert complaints == []
    body.append(0)  # raises if a view of it still exists
