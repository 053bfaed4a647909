"""Appends with acks=all that wait for replicas, while the partition's role changes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from stratalog.broker.apis.produce import ProduceApi
from stratalog.broker.counters import Counters
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.replication.partition import ReplicaContext, ReplicatedPartition
from stratalog.broker.transactions.admission import Admission
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import ManualClock
from stratalog.net.response_queue import Response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory
from tests.protocol.kio_messages import read_response, request_body

VERSION = 12
LED_HERE = PartitionState((0, 1), 0, 5, (0, 1), leader_broker_epoch=10)
LED_THERE = PartitionState((0, 1), 1, 6, (0, 1), leader_broker_epoch=11, partition_epoch=1)


class OnePartition:
    """A registry with one partition."""

    def __init__(self, partition: ReplicatedPartition) -> None:
        self._partition = partition

    def partition(self, topic: str, index: int) -> ReplicatedPartition:
        return self._partition


class Threads(WorkerThreads):
    """Runs `meanwhile` while a request waits for the disk."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def wait_for_disk(self, call: Callable[[], Any]) -> Any:
        if getattr(call, "__name__", "") == "flush":
            self._meanwhile()
        return call()


def test_records_count_as_replicated_though_another_leader_replaced_them_during_the_flush(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, LogConfig(flush_messages=1), background=False, in_cluster=True)
    context = ReplicaContext(0, ManualClock(), lambda: True, lambda: 1000, lambda _: None)
    key = PartitionId(uuid.uuid4(), 0)

    async def run() -> ErrorCode:
        log = directory.log("orders", 0, LogConfig(flush_messages=1), topic_id=key.topic_id)
        partition = ReplicatedPartition("orders", 0, key, log, context)
        partition.lead(LED_HERE)

        def lose_leadership() -> None:
            partition.resign()
            partition.follow(LED_THERE)
            log.truncate(0)
            partition.truncated()
            log.append_from_leader(build_batch([(None, b"of the new leader")], leader_epoch=6))
            partition.copied(1, 1)

        threads = Threads(lose_leadership)
        produce = ProduceApi(
            cast(TopicRegistry, OnePartition(partition)),
            Counters(),
            cast(Admission, None),
            threads,
            ManualClock(),
            has_replicas=True,
        )
        batch = bytes(build_batch([(None, b"of the old leader")]))
        data = {"name": "orders", "partition_data": [{"index": 0, "records": batch}]}
        body = request_body(ApiKey.PRODUCE, VERSION, {"acks": -1, "timeout": 1000, "topic_data": [data]})
        response = await cast("Awaitable[Response]", produce.serve(memoryview(bytearray(body)), 0, VERSION, 1))
        produce.close()
        threads.close()
        assert response is not None
        _, answer = read_response(ApiKey.PRODUCE, VERSION, b"".join(bytes(cast(Any, part)) for part in response)[4:])
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    assert asyncio.run(run()) == ErrorCode.not_leader_or_follower
    directory.close()
