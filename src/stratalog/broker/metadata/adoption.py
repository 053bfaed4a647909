"""Adopts topics that have partition directories but no metadata: those of a data directory that Apache Kafka wrote, or
whose metadata was lost.

An adopted topic gets the id in its partition directories, and as many partitions as the highest partition number
requires. Its former settings are unknown, so it gets settings that keep every record: a topic that was meant to be kept
for years must not lose the records that are older than the broker's default retention. Directories that have a
partition's name but no log are left alone.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from stratalog.broker.metadata.store import Topic
from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.storage import checkpoints, names

logger = logging.getLogger(__name__)

KEEPS_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}


def find_topics(
    data: Path, on_disk: Mapping[str, set[int]], known: Mapping[str, Topic], most_partitions: int
) -> dict[str, Topic]:
    """Return the topics to add to the known topics, and known topics with more partitions than the metadata says.

    `on_disk` has the partition numbers of the directories by topic. Raises StorageError if there would be too many
    partitions.
    """
    adopted: dict[str, Topic] = {}
    for name, numbers in sorted(on_disk.items()):
        topic = known.get(name)
        if topic is not None and max(numbers) < topic.partition_count:
            continue
        indexes = {index for index in numbers if _has_log(_path(data, name, index))}
        if not indexes or (topic is not None and max(indexes) < topic.partition_count):
            continue
        count = max(indexes) + 1
        if topic is None:
            taken = {other.id for other in (*known.values(), *adopted.values())}
            adopted[name] = Topic(name, _id_of(data, name, indexes, taken), count, KEEPS_EVERYTHING)
            logger.warning(
                "topic %s with %d partitions is in the data directory but not in the metadata; its settings are "
                "unknown, so its records are kept without limit: set its retention.ms and retention.bytes",
                name,
                count,
            )
        else:
            adopted[name] = replace(topic, partition_count=count)
            logger.warning("topic %s has directories up to partition %d: serving them", name, count - 1)
    if adopted:
        _check_room(data, {**known, **adopted}, adopted, most_partitions)
    return adopted


def _path(data: Path, name: str, index: int) -> Path:
    return data / str(names.TopicPartition(name, index))


def _has_log(path: Path) -> bool:
    """Return whether a directory has the files of a partition. A directory called backup-2024 may be something else."""
    for entry in path.iterdir():
        parsed = names.parse_segment_file(entry.name)
        if entry.name == names.PARTITION_METADATA or (parsed is not None and parsed[1] == names.LOG):
            return True
    logger.warning("%s has the name of a partition but no log in it; it is left alone", path)
    return False


def _id_of(data: Path, name: str, indexes: Iterable[int], taken: set[uuid.UUID]) -> uuid.UUID:
    for index in sorted(indexes):
        path = _path(data, name, index) / names.PARTITION_METADATA
        try:
            topic_id = checkpoints.read_partition_metadata(path)
        except CorruptCheckpointError as error:
            logger.warning("topic id of %s can't be read: %s", name, error)
            continue
        if topic_id in taken:
            logger.warning(
                "%s has the topic id of another topic, as a copy would have: topic %s gets a new topic id", path, name
            )
        elif topic_id is not None and topic_id.int != 0:
            return topic_id
    return uuid.uuid4()


def _check_room(data: Path, topics: Mapping[str, Topic], adopted: Mapping[str, Topic], most_partitions: int) -> None:
    total = sum(topic.partition_count for topic in topics.values())
    if total > most_partitions:
        largest = max(adopted.values(), key=lambda topic: topic.partition_count)
        raise StorageError(
            f"{data}: with its partition directories (of topic {largest.name!r} up to "
            f"{largest.name}-{largest.partition_count - 1}) there would be {total} partitions, more than "
            f"stratalog.max.partitions, {most_partitions}; raise the setting, or move directories away"
        )
