"""Keys go where the Java client sends them."""

from __future__ import annotations

import pytest

from stratalog.client._partitioner import murmur2, partition_for_key
from tests.golden.java_partitions import KEYS, golden, keys


def test_ten_thousand_keys_go_where_java_sends_them() -> None:
    chosen = [(murmur2(key), partition_for_key(key, partitions)) for key, partitions in keys()]
    assert len(chosen) == KEYS
    assert chosen == golden()


def test_no_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="partitions is 0"):
        partition_for_key(b"key", 0)
