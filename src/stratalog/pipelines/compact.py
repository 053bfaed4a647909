"""Compacts the partitions of a cold data directory on Spark, one task each: only the last record of each key remains.

This is the broker's own compaction, for directories that no broker has open: backups, archives, the directory of a
stopped broker. The active segment stays as it is. An interrupted run leaves each partition uncompacted, partly or
completely compacted, and the next run continues from there. Executors must see the directory under the same path.
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
from stratalog.pipelines.task_rounds import run_in_rounds
from stratalog.storage import checkpoints, names
from stratalog.storage.compaction.compactor import Budget, Cleaned, Compactor
from stratalog.storage.compaction.plan import Dirt, assess
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY_MEMORY = 128 * 1024**2  # for the keys of one task; if they do not fit, it makes several passes
_POLICY = "cleanup.policy"


@dataclass(frozen=True)
class CompactPiece:
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
    """The outcome of a task, or its expected outcome in a dry run."""

    partition: TopicPartition
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    clean_up_to: int
    log_end_offset: int
    failure: str = ""  # the error of this partition; it does not affect the others

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
    """Compact the partitions of `topics`, by default of all topics whose cleanup.policy is compact.

    `settings` override those of the topics. With `force`, topics with another policy are compacted too: they lose all
    but the last record of each key, and all records without a key.

    Raises DirectoryLockedError if a broker has the directory open, UnknownTopicError, ConfigError, StorageError.
    """
    if not directory.is_dir():
        raise StorageError(f"{directory}: is not a directory; name the data directory of a stopped broker")
    with ColdDirectory.held(directory) as held:
        if dry_run and not held.was_clean:
            raise StorageError(
                f"{directory}: had no clean shutdown, so opening its logs would change them, which a dry run must not; "
                "run without --dry-run, or start and stop a broker on it"
            )
        metadata = MetadataStore(directory, Disk()).metadata
        chosen = choose(held.partitions(), metadata, topics, settings or {}, force=force)
        first_dirty = _clean_offsets(directory)
        pieces = [
            CompactPiece(
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
        for finished in run_in_rounds(spark, pieces, compact_partition, _size, progress or NoProgress(), "compacting"):
            results = [result for _, result in finished]
            done += results
            if not dry_run:
                succeeded = [result for result in results if not result.failure]
                held.note(
                    {result.partition: result.clean_up_to for result in succeeded},
                    {result.partition: result.log_end_offset for result in succeeded},
                )
        if any(result.failure for result in done):
            held.was_clean = False  # a failed log may be in any state, so the next start has to recover it
    return sorted(done, key=lambda result: result.partition)


def choose(
    partitions: Sequence[TopicPartition],
    metadata: StoredMetadata,
    topics: Sequence[str],
    settings: Mapping[str, str],
    *,
    force: bool,
) -> dict[TopicPartition, dict[str, str]]:
    """Return the partitions to compact, with the settings of each."""
    existing = {partition.topic for partition in partitions}
    for topic in topics:
        if topic not in existing:
            raise UnknownTopicError(
                f"topic {topic!r} has no partition in this directory; its topics are: {', '.join(sorted(existing))}"
            )
    if not topics and not metadata.topics:
        raise ConfigError(
            "the directory does not record which topics are compacted (Kafka's never do); name them (--topic)"
        )
    chosen: dict[TopicPartition, dict[str, str]] = {}
    for partition in partitions:
        known = metadata.topics.get(partition.topic)
        own = {**(known.settings if known else {}), **settings}
        is_compacted = "compact" in own.get(_POLICY, "delete")
        if partition.topic not in topics if topics else not is_compacted:
            continue
        if known is not None and not is_compacted and not force:
            raise ConfigError(
                f"topic {partition.topic!r} has {_POLICY}={own.get(_POLICY, 'delete')}: compacting it would delete all "
                "but the last record of each key, and all records without a key; use --force to do that"
            )
        chosen[partition] = own | {_POLICY: "compact"}
        LogConfig.parse(chosen[partition])  # so that a bad setting fails here and not in a task
    return chosen


def compact_partition(piece: CompactPiece) -> CompactedPartition:
    """Compact one partition, in a task. Its error is part of the outcome, so that the other partitions go on."""
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


def _compact(log: Log, piece: CompactPiece) -> tuple[Cleaned, int]:
    """Run as many passes as the memory for keys requires. Return their total and the first dirty offset after them."""
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
        first_dirty = log.log_start_offset  # the offset belongs to an earlier log of this partition
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
        return {}  # then everything counts as dirty, which is always correct


def _log_bytes(partition: Path) -> int:
    return sum(file.stat().st_size for file in partition.glob(f"*{names.LOG}"))


def _size(piece: CompactPiece) -> int:
    return piece.size
