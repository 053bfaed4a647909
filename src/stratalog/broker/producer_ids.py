"""The ids that producers get. They come from blocks that are reserved in the metadata, durably, before the first of a
block is given: no id is given twice, whatever happens in between, and a crash skips some."""

from __future__ import annotations

import asyncio

from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry

_BLOCK = 1000
_LARGEST_TO_MIND = 2**62  # a client can write any producer id into a batch; it must not use up all there are


class ProducerIds:
    def __init__(self, topics: TopicRegistry, store: MetadataStore, run_in_background: RunInBackground) -> None:
        self._topics = topics
        self._store = store
        self._run_in_background = run_in_background
        self._reserved = iter(range(0))
        self._first = 0
        self._one_at_a_time = asyncio.Lock()

    def mind(self, producer_id: int) -> None:
        """This one is taken, by whoever gave it: another broker, or this one before its metadata was lost."""
        if self._first <= producer_id < _LARGEST_TO_MIND:
            self._first = producer_id + 1

    async def next(self) -> int:
        """One that nobody has had. Raises StorageError."""
        async with self._one_at_a_time:
            while True:
                for producer_id in self._reserved:
                    if producer_id >= self._first:
                        return producer_id
                self._reserved = iter(await self._run_in_background(self._reserve))

    def _reserve(self) -> range:
        """In the background thread, which alone changes the metadata."""
        first = self._store.metadata.next_producer_id
        if first == 0:
            first = self._first_unused()
        first = max(first, self._first)
        self._store.change(next_producer_id=first + _BLOCK)
        return range(first, first + _BLOCK)

    def _first_unused(self) -> int:
        """Logs may be older than the metadata: another broker's, or from before it was lost. A new producer with an id
        that is known there would be taken for the old one."""
        highest = -1
        for partition in self._topics.all_partitions():
            for producer in list(partition.log.producers):
                if highest < producer.producer_id < _LARGEST_TO_MIND:
                    highest = producer.producer_id
        return highest + 1
