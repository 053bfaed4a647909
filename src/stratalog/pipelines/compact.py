"""Compacts the partitions of a cold data directory over Spark, one task each: of each key the last record stays.

The broker's own compaction, on the same files, for directories that no broker has open: backups, archives, a broker
that is down. The segment that grows is left as it is. What is done is done: an interrupted run leaves every partition
as it was, or partly compacted, and the next goes on from there. Executors must see the directory under the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.broker.metadata.store import MetadataStore, StoredMetadata
from stratalog.clock import SystemClock
from stratalog.errors import ConfigError, StorageError, StratalogError, UnknownTopicError
from stratalog.pipelines.cold_directory import ColdDirectory, opened_in_task
from stratalog.pipelines.progress import NoProgress, Progress
from stratalog.pipelines.sharing_out import share_out
from stratalog.storage import checkpoints, names
from stratalog.storage.compaction.compactor import Budget, Cleaned, Compactor
from stratalog.storage.compaction.plan import Dirt, assess
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY_MEMORY = 128 * 1024**2  # a task's, for its map of keys; what does not fit takes another pass
_POLICY = "cleanup.policy"


@dataclass(frozen=True)
class Piece:
    """One partition, for one task."""

    directory: Path
    partition: TopicPartition
    slot: int
    settings: Mapping[str, str]
    first_dirty_offset: int
    size: int
    clean: bool
    dry: bool
    key_memory: int


@dataclass(frozen=True)
class CompactedPartition:
    """What a task did, or would do."""

    partition: TopicPartition
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    clean_up_to: int
    log_end_offset: int
    failure: str = ""  # why it is not done; the others are

    @property
    def bytes_saved(self) -> int:
        return self.bytes_before - self.bytes_after


def compact(
    spark: SparkSession,
    directory: Path,
    topics: Sequence[str] = (),
    *,
    settings: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    key_memory: int = KEY_MEMORY,
    progress: Progress | None = None,
) -> list[CompactedPartition]:
    """`topics`: only these; by default all whose cleanup.policy is compact. `settings` on top of the topics' own.
    `force`: also topics that are not to be compacted, which loses their older records, and all without a key.

    Raises DirectoryLockedError where a broker has the directory, UnknownTopicError, ConfigError.
    """
    if not directory.is_dir():
        raise StorageError(f"{directory}: is not a directory; give the data directory of a broker that is down")
    with ColdDirectory.held(directory) as held:
        if dry_run and not held.was_clean:
            what = "was not closed in order, so reading it would mean to recover it, which is no dry run"
            raise StorageError(f"{directory}: {what}; run without --dry-run, or start a broker on it once")
        metadata = MetadataStore(directory, Disk()).metadata
        chosen = choose(held.partitions(), metadata, topics, settings or {}, force=force)
        first_dirty = _clean_offsets(directory)
        pieces = [
            Piece(
                directory.absolute(),
                partition,
                slot,
                own,
                first_dirty.get(partition, 0),
                _log_bytes(directory / str(partition)),
                held.was_clean,
                dry_run,
                key_memory,
            )
            for slot, (partition, own) in enumerate(chosen.items())
        ]
        done: list[CompactedPartition] = []
        for some in share_out(spark, pieces, compact_partition, _size, progress or NoProgress(), "compacting"):
            results = [result for _, result in some]
            done += results
            if not dry_run:
                sound = [result for result in results if not result.failure]
                held.note(
                    {result.partition: result.clean_up_to for result in sound},
                    {result.partition: result.log_end_offset for result in sound},
                )
        if any(result.failure for result in done):
            held.was_clean = False  # that log may be in any state, and is looked at when it is next opened
    return sorted(done, key=lambda result: result.partition)


def choose(
    partitions: Sequence[TopicPartition],
    metadata: StoredMetadata,
    topics: Sequence[str],
    settings: Mapping[str, str],
    *,
    force: bool,
) -> dict[TopicPartition, dict[str, str]]:
    """The partitions to compact, with the settings of each."""
    there = {partition.topic for partition in partitions}
    for topic in topics:
        if topic not in there:
            raise UnknownTopicError(f"topic {topic!r} has no partition here; there are: {', '.join(sorted(there))}")
    if not topics and not metadata.topics:
        raise ConfigError(
            "the directory does not say which topics are compacted (Kafka's never does); name them (--topic)"
        )
    chosen: dict[TopicPartition, dict[str, str]] = {}
    for partition in partitions:
        known = metadata.topics.get(partition.topic)
        own = {**(known.settings if known else {}), **settings}
        is_compacted = "compact" in own.get(_POLICY, "delete")
        if partition.topic not in topics if topics else not is_compacted:
            continue
        if known is not None and not is_compacted and not force:
            what = f"topic {partition.topic!r} has {_POLICY}={own.get(_POLICY, 'delete')}"
            raise ConfigError(
                f"{what}: compacting would lose its older records, and all without a key; force (--force) does it"
            )
        chosen[partition] = own | {_POLICY: "compact"}
        LogConfig.parse(chosen[partition])  # a bad setting is told here, not by a task
    return chosen


def compact_partition(piece: Piece) -> CompactedPartition:
    """In a task. What goes wrong with one log is its own: the others are compacted."""
    try:
        config = LogConfig.parse(piece.settings)
        with opened_in_task(piece.directory, piece.partition, piece.slot, config, clean=piece.clean) as log:
            total, clean_up_to = _compact(log, piece)
            end = log.log_end_offset
    except StratalogError as error:
        return CompactedPartition(piece.partition, 0, 0, 0, 0, 0, 0, failure=str(error))
    return CompactedPartition(
        piece.partition,
        total.bytes_before,
        total.bytes_after,
        total.segments_before,
        total.segments_after,
        clean_up_to,
        end,
    )


def _compact(log: Log, piece: Piece) -> tuple[Cleaned, int]:
    """As many passes as the memory for keys makes it; what they did together."""
    total: Cleaned | None = None
    first_dirty = max(piece.first_dirty_offset, log.log_start_offset)
    while True:
        now_ms = SystemClock().now_ms()
        dirt = _dirt(log, first_dirty, now_ms)
        cleaned = Compactor(log, dirt, Budget(memory=piece.key_memory), now_ms, log.generation).run(dry=piece.dry)
        if total is None:
            total = cleaned
        else:
            total.bytes_after -= cleaned.bytes_before - cleaned.bytes_after
            total.segments_after -= cleaned.segments_before - cleaned.segments_after
        if cleaned.is_complete or cleaned.first_dirty_offset <= first_dirty:
            return total, cleaned.first_dirty_offset
        first_dirty = cleaned.first_dirty_offset


def _dirt(log: Log, first_dirty: int, now_ms: int) -> Dirt:
    segments = log.segments
    if first_dirty > segments[-1].base_offset:
        first_dirty = log.log_start_offset  # from another life of this log
    return assess(
        [segment.retention_facts() for segment in segments],
        log.config,
        first_dirty_offset=first_dirty,
        last_stable_offset=log.first_unstable_offset,
        now_ms=now_ms,
    )


def _clean_offsets(directory: Path) -> Mapping[TopicPartition, int]:
    try:
        return checkpoints.read_offsets(directory / names.CLEANER_OFFSET_CHECKPOINT)
    except StratalogError:
        return {}  # all of it is dirty then, which is always right


def _log_bytes(partition: Path) -> int:
    return sum(file.stat().st_size for file in partition.glob(f"*{names.LOG}"))


def _size(piece: Piece) -> int:
    return piece.size
