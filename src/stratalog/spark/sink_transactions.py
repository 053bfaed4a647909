"""The driver's side of a sink: what its tasks have prepared is ended by one append, all of it or none.

A batch write is decided by that append alone. A stream's also holds, in a transaction of the sink's own, the committed
offset of the sink's group: the number of the batch that is next. So what was written and that it was written are one
fact, and a batch that Spark hands over again, after a death at any moment, is known to be there. The sink's own
transactional id belongs to one driver, the last that claimed it: one that was thought dead can't decide any more.
docs/decisions/013-one-append-decides.md has the proof.
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

MOST_TRANSACTIONS = 9_999  # that a broker ends at once, beside the sink's own
# A partition that is there whenever a transaction is, and that nobody deletes. Its number is all that is used of it.
NOTED_AT = TopicPartition("__transaction_state", 0)


class SinkError(StratalogError):
    """What was written can't be made to count. Nothing of it does."""


# What the broker can


_can: dict[str, bool] = {}
_can_lock = threading.Lock()


def resolved(options: WriteOptions) -> WriteOptions:
    """With the delivery that it will be, by asking the broker once a process. Raises SinkError, ClientError."""
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return options
    if _can_end_together(options):
        return options.with_delivery(Delivery.EXACTLY_ONCE)
    said = f"{options.servers} can't end transactions together, which takes a Stratalog broker"
    if options.delivery is Delivery.EXACTLY_ONCE:
        raise SinkError(f"delivery is exactly-once, and {said}; set it to at-least-once, or leave it out")
    logger.warning("%s: a task that is done again writes its rows again (delivery is at-least-once)", said)
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
                    _can[options.servers] = False  # an older one, which does not know the method
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
    """Abort what attempts that lost or died have left open, and forget all ids. A task that still runs, because Spark
    has not killed it yet, can begin nothing from here on. The rows that count don't depend on any of this."""
    try:
        aborted = admin.abort_transactions(ids.prefix, close=True)
        admin.forget_transactions(dict.fromkeys([*(one.transactional_id for one in prepared), *aborted]))
    except ClientError as error:
        logger.warning("transactions of %s could not be cleaned up, and expire by themselves: %s", ids.prefix, error)


def check_count(prepared: Sequence[PreparedTransaction]) -> None:
    if len(prepared) > MOST_TRANSACTIONS:
        raise SinkError(
            f"{len(prepared)} transactions hold the rows, and {MOST_TRANSACTIONS} can be ended together: coalesce() to "
            f"fewer tasks, raise kafka.transaction.timeout.ms if they take long, or set delivery to at-least-once"
        )


# Streams


class StreamSink:
    """A driver's hold on a sink, from its first commit on. One thread at a time."""

    def __init__(self, options: WriteOptions, ids: SinkIds, query_id: str) -> None:
        """Claims the sink: an older driver can't decide from now on. What it has decided is known from here."""
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
        """Whether the batch is written."""
        return self.next_batch is not None and batch_id < self.next_batch

    def commit(self, batch_id: int, prepared: Sequence[PreparedTransaction]) -> None:
        """The batch counts when this returns: by this call, or by an earlier one, and then what was written again is
        aborted."""
        if self.has(batch_id):
            logger.warning("batch %d of %s is written already, and not written again", batch_id, self._ids.own)
            abort_each(self._admin, prepared)
            return
        if self.next_batch is None and batch_id > 0:
            logger.info(
                "%s has no note of any batch, and batch %d is not the first: those before had no rows, the query wrote "
                "elsewhere, or the note is older than the broker's offsets.retention.minutes",
                self._ids.own,
                batch_id,
            )
        check_count(prepared)
        own = self._note(batch_id)
        self._decide([own, *prepared])
        self._go_on()
        self.next_batch = batch_id + 1
        self._clean_up()

    def _note(self, batch_id: int) -> PreparedTransaction:
        """In the sink's own transaction: the batch behind this one is next."""
        metadata = json.dumps({"query": self._query_id})
        self._producer.begin()
        self._producer.send_offsets_to_transaction(
            {NOTED_AT: OffsetAndMetadata(batch_id + 1, metadata)}, GroupMetadata(self._ids.group, -1, ""), self._seconds
        )
        return self._producer.prepare_transaction(self._options.decision_timeout_ms, self._seconds)

    def _decide(self, prepared: Sequence[PreparedTransaction]) -> None:
        """The append. Asked again where the answer is lost, for as long as a record may take."""
        self._admin.finish_transactions(prepared, commit=True, timeout=self._seconds)

    def _go_on(self) -> None:
        """A commit that has happened already is asked for again, so that the producer learns its next epoch."""
        self._producer.commit(self._seconds)

    def _clean_up(self) -> None:
        """No task of this sink runs now but such as lost, or belong to another driver. Nothing depends on it."""
        try:
            self._admin.abort_transactions(self._ids.prefix)
        except ClientError as error:
            logger.warning("left-over transactions of %s are aborted later: %s", self._ids.prefix, error)


def abort_each(admin: Admin, prepared: Sequence[PreparedTransaction]) -> None:
    """By who they are, as another driver's tasks may have the same ids by now. What was ended before stays as it is."""
    for one in prepared:
        try:
            admin.finish_transactions([one], commit=False)
        except BrokerError as error:
            logger.info("the transaction of %s is not aborted: %s", one.transactional_id, error)


def next_batch(admin: Admin, ids: SinkIds, query_id: str) -> int | None:
    """What the sink's note says; None: there is none. Raises SinkError where it is another query's."""
    noted = admin.list_group_offsets(ids.group, [NOTED_AT]).get(NOTED_AT)
    if noted is None:
        return None
    try:
        owner = json.loads(noted.metadata)["query"]
    except (ValueError, TypeError, KeyError) as error:
        raise SinkError(f"group {ids.group!r} has an offset in {NOTED_AT} that no sink has written: {noted}") from error
    if owner != query_id:
        raise SinkError(
            f"sinkId {ids.name!r} is that of query {owner}, and this is {query_id}, whose batches are numbered anew: "
            f"take another sinkId, or, if the other is gone for good, delete the group {ids.group!r}"
        )
    return noted.offset
