"""Completes the batches that a producer has sent: acknowledges them, sends them again, splits them, or fails them.

Every batch is completed: by a response, by an error that a retry can't mend, or by delivery.timeout.ms. A batch keeps
its sequence number however often it is sent, so that a broker recognizes duplicates. A batch that is sent again goes
alone, before all later batches of its partition. All methods run in the I/O thread.
"""

from __future__ import annotations

import asyncio
import logging

from stratalog.client._accumulator import Accumulator
from stratalog.client._batch import Batch
from stratalog.client._direct import InFlightRequests
from stratalog.client._queues import PartitionQueue
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import (
    REFRESHES_METADATA,
    BrokerUnreachableError,
    ClientError,
    DeliveryTimeoutError,
    RecordTooLargeError,
    error_of,
)
from stratalog.client.producer_ids import BatchIds
from stratalog.client.producer_settings import ProducerSettings
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.format import HEADER_SIZE
from stratalog.records.reader import read_records

logger = logging.getLogger("stratalog.client.producer")

NEVER = 1e300  # the accumulator's value for no time

# The broker has not written the batch, and will not write it under this producer epoch.
_WANTS_NEW_EPOCH = {int(ErrorCode.unknown_producer_id), int(ErrorCode.invalid_producer_epoch)}
_TOO_LARGE = {int(ErrorCode.message_too_large), int(ErrorCode.record_list_too_large)}
_DUPLICATE = int(ErrorCode.duplicate_sequence_number)
_OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_OLD_EPOCH = int(ErrorCode.invalid_producer_epoch)
_BUSY = int(ErrorCode.concurrent_transactions)
_SEQUENCES = 2**31
REPORT_REFUSALS_AFTER = 5.0  # seconds since the first record of a batch that is refused again and again
_REPORT_AGAIN_AFTER = 60.0
_BUSY_MS = 10  # the coordinator is still ending the previous transaction, which takes milliseconds


class BatchCompletion:
    """Decides what happens to a batch after its request, and completes it."""

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        settings: ProducerSettings,
        ids: BatchIds,
        loop: asyncio.AbstractEventLoop,
        in_flight: InFlightRequests,
    ) -> None:
        self._accumulator = accumulator
        self._cluster = cluster
        self._settings = settings
        self._ids = ids
        self._loop = loop
        self._in_flight = in_flight
        self._delivery_timeout = settings.delivery_timeout_ms / 1000
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._next_report = 0.0
        self._busy_backoff = Backoff(min(_BUSY_MS, settings.retry_backoff_ms), settings.retry_backoff_ms)

    def acknowledge(self, batch: Batch, base_offset: int, append_time: int) -> None:
        batch.queue.acknowledged(batch)
        batch.queue.retry_at = 0.0
        self._accumulator.release(batch)
        batch.acknowledge(base_offset, append_time)

    def handle_refusal(self, batch: Batch, code: int, base_offset: int, append_time: int, message: str | None) -> None:
        """Complete or retry a batch that its broker has refused with this error code."""
        queue = batch.queue
        if code == _DUPLICATE:  # the broker has written it in an earlier attempt
            self.acknowledge(batch, base_offset, append_time)
            return
        if code in _TOO_LARGE and batch.record_count > 1 and not batch.is_done:
            self._split(batch)
            return
        error = error_of(code, message, about=partition_name(batch))
        if isinstance(error, RecordTooLargeError):
            error.size = batch.size
        if code in REFRESHES_METADATA:
            self._cluster.refresh_soon()
        if batch.base_sequence >= 0:
            if code == _OUT_OF_ORDER and not queue.is_next(batch):
                self.retry(batch, error)  # an earlier batch is missing, and will be sent first
                return
            if code == _OLD_EPOCH and self._ids.defers_failure(batch, error):
                return
            if self._ids.bumps_epoch_after_gaps and (code == _OUT_OF_ORDER or code in _WANTS_NEW_EPOCH):
                queue.needs_new_epoch = True
                self.retry(batch, error)
                return
        if error.is_retriable:
            self._report_refusal(batch, error)
            self.retry(batch, error, self._busy_backoff if code == _BUSY else self._backoff)
        else:
            self.fail(batch, error)

    def retry(self, batch: Batch, error: ClientError, backoff: Backoff | None = None) -> None:
        """Send the batch again after a back-off; fail it if its attempts or its time are used up."""
        now = self._loop.time()
        batch.last_error = error
        if batch.is_done or batch.attempts > self._settings.retries:
            self.fail(batch, error)
        elif now >= batch.created + self._delivery_timeout:
            self.fail(batch, self._timeout_error(batch))
        elif self._ids.lost is not None:
            self.fail(batch, self._ids.lost)
        else:
            batch.queue.put_back([batch])
            batch.queue.retry_at = now + (backoff or self._backoff).seconds(batch.attempts)
            self._accumulator.list_again(batch.queue)

    def _report_refusal(self, batch: Batch, error: ClientError) -> None:
        """Log that a broker has refused a batch for some seconds, because delivery.timeout.ms may be minutes away."""
        now = self._loop.time()
        if batch.attempts > 1 and now >= max(batch.created + REPORT_REFUSALS_AFTER, self._next_report):
            self._next_report = now + _REPORT_AGAIN_AFTER
            logger.warning(
                "the broker refuses records; they are sent again until delivery.timeout.ms = %d is over. "
                "The last error: %s",
                self._settings.delivery_timeout_ms,
                error.problem,
            )

    def fail(self, batch: Batch, error: ClientError) -> None:
        """Fail a batch that was sent. Its sequence numbers are missing now, unless the broker has written it."""
        batch.queue.failed()
        batch.queue.needs_new_epoch = batch.queue.needs_new_epoch or batch.base_sequence >= 0
        self._accumulator.release(batch)
        batch.fail(error)
        self._ids.failed(batch, error)

    def _split(self, batch: Batch) -> None:
        parts = split_batch(batch)
        logger.debug(
            "%s: a batch of %d records is too large for the broker; split", partition_name(batch), batch.record_count
        )
        batch.queue.put_back(parts)
        self._accumulator.replace(batch, parts)
        batch.split_into(parts)

    # delivery.timeout.ms

    def expire_waiting(self, queue: PartitionQueue, now: float) -> bool:
        """Fail the queue's batches that have waited for too long. Return whether there were any."""
        has_expired = False
        while (first := queue.first) is not None and first.created + self._delivery_timeout <= now:
            batch = queue.drop_head()
            queue.needs_new_epoch = queue.needs_new_epoch or batch.base_sequence >= 0
            self._accumulator.release(batch)
            batch.fail(error := self._timeout_error(batch))
            self._ids.failed(batch, error)
            has_expired = True
        return has_expired

    def expire_in_flight(self, now: float) -> None:
        """Fail batches in flight that have taken too long. Their memory is released with the response, or when the
        connection closes."""
        self._in_flight.expires_at = NEVER
        for request in self._in_flight.requests:
            for batch in request.batches:
                due = batch.created + self._delivery_timeout
                if due <= now:
                    if not batch.is_done:
                        batch.fail(error := self._timeout_error(batch))
                        self._ids.failed(batch, error)
                elif due < self._in_flight.expires_at:
                    self._in_flight.expires_at = due

    def _timeout_error(self, batch: Batch) -> DeliveryTimeoutError:
        if not batch.attempts:
            fate = "they were never sent"
        else:
            fate = f"they were sent {batch.attempts} times and may be in the log"
        reason = batch.last_error or self._cluster.last_failure
        if reason is None:
            reason = BrokerUnreachableError(
                "the broker accepts records more slowly than they are sent, or does not respond"
            )
        problem, advice = (reason.problem, reason.advice) if isinstance(reason, ClientError) else (str(reason), "")
        error = DeliveryTimeoutError(
            f"{partition_name(batch)}: {batch.record_count} records were not acknowledged within delivery.timeout.ms = "
            f"{self._settings.delivery_timeout_ms}; {fate}. The last error: {problem}",
            advice,
        )
        error.__cause__ = reason
        return error


def partition_name(batch: Batch) -> str:
    return f"{batch.queue.topic}-{batch.queue.partition}"


def split_batch(whole: Batch) -> list[Batch]:
    """Split a sealed batch into parts of about half its size, as the Java client does. Each part has at least one
    record. The parts keep the sequence numbers, the creation time and the order of the batch, so nothing else changes
    for the broker and for threads that wait for a record."""
    records = read_records(whole.data, check_crc=False)
    sizes = [
        len(record.value or b"") + len(record.key or b"") + _header_bytes(record.headers) + 16 for record in records
    ]
    half = max(sum(sizes) // 2, 1)
    parts: list[Batch] = []
    part: Batch | None = None
    filled = 0
    for index, (record, size) in enumerate(zip(records, sizes, strict=True)):
        if part is None or filled + size > half:
            part = Batch(
                whole.queue, whole.number, HEADER_SIZE + min(half, size * 2), whole.start + index, whole.created
            )
            part.attempts = whole.attempts
            if whole.base_sequence >= 0:
                sequence = (whole.base_sequence + index) % _SEQUENCES
                part.number_records(whole.producer_id, whole.producer_epoch, sequence)
            parts.append(part)
            filled = 0
        part.add(record.value, record.key, record.headers, record.timestamp)
        filled += size
    return parts


def _header_bytes(headers: tuple[tuple[str, bytes | None], ...]) -> int:
    return sum(len(key) + len(value or b"") + 4 for key, value in headers)
