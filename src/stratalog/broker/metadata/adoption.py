"""Topics that only the disk knows: those of a data directory of Apache Kafka, or of one whose metadata was lost.

They get the id that their partitions have on disk, and as many partitions as the highest number among their directories
says. Which settings they had is not known, so they get some that keep every record: a topic that was to be kept for
years must not lose what is older than the broker's default. Directories that are only called like partitions are left
alone.
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
    """Those to be added to the known ones, or to take their place: topics may have more directories than they know.

    `on_disk` has the numbers of the directories by topic. Raises StorageError where it would be too many partitions.
    """
    found: dict[str, Topic] = {}
    for name, numbers in sorted(on_disk.items()):
        topic = known.get(name)
        if topic is not None and max(numbers) < topic.partition_count:
            continue
        indexes = {index for index in numbers if _has_log(_path(data, name, index))}
        if not indexes or (topic is not None and max(indexes) < topic.partition_count):
            continue
        count = max(indexes) + 1
        if topic is None:
            taken = {other.id for other in (*known.values(), *found.values())}
            found[name] = Topic(name, _id_of(data, name, indexes, taken), count, KEEPS_EVERYTHING)
            logger.warning(
                "topic %s with %d partitions was found in the data directory; its settings are not known, so nothing "
                "of it is deleted: set its retention.ms and retention.bytes",
                name,
                count,
            )
        else:
            found[name] = replace(topic, partition_count=count)
            logger.warning("topic %s has directories up to partition %d: they are served", name, count - 1)
    if found:
        _check_room(data, {**known, **found}, found, most_partitions)
    return found


def _path(data: Path, name: str, index: int) -> Path:
    return data / str(names.TopicPartition(name, index))


def _has_log(path: Path) -> bool:
    """A directory may be called backup-2024 and have nothing to do with topics."""
    for entry in path.iterdir():
        parsed = names.parse_segment_file(entry.name)
        if entry.name == names.PARTITION_METADATA or (parsed is not None and parsed[1] == names.LOG):
            return True
    logger.warning("%s is called like a partition but has no log in it; it is left alone", path)
    return False


def _id_of(data: Path, name: str, indexes: Iterable[int], taken: set[uuid.UUID]) -> uuid.UUID:
    for index in sorted(indexes):
        path = _path(data, name, index) / names.PARTITION_METADATA
        try:
            topic_id = checkpoints.read_partition_metadata(path)
        except CorruptCheckpointError as error:
            logger.warning("the id of topic %s can't be read: %s", name, error)
            continue
        if topic_id in taken:
            logger.warning("%s has the id of another topic, as a copy would: topic %s gets a new one", path, name)
        elif topic_id is not None and topic_id.int != 0:
            return topic_id
    return uuid.uuid4()


def _check_room(data: Path, topics: Mapping[str, Topic], found: Mapping[str, Topic], most_partitions: int) -> None:
    total = sum(topic.partition_count for topic in topics.values())
    if total > most_partitions:
        largest = max(found.values(), key=lambda topic: topic.partition_count)
        raise StorageError(
            f"{data}: there would be {total} partitions with those found here (of topic {largest.name!r} up to "
            f"{largest.name}-{largest.partition_count - 1}), more than stratalog.max.partitions, {most_partitions}; "
            "set it higher, or move directories away"
        )
