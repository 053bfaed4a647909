"""Produce (key 0), versions 0-13 advertised, 3-13 served.

Record bytes are appended from where they were received. acks 0, 1 and all; on one node all is as 1, except that
min.insync.replicas above 1 can't be met. Versions 0-2 carry message formats that Kafka 4 does not take either: each of
their partitions is answered with UNSUPPORTED_VERSION. One batch a partition, as Kafka asks for. Nobody but the broker
writes to internal topics.

Known gaps: transactions come with a later version of Stratalog; transactional batches get INVALID_TXN_STATE.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from stratalog.broker.counters import Counters
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.errors import StratalogError, UnsupportedMagicError
from stratalog.net.connection import RefusedConnectionError
from stratalog.protocol._wire import parse_produce
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import FIRST_FLEXIBLE, ProducedPartition, encode_produce_response
from stratalog.protocol.responses import frame_response

if TYPE_CHECKING:
    from stratalog.protocol._wire import ProducePartition

_OLDEST_SERVED = 3
_FIRST_WITH_ZSTD = 7
_BATCH_LENGTH = Struct(">i")
_BATCH_LENGTH_AT = 8
_BEFORE_LENGTH_COUNTS = 12
_MAGIC_AT = 16
_ATTRIBUTES_AT = 22  # the low byte
_SMALLEST_BATCH = 61
_TRANSACTIONAL = 0x10
_CODEC_MASK = 0x07
_ZSTD = 4


class ProduceApi:
    def __init__(self, topics: TopicRegistry, counters: Counters) -> None:
        self._topics = topics
        self._counters = counters

    def serve(self, frame: memoryview, position: int, version: int, correlation_id: int) -> bytes | None:
        """The framed response; None where the client wants none (acks=0)."""
        transactional_id, acks, _, topics = parse_produce(frame, position, version)
        refusal = _refusal(version, acks, transactional_id)
        answers = []
        failed = False
        for topic, parts in topics:
            produced = []
            for part in parts:
                one = (
                    refusal._replace(partition=part[0]) if refusal else self._append(topic, part, frame, version, acks)
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
        self, topic: str | bytes, part: ProducePartition, frame: memoryview, version: int, acks: int
    ) -> ProducedPartition:
        index, start, end = part
        partition, unknown = self._find(topic, index)
        if partition is None:
            return unknown
        refusal = _check_batch(frame, start, end, version) or _check_partition(partition, acks)
        if refusal is not None:
            return refusal._replace(partition=index)
        try:
            appended = partition.append(frame[start:end])
        except UnsupportedMagicError as error:
            return _failed(index, ErrorCode.corrupt_message, str(error))
        except StratalogError as error:
            self._counters.failed_produce += 1
            return _failed(index, error.code, str(error))
        self._counters.produced(appended.last_offset - appended.base_offset + 1, end - start)
        stamped = partition.log.config.message_timestamp_type == "LogAppendTime"
        return ProducedPartition(
            index,
            0,
            appended.base_offset,
            appended.max_timestamp if stamped else -1,
            partition.log.log_start_offset,
        )

    def _find(self, topic: str | bytes, index: int) -> tuple[Partition | None, ProducedPartition]:
        if isinstance(topic, bytes):
            known = self._topics.by_id_bytes(topic)
            if known is None:
                return None, _failed(index, ErrorCode.unknown_topic_id, "no topic has this id")
            topic = known.name
        partition = self._topics.partition(topic, index)
        if partition is None:
            return None, _failed(index, ErrorCode.unknown_topic_or_partition, f"{topic}-{index} does not exist")
        return partition, ProducedPartition(index)


def _refusal(version: int, acks: int, transactional_id: str | None) -> ProducedPartition | None:
    """Of the whole request."""
    if version < _OLDEST_SERVED:
        return _failed(0, ErrorCode.unsupported_version, f"Produce v{version} is too old; 3 to 13 are served")
    if acks not in (-1, 0, 1):
        return _failed(0, ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")
    if transactional_id is not None:
        return _failed(0, ErrorCode.invalid_txn_state, "transactions are not available in this version")
    return None


def _check_batch(frame: memoryview, start: int, end: int, version: int) -> ProducedPartition | None:
    """What Kafka asks of a request's records beyond what the log asks of a batch."""
    size = end - start
    if start < 0 or size == 0:
        return _failed(0, ErrorCode.invalid_record, "there are no records")
    if size < _SMALLEST_BATCH:
        return _failed(0, ErrorCode.corrupt_message, f"{size} bytes are less than a batch has")
    magic = frame[start + _MAGIC_AT]
    if magic < 2:
        return _failed(0, ErrorCode.invalid_record, f"magic is {magic}; Produce v{version} carries batches of magic 2")
    if magic > 2:
        return _failed(0, ErrorCode.corrupt_message, f"magic is {magic}; 2 is known")
    if _BATCH_LENGTH.unpack_from(frame, start + _BATCH_LENGTH_AT)[0] + _BEFORE_LENGTH_COUNTS < size:
        return _failed(0, ErrorCode.invalid_record, "there must be exactly one batch for a partition")
    attributes = frame[start + _ATTRIBUTES_AT]
    if attributes & _TRANSACTIONAL:
        return _failed(0, ErrorCode.invalid_txn_state, "transactions are not available in this version")
    if attributes & _CODEC_MASK == _ZSTD and version < _FIRST_WITH_ZSTD:
        return _failed(0, ErrorCode.unsupported_compression_type, f"Produce v{version} does not know zstd; 7 does")
    return None


def _check_partition(partition: Partition, acks: int) -> ProducedPartition | None:
    if partition.topic.startswith("__") and partition.topic in ("__consumer_offsets", "__transaction_state"):
        return _failed(0, ErrorCode.invalid_topic_exception, f"{partition.topic} is written to by the broker alone")
    if acks == -1 and partition.log.config.min_insync_replicas > 1:
        wanted = partition.log.config.min_insync_replicas
        return _failed(0, ErrorCode.not_enough_replicas, f"min.insync.replicas is {wanted}, there is one replica")
    return None


def _failed(index: int, code: int, message: str) -> ProducedPartition:
    return ProducedPartition(index, int(code), error_message=message)


def _first_error(answers: list[tuple[str | bytes, list[ProducedPartition]]]) -> str | None:
    return next(one.error_message for _, produced in answers for one in produced if one.error_code)
