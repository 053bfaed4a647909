"""Produce (key 0), versions 0-13 advertised, 3-13 served.

Records are appended from the buffer that received them. acks may be 0, 1 and all. With one replica, all means the same
as 1, but min.insync.replicas above 1 can't be met. In a cluster, acks=all is answered when every in-sync replica has
the records, or with REQUEST_TIMED_OUT after the request's timeout; the records may be replicated later all the same.
Versions 0-2 carry message formats that Kafka 4 does not accept either: each of their partitions gets
UNSUPPORTED_VERSION. A partition must have exactly one batch, as in Kafka. Only the broker writes to internal topics.

In a cluster, a partition that another broker leads gets NOT_LEADER_OR_FOLLOWER. From version 10 on, the response names
the leader and its address.

Threads work on a batch that can't be appended at once, because its decompressed size is large, it has to be compressed
again, or it waits for a roll or a flush. Only its connection waits. A batch with records that the topic refuses
(without a key in a compacted topic, or with a timestamp out of range) is refused as a whole. From version 8 on,
record_errors lists these records, at most a thousand in a response.

A transactional batch must belong to an open transaction of its producer; from version 12 on, the batch adds its
partition to the transaction. Otherwise the error is TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the request has no
transactional id, INVALID_PRODUCER_ID_MAPPING if the transactional id has another producer id, INVALID_PRODUCER_EPOCH if
a newer producer has the transactional id, and TRANSACTION_ABORTABLE (before version 11 INVALID_TXN_STATE) if the
partition is not part of the transaction.

A new producer id is refused with POLICY_VIOLATION if the partition has reached
stratalog.max.producer.ids.per.partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING

from stratalog.broker.counters import Counters
from stratalog.broker.detached_requests import DetachedRequests
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.replication.acknowledgements import PendingReplication, Results
from stratalog.broker.replication.partition import ReplicatedPartition
from stratalog.broker.transactions.admission import Admission, TransactionOperation
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import Clock
from stratalog.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    NotLeaderError,
    StorageError,
    StratalogError,
    UnsupportedMagicError,
)
from stratalog.net.connection import RefusedConnectionError
from stratalog.net.response_queue import Response
from stratalog.protocol import _wire
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.frames import frame_response
from stratalog.protocol.produce import FIRST_FLEXIBLE, ProducedPartition, encode_produce_response
from stratalog.records.format import PRODUCER_ID_POSITION
from stratalog.records.validation import MAX_HELD_DECOMPRESSED
from stratalog.storage.appending import MOST_REFUSED_NAMED, Appended, PreparedBatches, WouldWaitError
from stratalog.storage.log import Log

if TYPE_CHECKING:
    from stratalog.protocol._wire import ProducePartition

_OLDEST_SERVED = 3
_ACKS_ALL = -1
_FAULTS: dict[int, tuple[ErrorCode, str]] = {
    _wire.NO_RECORDS: (ErrorCode.invalid_record, "there are no records"),
    _wire.TOO_SMALL: (ErrorCode.corrupt_message, "the records have fewer bytes than the header of a batch"),
    _wire.OLD_MAGIC: (
        ErrorCode.invalid_record,
        "the records have an old format; Produce accepts batches of magic 2 only",
    ),
    _wire.UNKNOWN_MAGIC: (ErrorCode.corrupt_message, "the batch's magic is unknown; it must be 2"),
    _wire.SEVERAL_BATCHES: (ErrorCode.invalid_record, "the partition has several batches; it must have exactly one"),
    _wire.ZSTD_TOO_EARLY: (ErrorCode.unsupported_compression_type, "zstd needs Produce v7 or newer"),
}
_WITHOUT_LOG_START = (  # errors for which Kafka's response does not have the log start offset
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.kafka_storage_error,
)
_FEW = 8  # partitions, whose appends take so little time that it is not measured
_SECONDS_AT_ONCE = 0.005  # of a request, before the event loop serves other requests
_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_RETRIABLE = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class _Turn:
    """Limits a request's time on the event loop: appends to a thousand partitions would block all other clients."""

    __slots__ = ("_clock", "_ends_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + _SECONDS_AT_ONCE

    def is_over(self) -> bool:
        return self._clock.monotonic() > self._ends_at


_Request = tuple[int, int, int, str | None, ProducedPartition | None, int, PendingReplication | None]
"""Version, correlation id, acks, transactional id, the error that refuses the whole request, number of partitions, the
appends that wait for replicas (with acks=all in a cluster). A plain tuple, because it is created for each request."""

RequestedAppend = tuple[str | bytes, "ProducePartition", list[ProducedPartition]]
"""A topic, one partition's batch, and the list for its result."""


class ProduceApi:
    def __init__(
        self,
        topics: TopicRegistry,
        counters: Counters,
        admission: Admission,
        worker_threads: WorkerThreads,
        clock: Clock,
        *,
        has_replicas: bool = False,
    ) -> None:
        """`has_replicas`: the broker belongs to a cluster."""
        self._has_replicas = has_replicas
        self._topics = topics
        self._counters = counters
        self._admission = admission
        self._worker_threads = worker_threads
        self._clock = clock
        self._later = DetachedRequests()

    def close(self) -> None:
        self._later.close()

    def serve(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> Response | Awaitable[Response]:
        """Return the framed response; None if the client expects none (acks=0)."""
        transactional_id, acks, timeout_ms, topics = _wire.parse_produce(frame, position, version)
        partitions = len(topics[0][1]) if len(topics) == 1 else sum([len(parts) for _, parts in topics])
        refusal = None if version >= _OLDEST_SERVED and -1 <= acks <= 1 else _refusal(version, acks)
        pending = PendingReplication(timeout_ms) if self._has_replicas and acks == _ACKS_ALL else None
        request = (version, correlation_id, acks, transactional_id, refusal, partitions, pending)
        turn = _Turn(self._clock) if partitions > _FEW else None
        results: Results = []
        try:
            for topic, parts in topics:
                produced: list[ProducedPartition] = []
                results.append((topic, produced))
                for part in parts:
                    if turn is not None and turn.is_over():
                        raise WouldWaitError("a large request makes way for other requests")
                    produced.append(self._append(topic, part, frame, request))
        except WouldWaitError:
            # A copy, because the frame is valid only during this call.
            rest = self._append_rest(_unfinished(topics, results), memoryview(bytearray(frame)), request, results)
            return self._later.start(rest, len(frame))
        if pending is not None and pending.is_waiting:
            return pending.wait(lambda: self._respond(request, pending.with_errors(results)))
        return self._respond(request, results)

    def _respond(self, request: _Request, results: Results) -> Response:
        if request[2] == 0:  # acks
            error = _first_error(results)
            if error is not None:  # closing the connection is the only way to report it
                raise RefusedConnectionError(f"produce with acks=0 failed: {error}")
            return None
        version = request[0]
        body = encode_produce_response(version, results)
        return [frame_response(request[1], body, flexible=version >= FIRST_FLEXIBLE)]

    # At once

    def _append(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition:
        """Append a batch without waiting. Raises WouldWaitError; then nothing has changed."""
        partition = self._check(topic, part, frame, request)
        if isinstance(partition, ProducedPartition):
            return partition
        _, start, end = part
        try:
            appended = partition.append(frame[start:end])
        except StratalogError as error:
            return self._failed(partition, error, request)
        return self._appended(partition, appended, end - start, request)

    def _check(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> Partition | ProducedPartition:
        """Return the partition if the header of the batch allows to append it there, else the error result."""
        index, start, end = part
        version, _, acks, transactional_id, refusal, _, _ = request
        if refusal is not None:
            return refusal._replace(partition=index)
        partition = self._find(topic, index)
        if isinstance(partition, ProducedPartition):
            return partition
        fault = _wire.batch_fault(frame, start, end, version)
        if fault and fault != _wire.TRANSACTIONAL:
            return _failed(index, *_FAULTS[fault])
        refusal = _check_partition(partition, acks)
        if fault and refusal is None:
            refusal = self._check_transaction(partition, frame, start, version, transactional_id)
        return partition if refusal is None else refusal

    def _appended(self, partition: Partition, appended: Appended, size: int, request: _Request) -> ProducedPartition:
        base_offset, last_offset, timestamp, _ = appended
        self._counters.produced(last_offset - base_offset + 1, size)
        log = partition.log
        stamped = log.config.message_timestamp_type == "LogAppendTime"
        produced = ProducedPartition(
            partition.index, 0, base_offset, timestamp if stamped else -1, log.log_start_offset
        )
        if request[-1] is not None:
            request[-1].add(partition, last_offset + 1, produced)
        return produced

    def _failed(self, partition: Partition, error: StratalogError, request: _Request) -> ProducedPartition:
        index, most_named = partition.index, MOST_REFUSED_NAMED // request[5]
        if isinstance(error, NotLeaderError):
            leader = partition.current_leader() if isinstance(partition, ReplicatedPartition) else None
            return ProducedPartition(index, error.code, error_message=str(error), current_leader=leader)
        if isinstance(error, UnsupportedMagicError):
            return _failed(index, ErrorCode.corrupt_message, str(error))
        if isinstance(error, StorageError):
            self._counters.failed_produce += 1
        else:
            self._counters.refused_produce += 1
        return ProducedPartition(
            index,
            error.code,
            log_start_offset=-1 if error.code in _WITHOUT_LOG_START else partition.log.log_start_offset,
            error_message=str(error),
            record_errors=error.records[:most_named] if isinstance(error, InvalidRecordError) else (),
        )

    # Later

    async def _append_rest(
        self, rest: list[RequestedAppend], frame: memoryview, request: _Request, results: Results
    ) -> Response:
        turn = _Turn(self._clock)
        for topic, part, produced in rest:
            if turn.is_over():
                await asyncio.sleep(0)  # serve other requests
                turn = _Turn(self._clock)
            produced.append(
                self._append_if_quick(topic, part, frame, request)
                or await self._append_later(topic, part, frame, request)
            )
        pending = request[-1]
        if pending is not None and pending.is_waiting:
            return await pending.wait(lambda: self._respond(request, pending.with_errors(results)))
        return self._respond(request, results)

    def _append_if_quick(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition | None:
        """Append a batch, or return None if that would wait. This is a method, like others here, because handling an
        exception keeps the frame's decompressed records in memory."""
        try:
            return self._append(topic, part, frame, request)
        except WouldWaitError:
            return None

    async def _append_later(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition:
        """Append a batch with the help of threads, which check it, roll and flush. The append itself runs here, in one
        step with the check whether the batch may be appended: until then, the topic may be deleted and the transaction
        may end."""
        _, start, end = part
        partition = self._check(topic, part, frame, request)
        if isinstance(partition, ProducedPartition):
            return partition
        try:
            if isinstance(partition, ReplicatedPartition):
                partition.check_leader()  # a follower's log is not for this batch, and may not even be here
            log = partition.log
            prepared = await self._prepare(log, frame[start:end])
            while not isinstance(partition := self._check(topic, part, frame, request), ProducedPartition):
                if partition.log is not log:  # a new topic of the same name may have other rules
                    log = partition.log
                    prepared = await self._prepare(log, frame[start:end])
                    continue
                appended = _append_if_ready(partition, prepared)
                if appended is None:
                    await self._worker_threads.wait_for_disk(partial(log.get_ready, prepared))
                    continue
                # Before anything waits: if this broker stops to lead meanwhile, acks=all must fail.
                produced = self._appended(partition, appended, end - start, request)
                if log.flush_is_due():
                    await self._worker_threads.wait_for_disk(log.flush)
                return produced
        except StratalogError as error:
            assert isinstance(partition, Partition)
            return self._failed(partition, error, request)
        return partition

    async def _prepare(self, log: Log, data: memoryview) -> PreparedBatches:
        try:
            return await self._worker_threads.check(partial(log.prepare, data, max_decompressed=MAX_HELD_DECOMPRESSED))
        except DecompressedTooLargeError:
            pass
        return await self._worker_threads.check_large(partial(log.prepare, data))

    def _check_transaction(
        self, partition: Partition, frame: memoryview, start: int, version: int, transactional_id: str | None
    ) -> ProducedPartition | None:
        """Return an error result if a transactional batch may not be appended; else its partition is part of the
        transaction now."""
        index = partition.index
        if transactional_id is None:
            message = "the batch is transactional, but the request has no transactional id"
            return _failed(index, ErrorCode.transactional_id_authorization_failed, message)
        producer_id, epoch, base_sequence = _PRODUCER.unpack_from(frame, start + PRODUCER_ID_POSITION)
        operation = TransactionOperation.of_produce(version)
        error = self._admission.admit(transactional_id, partition, ProducerIdAndEpoch(producer_id, epoch), operation)
        if error is ErrorCode.none:
            if (
                operation is TransactionOperation.ADD
                and base_sequence != 0
                and partition.log.producers.get(producer_id) is None
            ):
                message = f"producer {producer_id} is new here and begins with sequence {base_sequence}, not 0"
                return _failed(index, ErrorCode.out_of_order_sequence_number, message)
            return None
        message = f"transactional id {transactional_id!r}: {error.name.upper()} for {partition.topic}-{index}"
        if error in _RETRIABLE and not (
            error is ErrorCode.concurrent_transactions and operation is TransactionOperation.ADD
        ):
            error = (
                ErrorCode.not_enough_replicas
            )  # older clients don't retry after the other errors, but after this one
        self._counters.refused_produce += 1
        return _failed(index, error, message)

    def _find(self, topic: str | bytes, index: int) -> Partition | ProducedPartition:
        """Return the partition, or the error result if it does not exist."""
        if isinstance(topic, bytes):
            known = self._topics.by_id_bytes(topic)
            if known is None:
                return _failed(index, ErrorCode.unknown_topic_id, "no topic has this topic id")
            topic = known.name
        partition = self._topics.partition(topic, index)
        if partition is None:
            return _failed(index, ErrorCode.unknown_topic_or_partition, f"{topic}-{index} does not exist")
        return partition


def _unfinished(topics: list[tuple[str | bytes, list[ProducePartition]]], results: Results) -> list[RequestedAppend]:
    """Return the appends of a request that have no result yet, and complete the topics of `results`."""
    results += [(topic, []) for topic, _ in topics[len(results) :]]
    return [
        (topic, part, produced)
        for (topic, parts), (_, produced) in zip(topics, results, strict=True)
        for part in parts[len(produced) :]
    ]


def _append_if_ready(partition: Partition, prepared: PreparedBatches) -> Appended | None:
    try:
        return partition.append_prepared(prepared)
    except WouldWaitError:
        return None


def _refusal(version: int, acks: int) -> ProducedPartition:
    """Return the error result of every partition for a version or acks that are not served."""
    if version < _OLDEST_SERVED:
        return _failed(0, ErrorCode.unsupported_version, f"Produce v{version} is too old; 3 to 13 are served")
    return _failed(0, ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")


def _check_partition(partition: Partition, acks: int) -> ProducedPartition | None:
    index = partition.index
    if partition.is_internal:
        return _failed(index, ErrorCode.invalid_topic_exception, f"only the broker writes to {partition.topic}")
    if acks == _ACKS_ALL and partition.required_in_sync > partition.in_sync_count and not partition.unavailable:
        required, in_sync = partition.required_in_sync, partition.in_sync_count
        replicas = "1 replica is" if in_sync == 1 else f"{in_sync} replicas are"
        message = f"min.insync.replicas is {required}, but {replicas} in sync"
        return _failed(index, ErrorCode.not_enough_replicas, message)
    return None


def _failed(index: int, code: int, message: str) -> ProducedPartition:
    return ProducedPartition(index, int(code), error_message=message)


def _first_error(results: Results) -> str | None:
    return next((result.error_message for _, produced in results for result in produced if result.error_code), None)
