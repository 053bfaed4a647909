"""Settings that are changed while a broker runs apply at once, and again after a restart."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from stratalog.broker.broker import Broker
from stratalog.broker.settings import BrokerConfig
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.bad_input.client import RawClient
from tests.broker.process import BrokerProcess

GIVEN = BrokerConfig.parse({"log.index.size.max.bytes": 1024, "offsets.topic.num.partitions": 1})


def counting(broker: Broker) -> tuple[int, int, int]:
    """Return the settings that connections, fetches and the log of a topic use."""
    partition = broker.topics.partition("events", 0)
    assert partition is not None
    return broker.server.limits.connections, broker.config.fetch_max_bytes, partition.log.config.retention_ms


def test_changed_settings_apply_to_connections_fetches_and_logs(tmp_path: Path) -> None:
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


def test_changed_setting_applies_to_the_budget_of_the_coordinators(tmp_path: Path) -> None:
    async def changed() -> int:
        broker = await Broker.start(tmp_path, GIVEN, "127.0.0.1", 0)
        try:
            changes = {"stratalog.max.coordinator.state.bytes": "5000000"}
            await broker.run_in_background(lambda: broker.settings.change(broker=changes))
            await asyncio.sleep(0)
            return broker.groups.budget.limit
        finally:
            await broker.stop()

    assert asyncio.run(changed()) == 5_000_000


def test_members_get_the_settings_of_their_group_also_after_kill_9(tmp_path: Path) -> None:
    joining = {"member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    change = {"name": "consumer.heartbeat.interval.ms", "config_operation": 0, "value": "7000"}
    resource = {"resource_type": 32, "resource_name": "slow", "configs": [change]}

    def intervals(broker: BrokerProcess) -> list[timedelta]:
        found = []
        with RawClient(broker.port) as client:
            for group in ("slow", "other"):
                heartbeat = {"group_id": group, "member_id": "m", **joining}
                answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat)
                while answer.error_code == ErrorCode.coordinator_load_in_progress:
                    answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat)
                found.append(answer.heartbeat_interval)
        return found

    told = [timedelta(seconds=7), timedelta(seconds=5)]
    with BrokerProcess(tmp_path / "data", {"offsets.topic.num.partitions": 1}) as broker:
        with RawClient(broker.port) as client:
            altered = client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]})
        assert altered.responses[0].error_code == ErrorCode.none
        assert intervals(broker) == told
        broker.kill()
        broker.start()
        assert intervals(broker) == told
