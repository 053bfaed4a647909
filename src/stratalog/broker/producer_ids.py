"""Allocates producer ids. The ids come from blocks, each of which is durably reserved in the metadata before its first
id is used. So no id is allocated twice, and a crash skips the rest of a block."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry

_BLOCK = 1000
_LARGEST_SKIPPED = 2**62  # clients can write any producer id into a batch, and must not use up all ids that way


class ProducerIdAllocator:
    def __init__(
        self,
        topics: TopicRegistry,
        store: MetadataStore,
        run_in_background: RunInBackground,
        reserve_in_cluster: Callable[[int], Awaitable[int]] | None = None,
    ) -> None:
        """`reserve_in_cluster` reserves so many ids in ZooKeeper, for a broker of a cluster, and returns the first."""
        self._reserve_in_cluster = reserve_in_cluster
        self._topics = topics
        self._store = store
        self._run_in_background = run_in_background
        self._reserved = iter(range(0))
        self._first = 0
        self._one_at_a_time = asyncio.Lock()

    def mind(self, producer_id: int) -> None:
        """Don't allocate this id: another broker has, or this broker did before its metadata was lost."""
        if self._first <= producer_id < _LARGEST_SKIPPED:
            self._first = producer_id + 1

    async def next(self) -> int:
        """Return an id that was never allocated before. Raises StorageError."""
        async with self._one_at_a_time:
            while True:
                for producer_id in self._reserved:
                    if producer_id >= self._first:
                        return producer_id
                if self._reserve_in_cluster is not None:
                    first = await self._reserve_in_cluster(_BLOCK)
                    self._reserved = iter(range(first, first + _BLOCK))
                else:
                    self._reserved = iter(await self._run_in_background(self._reserve))

    def _reserve(self) -> range:
        """Reserve a block. Runs in the background thread, the only one that changes the metadata."""
        first = self._store.metadata.next_producer_id
        if first == 0:
            first = self._first_unused()
        first = max(first, self._first)
        self._store.change(next_producer_id=first + _BLOCK)
        return range(first, first + _BLOCK)

    def _first_unused(self) -> int:
        """Return an id after all ids in the logs. Logs may be older than the metadata: another broker wrote them, or
        the metadata was lost. There, a new producer with an old id would pass for the old producer."""
        highest = -1
        for partition in self._topics.all_partitions():
            for producer in list(partition.log.producers):
                if highest < producer.producer_id < _LARGEST_SKIPPED:
                    highest = producer.producer_id
        return highest + 1
