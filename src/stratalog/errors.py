"""The exceptions that Stratalog raises, each with the error code of Kafka's protocol.

A message says what happened, names the field and the value, and says what to do next if something can be done.
"""

from __future__ import annotations

from typing import Any, ClassVar


class StratalogError(Exception):
    """The base class of all exceptions here. `code` is Kafka's error code; -1 is its UNKNOWN_SERVER_ERROR."""

    code: ClassVar[int] = -1


class ConfigError(StratalogError, ValueError):
    """A setting that does not exist, or a value that is not valid for it."""

    code = 40  # INVALID_CONFIG


class MalformedRequestError(StratalogError):
    """Bytes that can't be parsed as a request of the API and version in their header."""

    code = 42  # INVALID_REQUEST


class CleanerBusyError(StratalogError):
    """A log is being compacted already: only one thread at a time can compact it."""

    code = 89  # THROTTLING_QUOTA_EXCEEDED: the client may retry


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
    """A number of partitions that is not valid."""

    code = 37  # INVALID_PARTITIONS


class InvalidReplicationFactorError(StratalogError, ValueError):
    """The replication factor is too high for the brokers that are alive, or below 1."""

    code = 38  # INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(StratalogError, ValueError):
    """The replicas that were requested for a partition can't be those."""

    code = 39  # INVALID_REPLICA_ASSIGNMENT


class InvalidRecordError(StratalogError, ValueError):
    """A batch with valid framing and checksum that breaks a rule of the log. `records` has the index in the batch and
    the reason for each record that breaks the rule, if they are known."""

    code = 87  # INVALID_RECORD
    records: tuple[tuple[int, str], ...] = ()


class InvalidTimestampError(InvalidRecordError):
    """A timestamp that is not valid, or that clients must not set."""

    code = 32  # INVALID_TIMESTAMP


class CorruptBatchError(StratalogError):
    """Bytes that are not a record batch: bad length, bad checksum, bad varint.

    `file` and `position` say where they are, if they came from a file.
    """

    code = 2  # CORRUPT_MESSAGE

    def __init__(self, message: str, *, file: str | None = None, position: int | None = None) -> None:
        self.reason = message
        self.file = file
        self.position = position
        where = "" if file is None else f"{file}: "
        at = "" if position is None else f" at position {position}"
        super().__init__(f"{where}{message}{at}")


class DecompressedTooLargeError(CorruptBatchError):
    """A compressed batch whose decompressed size is over the limit: a decompression bomb, or a limit that is too
    low."""


class AbandonedError(StratalogError):
    """Work on batches that was abandoned because the broker stops. Nothing has changed."""

    code = 6  # NOT_LEADER_OR_FOLLOWER: a connected client sends the batches again


class NotLeaderError(StratalogError):
    """This broker does not lead the partition, or can't be sure that it still does."""

    code = 6  # NOT_LEADER_OR_FOLLOWER


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
    """A batch larger than segment.bytes, which no segment can hold."""

    code = 18  # RECORD_LIST_TOO_LARGE


class OffsetOutOfRangeError(StratalogError, ValueError):
    """An offset before the log start offset or after the log end offset."""

    code = 1  # OFFSET_OUT_OF_RANGE


class OutOfOrderSequenceError(StratalogError):
    """A batch of an idempotent producer whose sequence does not follow its last batch."""

    code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(StratalogError):
    """A batch of a producer that a newer producer with the same id has replaced."""

    code = 47  # INVALID_PRODUCER_EPOCH


class InvalidTransactionStateError(StratalogError):
    """A batch outside a transaction, from a producer that has a transaction open in the partition."""

    code = 48  # INVALID_TXN_STATE


class TooManyProducersError(StratalogError):
    """A batch of a new producer, in a partition that has reached its limit of active producers."""

    code = 44  # POLICY_VIOLATION: a client that retried would be refused again


class FencedLeaderEpochError(StratalogError):
    """A write with a leader epoch older than one in the log."""

    code = 74  # FENCED_LEADER_EPOCH


class StorageError(StratalogError):
    """The disk failed a call (ENOSPC, EIO, EMFILE, ...). The log is as it was before the call."""

    code = 56  # KAFKA_STORAGE_ERROR


class UnusablePartitionError(StorageError):
    """A partition that can't be opened for reasons of its own. Other partitions may be usable."""


class LogClosedError(StorageError):
    """A call on a log or data directory that is closed."""


class LogAlreadyOpenError(StorageError):
    """A log that this process has open already: a partition has one Log object."""


class DirectoryLockedError(StorageError):
    """Another process has the data directory open."""


class CorruptCheckpointError(StorageError):
    """A checkpoint file that can't be parsed."""


class GroupRecordError(StratalogError):
    """A record of __consumer_offsets or __transaction_state that can't be parsed: corrupt, or of a newer version."""


class StateBudgetError(StratalogError):
    """The state that clients make the coordinators keep has reached its limit,
    stratalog.max.coordinator.state.bytes."""

    code = 15  # COORDINATOR_NOT_AVAILABLE: clients back off and retry


class ClientError(StratalogError):
    """The base class of the errors that Stratalog's clients raise. stratalog.client.errors has all of them.

    The message is `problem`, which says what happened, and `advice`, which says what to do next and may be empty.
    """

    is_retriable: bool = False  # whether the same call may succeed a moment later
    advice: str = ""

    def __init__(self, problem: str = "", advice: str | None = None) -> None:
        self.problem = problem
        self.advice = type(self).advice if advice is None else advice
        super().__init__(f"{problem}; {self.advice}" if self.advice else problem)

    def __reduce__(self) -> tuple[object, ...]:
        return _client_error_again, (type(self), self.args, self.__dict__)


def _client_error_again(
    kind: type[ClientError], arguments: tuple[object, ...], attributes: dict[str, Any]
) -> ClientError:
    """Rebuild an error that was pickled, such as in a Spark task: `__init__` would add its advice once more."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments  # OSError's __new__ leaves them to __init__
    error.__dict__.update(attributes)
    return error


class BrokerUnreachableError(ClientError):
    """A connection to a broker failed or broke. The broker may or may not have served a request that was in flight."""

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
    """No response came before the timeout. The broker may or may not have served the request."""

    code = 7  # REQUEST_TIMED_OUT
    is_retriable = True


class ConnectTimeoutError(RequestTimeoutError):
    """A connection that was not ready in time."""

    advice = "is a broker listening there?"


class MalformedResponseError(ClientError):
    """Bytes that can't be parsed as the expected response. The client closes the connection, because it can't parse
    what follows either."""

    code = 42  # INVALID_REQUEST


class UnsupportedVersionError(ClientError):
    """The broker does not serve a request, or only in versions that this client does not know."""

    code = 35  # UNSUPPORTED_VERSION
