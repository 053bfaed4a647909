"""A partition as the broker sees it: a log, its leader epoch, and who waits for it to grow.

On one node the leader is always this broker and every record is on every replica there is, so the high watermark is the
log's end, and acks=all is satisfied when the append returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.broker.metadata.store import INTERNAL_TOPICS
from stratalog.storage.appending import Appended
from stratalog.storage.log import Log

if TYPE_CHECKING:
    from stratalog.broker.waiting import WaitingFetch


class Partition:
    __slots__ = ("index", "is_internal", "leader_epoch", "log", "topic", "waiting")

    def __init__(self, topic: str, index: int, log: Log) -> None:
        self.topic = topic
        self.is_internal = topic in INTERNAL_TOPICS
        self.index = index
        self.log = log
        self.leader_epoch = max(log.leader_epochs.latest or 0, 0)
        self.waiting: set[WaitingFetch] = set()

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers have to stop: the first record of the oldest open transaction."""
        first_open = self.log.producers.first_open_transaction
        end = self.log.log_end_offset
        return end if first_open is None else min(first_open, end)

    def append(self, data: memoryview) -> Appended:
        """A client's batches. Raises what Log.append does."""
        appended = self.log.append(data, leader_epoch=self.leader_epoch)
        if self.waiting:
            self.wake(len(data))
        return appended

    def wake(self, size: int) -> None:
        """Tell those who wait that the log has grown by so many bytes."""
        for fetch in tuple(self.waiting):
            fetch.grew(size)

    def end_waiting(self) -> None:
        """The partition is gone: those who wait have to be told."""
        for fetch in tuple(self.waiting):
            fetch.finish()
