"""Produce (key 0), versions 0-13 advertised, 3-13 served.

Record bytes are appended from where they were received. acks 0, 1 and all; on one node all is as 1, except that
min.insync.replicas above 1 can't be met. Versions 0-2 carry message formats that Kafka 4 does not take either: each of
their partitions is answered with UNSUPPORTED_VERSION. One batch a partition, as Kafka asks for. Nobody but the broker
writes to internal topics.

A transactional batch must belong to a transaction that its producer has open; from version 12 on it adds its partition
to it. Else: TRANSACTIONAL_ID_AUTHORIZATION_FAILED where the request names no transactional id,
INVALID_PRODUCER_ID_MAPPING where that one has another producer, INVALID_PRODUCER_EPOCH where a newer instance has taken
over, TRANSACTION_ABORTABLE (before version 11 INVALID_TXN_STATE) where the partition is not part of it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from stratalog.broker.counters import Counters
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.transactions.admission import Admission, Operation
from stratalog.broker.transactions.state import Identity
from stratalog.errors import StorageError, StratalogError, UnsupportedMagicError
from stratalog.net.connection import RefusedConnectionError
from stratalog.protocol import _wire
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import FIRST_FLEXIBLE, ProducedPartition, encode_produce_response
from stratalog.protocol.responses import frame_response

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
_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT = 43
_ASK_AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class ProduceApi:
    def __init__(self, topics: TopicRegistry, counters: Counters, admission: Admission) -> None:
        self._topics = topics
        self._counters = counters
        self._admission = admission

    def serve(self, frame: memoryview, position: int, version: int, correlation_id: int) -> bytes | None:
        """The framed response; None where the client wants none (acks=0)."""
        transactional_id, acks, _, topics = _wire.parse_produce(frame, position, version)
        refusal = _refusal(version, acks)
        answers = []
        failed = False
        for topic, parts in topics:
            produced = []
            for part in parts:
                one = (
                    refusal._replace(partition=part[0])
                    if refusal
                    else self._append(topic, part, frame, version, acks, transactional_id)
                )
                failed = failed or one.error_code != 0
                produced.append(one)
            answers.append((topic, produced))
        if acks == 0:
            if failed:  # the only way to tell a client that does not listen
                raise RefusedConnectionError(f"produce with acks=0 failed: {_first_error(answers)}")
            return None
        body = encode_produce_response(version, answers)
        return frame_response(correlation_id, body, flexible=version >= FIRST_FLEXIBLE)

    def _append(
        self,
        topic: str | bytes,
        part: ProducePartition,
        frame: memoryview,
        version: int,
        acks: int,
        transactional_id: str | None,
    ) -> ProducedPartition:
        index, start, end = part
        partition = self._find(topic, index)
        if isinstance(partition, ProducedPartition):
            return partition
        fault = _wire.batch_fault(frame, start, end, version)
        if fault and fault != _wire.TRANSACTIONAL:
            return _failed(index, *_FAULTS[fault])
        refusal = _check_partition(partition, acks)
        if fault and refusal is None:
            refusal = self._check_transaction(partition, frame, start, version, transactional_id)
        if refusal is not None:
            return refusal
        try:
            base_offset, last_offset, timestamp, _ = partition.append(frame[start:end])
        except UnsupportedMagicError as error:
            return _failed(index, ErrorCode.corrupt_message, str(error))
        except StorageError as error:
            self._counters.failed_produce += 1
            return _failed(index, error.code, str(error))
        except StratalogError as error:
            self._counters.refused_produce += 1
            return _failed(index, error.code, str(error))
        self._counters.produced(last_offset - base_offset + 1, end - start)
        log = partition.log
        stamped = log.config.message_timestamp_type == "LogAppendTime"
        return ProducedPartition(index, 0, base_offset, timestamp if stamped else -1, log.log_start_offset)

    def _check_transaction(
        self, partition: Partition, frame: memoryview, start: int, version: int, transactional_id: str | None
    ) -> ProducedPartition | None:
        """Whether a transactional batch may not be appended; it is made part of the transaction where it may."""
        index = partition.index
        if transactional_id is None:
            said = "a transactional batch in a request without a transactional id"
            return _failed(index, ErrorCode.transactional_id_authorization_failed, said)
        producer_id, epoch, base_sequence = _PRODUCER.unpack_from(frame, start + _PRODUCER_AT)
        operation = Operation.of_produce(version)
        error = self._admission.admit(transactional_id, partition, Identity(producer_id, epoch), operation)
        if error is ErrorCode.none:
            if operation is Operation.ADD and base_sequence != 0 and partition.log.producers.get(producer_id) is None:
                said = f"producer {producer_id} is not known here, and begins with sequence {base_sequence}"
                return _failed(index, ErrorCode.out_of_order_sequence_number, said)
            return None
        said = f"transactional id {transactional_id!r}: {error.name.upper()} for {partition.topic}-{index}"
        if error in _ASK_AGAIN and not (
            error is ErrorCode.concurrent_transactions and operation is Operation.ADD
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


def _refusal(version: int, acks: int) -> ProducedPartition | None:
    """Of the whole request."""
    if version < _OLDEST_SERVED:
        return _failed(0, ErrorCode.unsupported_version, f"Produce v{version} is too old; 3 to 13 are served")
    if acks not in (-1, 0, 1):
        return _failed(0, ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")
    return None


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


def _first_error(answers: list[tuple[str | bytes, list[ProducedPartition]]]) -> str | None:
    return next(one.error_message for _, produced in answers for one in produced if one.error_code)
