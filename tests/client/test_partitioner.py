"""Keys map to the same partitions as in the Java client."""

from __future__ import annotations

import pytest

from stratalog.client._partitioner import murmur2, partition_for_key
from tests.golden.java_partitions import KEYS, golden, keys


def test_ten_thousand_keys_map_to_the_same_partitions_as_in_java() -> None:
    chosen = [(murmur2(key), partition_for_key(key, partitions)) for key, partitions in keys()]
    assert len(chosen) == KEYS
    assert chosen == golden()


def test_zero_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="partitions is 0"):
        partition_for_key(b"key", 0)
