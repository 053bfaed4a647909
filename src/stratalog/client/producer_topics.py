"""The topics that a producer has sent to. Their queues follow the cluster's metadata. In the I/O thread."""

from __future__ import annotations

import asyncio

from stratalog.client._accumulator import Accumulator
from stratalog.client._queues import TopicQueues
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import error_of
from stratalog.client.metadata import MetadataSnapshot
from stratalog.client.producer_settings import ProducerSettings
from stratalog.protocol.error_codes import ErrorCode


class ProducerTopics:
    def __init__(self, accumulator: Accumulator, cluster: Cluster, settings: ProducerSettings) -> None:
        self._accumulator = accumulator
        self._cluster = cluster
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        cluster.on_change(self._update)

    async def find(self, name: str, partition: int, seconds: float) -> TopicQueues:
        """Return a topic's queues, as soon as the topic is known and has this partition (-1: any). Raises the reason if
        that takes more than `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        info = await self._cluster.topic(name, timeout=seconds)
        failures = 0
        while partition >= len(info.partitions):
            failures += 1
            left = deadline - loop.time()
            if left <= 0:
                raise error_of(
                    ErrorCode.unknown_topic_or_partition,
                    f"the topic has partitions 0 to {len(info.partitions) - 1}",
                    about=f"{name}-{partition}",
                )
            if failures > 1:
                await asyncio.sleep(min(self._backoff.seconds(failures), left))
            metadata = await self._cluster.refresh([name], timeout=max(left, 0.001))
            info = metadata.topics.get(name, info)
        self._cluster.track_topics([name])
        queues = self._accumulator.topics.get(name) or TopicQueues(name)
        queues.update([partition_info.leader for partition_info in info.partitions])
        self._accumulator.topics[name] = queues
        return queues

    def _update(self, metadata: MetadataSnapshot) -> None:
        for name, queues in self._accumulator.topics.items():
            info = metadata.topics.get(name)
            if info is not None and info.partitions:
                queues.update([partition.leader for partition in info.partitions])
