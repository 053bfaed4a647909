from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.partition import ReplicaContext, ReplicatedPartition
from stratalog.clock import ManualClock
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory

REGISTERED = {0: 10, 1: 11, 3: 13}
STATE = PartitionState((0, 1, 2), 0, 5, (0, 1), leader_broker_epoch=10, min_insync=2)


@pytest.fixture
def led(tmp_path: Path) -> Iterator[ReplicatedPartition]:
    with LogDirectory.open(tmp_path, background=False, in_cluster=True) as directory:
        key = PartitionId(uuid.uuid4(), 0)
        context = ReplicaContext(0, ManualClock(), lambda: True, lambda: 1000, REGISTERED.get)
        log = directory.log("orders", 0, LogConfig(), topic_id=key.topic_id)
        partition = ReplicatedPartition("orders", 0, key, log, context)
        partition.lead(STATE)
        partition.append(memoryview(build_batch([(None, b"one")])))
        yield partition


@pytest.mark.parametrize(
    ("replica", "broker_epoch"), [(1, -1), (1, 10), (1, 12), (1, 2**62), (0, 10), (2, 12), (3, 13), (99, -1)]
)
def test_fetch_that_is_not_from_a_registered_replica_commits_records(
    led: ReplicatedPartition, replica: int, broker_epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """(2, 12) is a replica that is not registered, (3, 13) a broker without a replica."""
    outcomes: list[ErrorCode] = []
    led.when_replicated(1, outcomes.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not led.follower_fetched(replica, broker_epoch, 1, 0)
    assert (led.high_watermark, outcomes) == (0, [])
    assert len([record for record in caplog.records if f"claims to be replica {replica} " in record.message]) == 1
    assert led.follower_fetched(1, 11, 1, 0), "the real follower is refused"
    assert (led.high_watermark, outcomes) == (1, [ErrorCode.none])
