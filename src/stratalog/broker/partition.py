"""A partition as the broker sees it: a log, its leader epoch, and the fetches that wait for it to grow.

On a single broker the leader is always this broker, which is the only replica. So the high watermark is the log end
offset, and acks=all is satisfied when the append returns. `replication.partition.ReplicatedPartition` is a partition of
a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from stratalog.broker.metadata.store import INTERNAL_TOPICS
from stratalog.errors import StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.appending import Appended, PreparedBatches
from stratalog.storage.log import Log
from stratalog.storage.unopened_log import UnopenedLog

if TYPE_CHECKING:
    from stratalog.broker.waiting import WaitingFetch


logger = logging.getLogger(__name__)


class Partition:
    is_replicated: ClassVar[bool] = False

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
        self.failures = 0  # appends in a row that failed because of the disk
        self.log = log
        self.is_offline = isinstance(log, UnopenedLog)
        """The log could not be opened: every request for it is answered with KAFKA_STORAGE_ERROR."""
        self.leader_epoch = max(log.leader_epochs.latest or 0, 0)
        self.waiting: set[WaitingFetch] = set()

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    @property
    def unavailable(self) -> ErrorCode:
        """Why this broker can't serve the partition; `none` if it can."""
        return ErrorCode.kafka_storage_error if self.is_offline else ErrorCode.none

    @property
    def is_hosted(self) -> bool:
        """True if this broker has a replica."""
        return True

    @property
    def is_confirmed(self) -> bool:
        """False while the high watermark may be lower than what clients of an earlier leader knew."""
        return True

    @property
    def in_sync_count(self) -> int:
        return 1

    @property
    def required_in_sync(self) -> int:
        """The number of in-sync replicas without which acks=all is refused."""
        return self.log.config.min_insync_replicas

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    def waiting_fetches(self, *, of_followers: bool) -> set[WaitingFetch]:  # noqa: ARG002 - a single broker has none
        return self.waiting

    @property
    def last_stable_offset(self) -> int:
        """The offset where read_committed readers stop: the first record of the oldest open transaction, or the log
        start offset if retention has deleted that record."""
        first_open = self.log.producers.first_open_transaction
        end = self.log.log_end_offset
        return end if first_open is None else min(max(first_open, self.log.log_start_offset), end)

    def append_for_coordinator(self, data: bytearray, *, may_wait: bool = False) -> Appended:
        """Append a coordinator's state, a transaction's marker, or offsets that are committed in a transaction. Raises
        the errors of Log.append_for_coordinator, WouldWaitError too."""
        try:
            appended = self.log.append_for_coordinator(data, self.leader_epoch, may_wait=may_wait)
        except StorageError as error:
            self._report(error)
            raise
        self.end_waiting()  # more than these bytes may have become readable; a fetch that has too few waits again
        return appended

    def append(self, data: memoryview) -> Appended:
        """Append a client's batches. Raises the errors of Log.append_at_once, WouldWaitError too."""
        try:
            appended = self.log.append_at_once(data, self.leader_epoch)
        except StorageError as error:
            self._report(error)
            raise
        self._grew(len(data))
        return appended

    def append_prepared(self, prepared: PreparedBatches) -> Appended:
        """Append batches that Log.prepare has checked in another thread."""
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
        """Log the 1st, the 10th, the 100th failure: a producer retries many times a second."""
        self.failures += 1
        if str(self.failures).strip("0") == "1":
            logger.error("%r: %d appends failed in a row, the last: %s", self, self.failures, error)

    def report_unreadable(self, error: StratalogError) -> None:
        """Log each different error, which names file and position, once: a consumer retries without end."""
        if str(error) != self._unreadable:
            self._unreadable = str(error)
            logger.error("%r can't be read: %s", self, error)

    def wake(self, size: int) -> None:
        """Report to the waiting fetches that they can read `size` bytes more."""
        wake(self.waiting, size)

    def end_waiting(self) -> None:
        """Have the waiting fetches read again: the partition is deleted, or a transaction has ended."""
        for fetch in tuple(self.waiting):
            fetch.finish()


def wake(fetches: Collection[WaitingFetch], size: int) -> None:
    for fetch in tuple(fetches):
        fetch.grew(size)
