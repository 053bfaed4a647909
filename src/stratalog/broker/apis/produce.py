"""Produce (key 0), versions 0-13 advertised, 3-13 served.

Record bytes are appended from where they were received. acks 0, 1 and all; on one node all is as 1, except that
min.insync.replicas above 1 can't be met. Versions 0-2 carry message formats that Kafka 4 does not take either: each of
their partitions is answered with UNSUPPORTED_VERSION. One batch a partition, as Kafka asks for. Nobody but the broker
writes to internal topics.

A batch that can't be appended at once, as it inflates to much, has to be compressed again, or waits for a roll or a
flush, is worked on by threads; its connection waits, and nobody else. A batch with records that the topic refuses (no
key where it is compacted, a timestamp out of range) is refused as a whole; from version 8 on record_errors names them,
a thousand a request at most.

A transactional batch must belong to a transaction that its producer has open; from version 12 on it adds its partition
to it. Else: TRANSACTIONAL_ID_AUTHORIZATION_FAILED where the request names no transactional id,
INVALID_PRODUCER_ID_MAPPING where that one has another producer, INVALID_PRODUCER_EPOCH where a newer instance has taken
over, TRANSACTION_ABORTABLE (before version 11 INVALID_TXN_STATE) where the partition is not part of it.
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
from stratalog.broker.transactions.admission import Admission, TransactionOperation
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import Clock
from stratalog.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
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
_FAULTS: dict[int, tuple[ErrorCode, str]] = {
    _wire.NO_RECORDS: (ErrorCode.invalid_record, "there are no records"),
    _wire.TOO_SMALL: (ErrorCode.corrupt_message, "there are fewer bytes than a batch has"),
    _wire.OLD_MAGIC: (ErrorCode.invalid_record, "Produce carries batches of magic 2; these are older messages"),
    _wire.UNKNOWN_MAGIC: (ErrorCode.corrupt_message, "the batch's magic is not known; 2 is"),
    _wire.SEVERAL_BATCHES: (ErrorCode.invalid_record, "there must be exactly one batch for a partition"),
    _wire.ZSTD_TOO_EARLY: (ErrorCode.unsupported_compression_type, "zstd comes with Produce v7"),
}
_WITHOUT_LOG_START = (  # errors of which Kafka says no more than that nothing was appended
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.kafka_storage_error,
)
_FEW = 8  # partitions; their appends take too little time to be measured
_SECONDS_AT_ONCE = 0.005  # for one request, before others have their turn
_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_ASK_AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class _Turn:
    """A request's time on the event loop: appends to a thousand partitions would keep everybody else waiting."""

    __slots__ = ("_clock", "_ends_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + _SECONDS_AT_ONCE

    def is_over(self) -> bool:
        return self._clock.monotonic() > self._ends_at


_Request = tuple[int, int, int, str | None, ProducedPartition | None, int]
"""Version, correlation id, acks, transactional id, why all of it is refused, number of partitions. A plain tuple, as
one is made for each request."""

Answers = list[tuple[str | bytes, list[ProducedPartition]]]
Asked = tuple[str | bytes, "ProducePartition", list[ProducedPartition]]
"""A topic, one partition's batch, and where its answer goes."""


class ProduceApi:
    def __init__(
        self,
        topics: TopicRegistry,
        counters: Counters,
        admission: Admission,
        worker_threads: WorkerThreads,
        clock: Clock,
    ) -> None:
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
        """The framed response; None where the client wants none (acks=0)."""
        transactional_id, acks, _, topics = _wire.parse_produce(frame, position, version)
        partitions = len(topics[0][1]) if len(topics) == 1 else sum([len(parts) for _, parts in topics])
        refusal = None if version >= _OLDEST_SERVED and -1 <= acks <= 1 else _refusal(version, acks)
        request = (version, correlation_id, acks, transactional_id, refusal, partitions)
        turn = _Turn(self._clock) if partitions > _FEW else None
        answers: Answers = []
        try:
            for topic, parts in topics:
                produced: list[ProducedPartition] = []
                answers.append((topic, produced))
                for part in parts:
                    if turn is not None and turn.is_over():
                        raise WouldWaitError("a large request lets others on")
                    produced.append(self._append(topic, part, frame, request))
        except WouldWaitError:
            # The frame is only lent.
            rest = self._append_rest(_unanswered(topics, answers), memoryview(bytearray(frame)), request, answers)
            return self._later.start(rest, len(frame))
        return self._respond(request, answers)

    def _respond(self, request: _Request, answers: Answers) -> Response:
        if request[2] == 0:  # acks
            error = _first_error(answers)
            if error is not None:  # the only way to tell a client that does not listen
                raise RefusedConnectionError(f"produce with acks=0 failed: {error}")
            return None
        version = request[0]
        body = encode_produce_response(version, answers)
        return [frame_response(request[1], body, flexible=version >= FIRST_FLEXIBLE)]

    # At once

    def _append(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition:
        """Raises WouldWaitError, and nothing has changed."""
        partition = self._check(topic, part, frame, request)
        if isinstance(partition, ProducedPartition):
            return partition
        _, start, end = part
        try:
            appended = partition.append(frame[start:end])
        except StratalogError as error:
            return self._failed(partition, error, request)
        return self._appended(partition, appended, end - start)

    def _check(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> Partition | ProducedPartition:
        """The partition, if the batch may be appended to it as far as its header tells, or the answer."""
        index, start, end = part
        version, _, acks, transactional_id, refusal, _ = request
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

    def _appended(self, partition: Partition, appended: Appended, size: int) -> ProducedPartition:
        base_offset, last_offset, timestamp, _ = appended
        self._counters.produced(last_offset - base_offset + 1, size)
        log = partition.log
        stamped = log.config.message_timestamp_type == "LogAppendTime"
        return ProducedPartition(partition.index, 0, base_offset, timestamp if stamped else -1, log.log_start_offset)

    def _failed(self, partition: Partition, error: StratalogError, request: _Request) -> ProducedPartition:
        index, most_named = partition.index, MOST_REFUSED_NAMED // request[-1]
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

    async def _append_rest(self, rest: list[Asked], frame: memoryview, request: _Request, answers: Answers) -> Response:
        turn = _Turn(self._clock)
        for topic, part, produced in rest:
            if turn.is_over():
                await asyncio.sleep(0)  # others are served meanwhile
                turn = _Turn(self._clock)
            produced.append(
                self._append_if_quick(topic, part, frame, request)
                or await self._append_later(topic, part, frame, request)
            )
        return self._respond(request, answers)

    def _append_if_quick(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition | None:
        """In a method of its own, as others here: an exception that is being handled holds on to what was inflated."""
        try:
            return self._append(topic, part, frame, request)
        except WouldWaitError:
            return None

    async def _append_later(
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, request: _Request
    ) -> ProducedPartition:
        """Threads check the batch, roll and flush. The append itself is done here, in one turn with the look whether
        the batch may be appended: the topic may be deleted and the transaction ended meanwhile."""
        _, start, end = part
        partition = self._check(topic, part, frame, request)
        if isinstance(partition, ProducedPartition):
            return partition
        try:
            log = partition.log
            prepared = await self._prepare(log, frame[start:end])
            while not isinstance(partition := self._check(topic, part, frame, request), ProducedPartition):
                if partition.log is not log:  # another topic of that name, with other rules
                    log = partition.log
                    prepared = await self._prepare(log, frame[start:end])
                    continue
                appended = _append_if_ready(partition, prepared)
                if appended is None:
                    await self._worker_threads.wait_for_disk(partial(log.get_ready, prepared))
                    continue
                if log.flush_is_due():
                    await self._worker_threads.wait_for_disk(log.flush)
                return self._appended(partition, appended, end - start)
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
        """Whether a transactional batch may not be appended; it is made part of the transaction where it may."""
        index = partition.index
        if transactional_id is None:
            said = "a transactional batch in a request without a transactional id"
            return _failed(index, ErrorCode.transactional_id_authorization_failed, said)
        producer_id, epoch, base_sequence = _PRODUCER.unpack_from(frame, start + PRODUCER_ID_POSITION)
        operation = TransactionOperation.of_produce(version)
        error = self._admission.admit(transactional_id, partition, ProducerIdAndEpoch(producer_id, epoch), operation)
        if error is ErrorCode.none:
            if (
                operation is TransactionOperation.ADD
                and base_sequence != 0
                and partition.log.producers.get(producer_id) is None
            ):
                said = f"producer {producer_id} is not known here, and begins with sequence {base_sequence}"
                return _failed(index, ErrorCode.out_of_order_sequence_number, said)
            return None
        said = f"transactional id {transactional_id!r}: {error.name.upper()} for {partition.topic}-{index}"
        if error in _ASK_AGAIN and not (
            error is ErrorCode.concurrent_transactions and operation is TransactionOperation.ADD
        ):  # which older clients would not ask again after; this is one that they do
            error = ErrorCode.not_enough_replicas
        self._counters.refused_produce += 1
        return _failed(index, error, said)

    def _find(self, topic: str | bytes, index: int) -> Partition | ProducedPartition:
        """The partition, or what to answer where there is none."""
        if isinstance(topic, bytes):
            known = self._topics.by_id_bytes(topic)
            if known is None:
                return _failed(index, ErrorCode.unknown_topic_id, "no topic has this id")
            topic = known.name
        partition = self._topics.partition(topic, index)
        if partition is None:
            return _failed(index, ErrorCode.unknown_topic_or_partition, f"{topic}-{index} does not exist")
        return partition


def _unanswered(topics: list[tuple[str | bytes, list[ProducePartition]]], answers: Answers) -> list[Asked]:
    """What is left of a request; `answers` gets a place for each of its topics."""
    answers += [(topic, []) for topic, _ in topics[len(answers) :]]
    return [
        (topic, part, produced)
        for (topic, parts), (_, produced) in zip(topics, answers, strict=True)
        for part in parts[len(produced) :]
    ]


def _append_if_ready(partition: Partition, prepared: PreparedBatches) -> Appended | None:
    try:
        return partition.append_prepared(prepared)
    except WouldWaitError:
        return None


def _refusal(version: int, acks: int) -> ProducedPartition:
    """Of a whole request with this version or these acks."""
    if version < _OLDEST_SERVED:
        return _failed(0, ErrorCode.unsupported_version, f"Produce v{version} is too old; 3 to 13 are served")
    return _failed(0, ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")


def _check_partition(partition: Partition, acks: int) -> ProducedPartition | None:
    index = partition.index
    if partition.is_internal:
        return _failed(index, ErrorCode.invalid_topic_exception, f"{partition.topic} is written to by the broker alone")
    if acks == -1 and partition.log.config.min_insync_replicas > 1:
        wanted = partition.log.config.min_insync_replicas
        return _failed(index, ErrorCode.not_enough_replicas, f"min.insync.replicas is {wanted}, there is one replica")
    return None


def _failed(index: int, code: int, message: str) -> ProducedPartition:
    return ProducedPartition(index, int(code), error_message=message)


def _first_error(answers: Answers) -> str | None:
    return next((one.error_message for _, produced in answers for one in produced if one.error_code), None)
