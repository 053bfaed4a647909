"""The driver's side of a sink: one append ends all transactions that its tasks have prepared, atomically.

For a batch write, that append is the whole decision. For a stream, the append also ends a transaction of the sink
itself, with the committed offset of the sink's group: the number of the next batch. So the rows and the record that
they were written are one atomic fact. If Spark passes a batch again, after a crash at any moment, the sink knows that
it was written. The sink's transactional id belongs to the last driver that claimed it; an older driver can't decide
any more. docs/decisions/013-one-append-decides.md has the proof.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence

from stratalog.client.admin import Admin
from stratalog.client.errors import BrokerError, ClientError, UnsupportedVersionError
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.producer import Producer
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.spark.sink_ids import SinkIds
from stratalog.spark.write_options import Delivery, WriteOptions

logger = logging.getLogger("stratalog.spark.sink")

MOST_TRANSACTIONS = 9_999  # a broker ends so many at once, and the sink's own transaction
# The partition of the group's committed offset. It exists whenever a transaction does, and can't be deleted.
PROGRESS_PARTITION = TopicPartition("__transaction_state", 0)


class SinkError(StratalogError):
    """The written rows can't be committed. Readers see none of them."""


# The broker's capabilities


_can: dict[str, bool] = {}
_can_lock = threading.Lock()


def resolved(options: WriteOptions) -> WriteOptions:
    """Replace the delivery by the one that will be used, depending on the broker, which is queried once per process.
    Raises SinkError, ClientError."""
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return options
    if _can_end_together(options):
        return options.with_delivery(Delivery.EXACTLY_ONCE)
    reason = f"{options.servers} can't end several transactions atomically, which needs a Stratalog broker"
    if options.delivery is Delivery.EXACTLY_ONCE:
        raise SinkError(f"delivery is exactly-once, but {reason}; set it to at-least-once, or leave it out")
    logger.warning("%s: a task that runs again writes its rows again (delivery is at-least-once)", reason)
    return options.with_delivery(Delivery.AT_LEAST_ONCE)


def _can_end_together(options: WriteOptions) -> bool:
    with _can_lock:
        if options.servers not in _can:
            with Admin.from_config(options.admin_config()) as admin:
                try:
                    admin.prepared_transactions(SinkIds("-").prefix)
                    _can[options.servers] = True
                except UnsupportedVersionError:
                    _can[options.servers] = False
                except BrokerError as error:
                    if error.code != ErrorCode.invalid_request:
                        raise
                    _can[options.servers] = False  # an older broker without the method
        return _can[options.servers]


# Batches


def commit_batch(options: WriteOptions, ids: SinkIds, prepared: Sequence[PreparedTransaction]) -> None:
    check_count(prepared)
    with Admin.from_config(options.admin_config()) as admin:
        if prepared:
            admin.finish_transactions(prepared, commit=True)
        _clean_up(admin, ids, prepared)


def abort_batch(options: WriteOptions, ids: SinkIds, prepared: Sequence[PreparedTransaction]) -> None:
    with Admin.from_config(options.admin_config()) as admin:
        _clean_up(admin, ids, prepared)


def _clean_up(admin: Admin, ids: SinkIds, prepared: Sequence[PreparedTransaction]) -> None:
    """Abort the transactions of attempts that lost or died, and forget all ids. After that, a task that Spark has not
    killed yet can't begin a transaction. The committed rows do not depend on this."""
    try:
        aborted = admin.abort_transactions(ids.prefix, close=True)
        admin.forget_transactions(dict.fromkeys([*(each.transactional_id for each in prepared), *aborted]))
    except ClientError as error:
        logger.warning("transactions of %s could not be cleaned up; they will expire: %s", ids.prefix, error)


def check_count(prepared: Sequence[PreparedTransaction]) -> None:
    if len(prepared) > MOST_TRANSACTIONS:
        raise SinkError(
            f"the rows are in {len(prepared)} transactions, but at most {MOST_TRANSACTIONS} can be ended together; "
            f"coalesce() to fewer tasks, raise kafka.transaction.timeout.ms for long tasks, or set delivery to "
            f"at-least-once"
        )


# Streams


class StreamSink:
    """A driver's hold on a sink, from its first commit on. Use it in one thread at a time."""

    def __init__(self, options: WriteOptions, ids: SinkIds, query_id: str) -> None:
        """Claim the sink. From now on an older driver can't decide, and `next_batch` includes its decisions."""
        self._options = options
        self._ids = ids
        self._query_id = query_id
        self._admin = Admin.from_config(options.admin_config())
        self._producer = Producer.from_config(options.producer_config(ids.own))
        try:
            self._producer.init_transactions(self._seconds)
            self.next_batch = next_batch(self._admin, ids, query_id)
        except BaseException:
            self.close()
            raise

    @property
    def _seconds(self) -> float:
        return self._producer.settings.delivery_timeout_ms / 1000

    def close(self) -> None:
        self._producer.close(0)
        self._admin.close()

    def has(self, batch_id: int) -> bool:
        """Return whether the batch is written."""
        return self.next_batch is not None and batch_id < self.next_batch

    def commit(self, batch_id: int, prepared: Sequence[PreparedTransaction]) -> None:
        """Commit a batch. If it was committed before, abort the transactions that wrote it again."""
        if self.has(batch_id):
            logger.warning("batch %d of %s was written before, and is not written again", batch_id, self._ids.own)
            abort_each(self._admin, prepared)
            return
        if self.next_batch is None and batch_id > 0:
            logger.info(
                "%s has no record of earlier batches, although batch %d is not the first: they had no rows, were "
                "written to another broker, or their record has expired (the broker's offsets.retention.minutes)",
                self._ids.own,
                batch_id,
            )
        check_count(prepared)
        own = self._prepare_progress(batch_id)
        self._decide([own, *prepared])
        self._continue()
        self.next_batch = batch_id + 1
        self._clean_up()

    def _prepare_progress(self, batch_id: int) -> PreparedTransaction:
        """Prepare the sink's own transaction, with the number of the batch after this one."""
        metadata = json.dumps({"query": self._query_id})
        self._producer.begin()
        self._producer.send_offsets_to_transaction(
            {PROGRESS_PARTITION: OffsetAndMetadata(batch_id + 1, metadata)},
            GroupMetadata(self._ids.group, -1, ""),
            self._seconds,
        )
        return self._producer.prepare_transaction(self._options.decision_timeout_ms, self._seconds)

    def _decide(self, prepared: Sequence[PreparedTransaction]) -> None:
        """End all transactions by one append. Retries if the response is lost, for the time that a record may take."""
        self._admin.finish_transactions(prepared, commit=True, timeout=self._seconds)

    def _continue(self) -> None:
        """Repeat the commit, which has no effect, so that the producer learns its next producer epoch."""
        self._producer.commit(self._seconds)

    def _clean_up(self) -> None:
        """Abort what other attempts have left open: those of this sink that still run lost, or belong to another
        driver. The committed rows do not depend on this."""
        try:
            self._admin.abort_transactions(self._ids.prefix)
        except ClientError as error:
            logger.warning("unfinished transactions of %s will be aborted later: %s", self._ids.prefix, error)


def abort_each(admin: Admin, prepared: Sequence[PreparedTransaction]) -> None:
    """Abort exactly these transactions, and not later ones of the same transactional ids, which may belong to another
    driver's tasks. Transactions that have ended stay as they are."""
    for transaction in prepared:
        try:
            admin.finish_transactions([transaction], commit=False)
        except BrokerError as error:
            logger.info("the transaction of %s is not aborted: %s", transaction.transactional_id, error)


def next_batch(admin: Admin, ids: SinkIds, query_id: str) -> int | None:
    """Return the number of the next batch, or None if the sink has no record. Raises SinkError if the record belongs to
    another query."""
    committed = admin.list_group_offsets(ids.group, [PROGRESS_PARTITION]).get(PROGRESS_PARTITION)
    if committed is None:
        return None
    try:
        owner = json.loads(committed.metadata)["query"]
    except (ValueError, TypeError, KeyError) as error:
        raise SinkError(
            f"group {ids.group!r} has a committed offset in {PROGRESS_PARTITION} that no sink has written: {committed}"
        ) from error
    if owner != query_id:
        raise SinkError(
            f"sinkId {ids.name!r} belongs to query {owner}, and this is query {query_id}, with batch numbers of "
            f"its own; choose another sinkId, or, if query {owner} will not run again, delete the group {ids.group!r}"
        )
    return committed.offset
