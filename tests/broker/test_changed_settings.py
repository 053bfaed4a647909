"""Settings that are changed while a whole broker runs arrive where they count, and do so again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stratalog.broker.broker import Broker
from stratalog.broker.settings import BrokerConfig

GIVEN = BrokerConfig.parse({"log.index.size.max.bytes": 1024, "offsets.topic.num.partitions": 1})


def counting(broker: Broker) -> tuple[int, int, int]:
    """What connections, fetches and a topic's log go by."""
    partition = broker.topics.partition("events", 0)
    assert partition is not None
    return broker.server.limits.connections, broker.config.fetch_max_bytes, partition.log.config.retention_ms


def test_change_arrives_at_connections_fetches_and_logs(tmp_path: Path) -> None:
    async def first() -> None:
        broker = await Broker.start(tmp_path, GIVEN, "127.0.0.1", 0)
        try:
            await broker.run_in_background(lambda: broker.topics.create("events", 1, {}))
            changes = {"max.connections": "17", "fetch.max.bytes": "5000", "log.retention.ms": "777"}
            await broker.run_in_background(lambda: broker.settings.change(broker=changes))
            await asyncio.sleep(0)
            assert counting(broker) == (17, 5000, 777)
        finally:
            await broker.stop()

    async def second() -> None:
        broker = await Broker.start(tmp_path, GIVEN, "127.0.0.1", 0)
        try:
            assert counting(broker) == (17, 5000, 777)
            await broker.run_in_background(lambda: broker.settings.change(broker={}))
            await asyncio.sleep(0)
            assert counting(broker) == (GIVEN.max_connections, GIVEN.fetch_max_bytes, GIVEN.log_defaults.retention_ms)
        finally:
            await broker.stop()

    asyncio.run(first())
    asyncio.run(second())
