"""Every exception that Stratalog raises on purpose, each with the error code that Kafka's protocol gives it.

A message says what was wrong, names the field and the value, and where there is something to do next, says that.
"""

from __future__ import annotations

from typing import ClassVar


class StratalogError(Exception):
    """Catch this to catch everything below. `code` is Kafka's error code; -1 is its UNKNOWN_SERVER_ERROR."""

    code: ClassVar[int] = -1


class ConfigError(StratalogError, ValueError):
    """A setting that does not exist or has a value it can't take."""

    code = 40  # INVALID_CONFIG


class MalformedRequestError(StratalogError):
    """Bytes that can't be read as the request they claim to be."""

    code = 42  # INVALID_REQUEST


class CleanerBusyError(StratalogError):
    """A log is being compacted, and can't be by two at once."""

    code = 89  # THROTTLING_QUOTA_EXCEEDED: ask again


class InvalidTopicError(StratalogError, ValueError):
    """A topic name or partition number that Kafka does not allow."""

    code = 17  # INVALID_TOPIC_EXCEPTION


class UnknownTopicError(StratalogError, LookupError):
    """A topic or partition that does not exist."""

    code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class TopicExistsError(StratalogError):
    """A topic of this name exists already."""

    code = 36  # TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(StratalogError, ValueError):
    """A number of partitions that can't be."""

    code = 37  # INVALID_PARTITIONS


class InvalidRecordError(StratalogError, ValueError):
    """A batch that is well framed and has the right checksum, but breaks a rule of the log. `records` names those of
    its records that do, by their index in the batch, where that is known."""

    code = 87  # INVALID_RECORD
    records: tuple[tuple[int, str], ...] = ()


class InvalidTimestampError(InvalidRecordError):
    """A timestamp that can't be, or that a client may not set."""

    code = 32  # INVALID_TIMESTAMP


class CorruptBatchError(StratalogError):
    """Bytes that are not a record batch: bad length, bad checksum, bad varint.

    `file` and `position` say where, if the bytes came from a file.
    """

    code = 2  # CORRUPT_MESSAGE

    def __init__(self, message: str, *, file: str | None = None, position: int | None = None) -> None:
        self.reason = message
        self.file = file
        self.position = position
        where = "" if file is None else f"{file}: "
        at = "" if position is None else f" at position {position}"
        super().__init__(f"{where}{message}{at}")


class InflatedTooLargeError(CorruptBatchError):
    """A compressed batch that would inflate past the bound: a decompression bomb, or a bound set too low."""


class AbandonedError(StratalogError):
    """Work on batches that was given up, because the broker stops. Nothing has changed."""

    code = 6  # NOT_LEADER_OR_FOLLOWER: a client that is still there sends the batches again


class UnsupportedCodecError(StratalogError, ValueError):
    """A compression codec that does not exist in this format version."""

    code = 76  # UNSUPPORTED_COMPRESSION_TYPE


class UnsupportedMagicError(StratalogError, ValueError):
    """A format version (magic byte) that this library does not know, or that is not allowed here."""

    code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class MessageTooLargeError(StratalogError, ValueError):
    """A batch larger than max.message.bytes."""

    code = 10  # MESSAGE_TOO_LARGE


class BatchLargerThanSegmentError(StratalogError, ValueError):
    """A batch larger than segment.bytes: no segment could hold it."""

    code = 18  # RECORD_LIST_TOO_LARGE


class OffsetOutOfRangeError(StratalogError, ValueError):
    """An offset before the log's start or past its end."""

    code = 1  # OFFSET_OUT_OF_RANGE


class OutOfOrderSequenceError(StratalogError):
    """An idempotent producer's batch that leaves a gap behind the last one."""

    code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(StratalogError):
    """A batch of a producer that a newer one with the same id has replaced."""

    code = 47  # INVALID_PRODUCER_EPOCH


class InvalidTransactionStateError(StratalogError):
    """A batch outside a transaction, of a producer that has one open there."""

    code = 48  # INVALID_TXN_STATE


class FencedLeaderEpochError(StratalogError):
    """A write with a leader epoch older than one already in the log."""

    code = 74  # FENCED_LEADER_EPOCH


class StorageError(StratalogError):
    """The disk said no (ENOSPC, EIO, EMFILE, ...). The log is as it was before the call."""

    code = 56  # KAFKA_STORAGE_ERROR


class UnusablePartitionError(StorageError):
    """A partition that can't be opened for reasons of its own: others may well be."""


class LogClosedError(StorageError):
    """A call on a log or directory that was closed."""


class LogAlreadyOpenError(StorageError):
    """A log that this process has open already: there is one Log object a partition."""


class DirectoryLockedError(StorageError):
    """Another process has the data directory open."""


class CorruptCheckpointError(StorageError):
    """A checkpoint file that can't be read as one."""


class GroupRecordError(StratalogError):
    """A record of __consumer_offsets or __transaction_state that can't be read: damaged, or of a newer version."""


class StateBudgetError(StratalogError):
    """Clients made the coordinators remember as much as they may: stratalog.max.coordinator.state.bytes."""

    code = 15  # COORDINATOR_NOT_AVAILABLE: clients back off and ask again


class ClientError(StratalogError):
    """The base of all errors that a client raises; stratalog.client.errors has them.

    The message is `problem`, which says what happened, and `advice`, which says what to do next and may be empty.
    """

    is_retriable: bool = False  # whether the same call may well succeed a moment later
    advice: str = ""

    def __init__(self, problem: str = "", advice: str | None = None) -> None:
        self.problem = problem
        self.advice = type(self).advice if advice is None else advice
        super().__init__(f"{problem}; {self.advice}" if self.advice else problem)


class BrokerUnreachableError(ClientError):
    """No connection to a broker, or one that broke off. What was sent over it may have been done or not."""

    code = 13  # NETWORK_EXCEPTION
    is_retriable = True


class ConnectError(BrokerUnreachableError):
    """A connection to `address` that could not be made; `reason` says why."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} can't be reached: {reason}", "is a broker listening there?")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.address, self.reason)


class UnknownHostError(BrokerUnreachableError):
    """The host name of a broker that can't be resolved."""


class RequestTimeoutError(ClientError, TimeoutError):
    """No answer in time. What was asked for may have been done or not."""

    code = 7  # REQUEST_TIMED_OUT
    is_retriable = True


class ConnectTimeoutError(RequestTimeoutError):
    """A connection that was not ready in time."""

    advice = "is a broker listening there?"


class MalformedResponseError(ClientError):
    """Bytes that can't be read as the answer they should be. Their connection is closed: nor can what follows them."""

    code = 42  # INVALID_REQUEST


class UnsupportedVersionError(ClientError):
    """The broker does not serve a request, or only versions of it that we don't speak."""

    code = 35  # UNSUPPORTED_VERSION
