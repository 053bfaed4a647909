"""A partition as the broker sees it: a log, its leader epoch, and who waits for it to grow.

On one node the leader is always this broker and every record is on every replica there is, so the high watermark is the
log's end, and acks=all is satisfied when the append returns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stratalog.broker.metadata.store import INTERNAL_TOPICS
from stratalog.errors import StorageError, StratalogError
from stratalog.storage.appending import Appended, PreparedBatches
from stratalog.storage.log import Log
from stratalog.storage.unopened_log import UnopenedLog

if TYPE_CHECKING:
    from stratalog.broker.waiting import WaitingFetch


logger = logging.getLogger(__name__)


class Partition:
    __slots__ = (
        "_unreadable",
        "failures",
        "index",
        "is_internal",
        "is_offline",
        "leader_epoch",
        "log",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, index: int, log: Log) -> None:
        self.topic = topic
        self.is_internal = topic in INTERNAL_TOPICS
        self.index = index
        self._unreadable = ""
        self.failures = 0  # of appends in a row, for the disk's reasons
        self.log = log
        self.is_offline = isinstance(log, UnopenedLog)
        """Its log could not be opened: whatever is asked of it is KAFKA_STORAGE_ERROR."""
        self.leader_epoch = max(log.leader_epochs.latest or 0, 0)
        self.waiting: set[WaitingFetch] = set()

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers have to stop: the first record of the oldest open transaction, or the log's
        start, where retention has taken that record."""
        first_open = self.log.producers.first_open_transaction
        end = self.log.log_end_offset
        return end if first_open is None else min(max(first_open, self.log.log_start_offset), end)

    def append_for_coordinator(self, data: bytearray, *, may_wait: bool = True) -> Appended:
        """A coordinator's state, markers of transactions, offsets that are committed in one. Raises what
        Log.append_for_coordinator does."""
        try:
            appended = self.log.append_for_coordinator(data, self.leader_epoch, may_wait=may_wait)
        except StorageError as error:
            self._report(error)
            raise
        self.end_waiting()  # more may have become readable than these bytes; who has too little waits on
        return appended

    def append(self, data: memoryview) -> Appended:
        """A client's batches. Raises what Log.append_at_once does: WouldWaitError too."""
        try:
            appended = self.log.append_at_once(data, self.leader_epoch)
        except StorageError as error:
            self._report(error)
            raise
        self._grew(len(data))
        return appended

    def append_prepared(self, prepared: PreparedBatches) -> Appended:
        """The same for batches that Log.prepare has checked in another thread."""
        try:
            appended = self.log.append_prepared(prepared, self.leader_epoch)
        except StorageError as error:
            self._report(error)
            raise
        self._grew(len(prepared[0]))
        return appended

    def _grew(self, size: int) -> None:
        if self.waiting:
            self.wake(size)
        if self.failures:
            logger.warning("%r takes records again, after %d appends that failed", self, self.failures)
            self.failures = 0

    def _report(self, error: StorageError) -> None:
        """At the 1st, the 10th, the 100th: a producer tries again many times a second."""
        self.failures += 1
        if str(self.failures).strip("0") == "1":
            logger.error("%r: %d appends failed in a row, the last: %s", self, self.failures, error)

    def report_unreadable(self, error: StratalogError) -> None:
        """Once for each text, which names file and position: a consumer tries again for ever."""
        if str(error) != self._unreadable:
            self._unreadable = str(error)
            logger.error("%r can't be read: %s", self, error)

    def wake(self, size: int) -> None:
        """Tell those who wait that the log has grown by so many bytes."""
        for fetch in tuple(self.waiting):
            fetch.grew(size)

    def end_waiting(self) -> None:
        """The partition is gone, or a transaction has ended: those who wait have to look."""
        for fetch in tuple(self.waiting):
            fetch.finish()
