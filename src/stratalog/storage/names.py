"""The names of files and directories. They are Kafka's, so that its tools and ours find the same files."""

from __future__ import annotations

import re
from pathlib import Path

from stratalog.errors import InvalidTopicError
from stratalog.topic_partition import TopicPartition as TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED = ".deleted"  # to be removed after file.delete.delay.ms, or when the data directory is next opened
CLEANED = ".cleaned"  # written by a compaction that is not finished
SWAP = ".swap"  # written by a compaction that is finished, before the files get their final names
TEMPORARY = ".tmp"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_NOTE = "boot-id"  # of a broker of a cluster; Kafka ignores unknown files in a data directory
LOCK = ".lock"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # the log of Kafka's controllers, which is never opened

MAX_TOPIC_LENGTH = 249
_MAX_FILE_NAME = 255
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION_DIRECTORY = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})")
_DOOMED_DIRECTORY = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
_SEGMENT_FILE = re.compile(r"([0-9]{20})(\.[a-z]+)")


def check_topic(topic: str) -> None:
    """Raise InvalidTopicError unless Kafka accepts the topic name."""
    if topic in ("", ".", ".."):
        raise InvalidTopicError(f"topic name {topic!r} is not allowed")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise InvalidTopicError(f"topic name has {len(topic)} characters; at most {MAX_TOPIC_LENGTH} are allowed")
    if not _TOPIC.fullmatch(topic):
        raise InvalidTopicError(f"topic name {topic!r} has characters other than letters, digits, '.', '_' and '-'")


def check_partition(partition: int) -> None:
    if not 0 <= partition < 2**31:
        raise InvalidTopicError(f"partition is {partition}; it must lie between 0 and 2147483647")


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the partition of a directory name like orders-7, or None if it is not the name of a partition."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    partition = TopicPartition(match[1], int(match[2]))
    try:
        check_topic(partition.topic)
        check_partition(partition.partition)
    except InvalidTopicError:
        return None
    return partition


def is_log_file(name: str) -> bool:
    """Return True if a log reads, writes or removes files of this name in its partition directory."""
    return _is_ours(name) or is_leftover(name) or (name.endswith(SWAP) and _is_ours(name.removesuffix(SWAP)))


def is_leftover(name: str) -> bool:
    """Return True if an unfinished deletion, write or compaction of a log left a file of this name."""
    stem, dot, suffix = name.rpartition(".")
    return dot + suffix in (DELETED, TEMPORARY, CLEANED) and _is_ours(stem)


def _is_ours(name: str) -> bool:
    return name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA) or parse_segment_file(name) is not None


def is_doomed_directory(name: str) -> bool:
    """Return True if this is the name of a deleted partition's directory: topic-N.<32 hex digits>-delete."""
    return _DOOMED_DIRECTORY.fullmatch(name) is not None


def doomed_directory(partition: TopicPartition, unique: str) -> str:
    """Return the name of a deleted partition's directory. `unique` has 32 hex digits."""
    return _with_suffix(partition, f".{unique}-delete")


def stray_directory(partition: TopicPartition, unique: str) -> str:
    """Return Kafka's name for the directory of a partition that the cluster does not know: topic-N.<32 hex>-stray."""
    return _with_suffix(partition, f".{unique}-stray")


def _with_suffix(partition: TopicPartition, suffix: str) -> str:
    """Append a suffix to a directory's name. A topic that would make it too long for a file name is cut off."""
    suffix = f"-{partition.partition}{suffix}"
    return partition.topic[: _MAX_FILE_NAME - len(suffix)] + suffix


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return the base offset and the suffix of a name like 00000000000000000042.log, or None if it is not the name of a
    segment's file."""
    match = _SEGMENT_FILE.fullmatch(name)
    return None if match is None or int(match[1]) >= 2**63 else (int(match[1]), match[2])
