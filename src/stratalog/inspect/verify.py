"""Verification of a partition, or of all partitions of a data directory.

Findings go to an observer immediately. A running process may write at the same time: its unfinished work is at most a
note, and a segment that it deletes is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.inspect import checkpoint_files
from stratalog.inspect.findings import Findings, Observer, Severity
from stratalog.inspect.index_file import base_offset_of
from stratalog.inspect.partition_files import (
    PartitionFiles,
    SegmentFiles,
    find_partitions,
    has_writer,
    list_partition,
)
from stratalog.inspect.verify_segment import SegmentVerifier, Walked
from stratalog.storage import names
from stratalog.storage.leader_epochs import LeaderEpochs

OFFSET_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
)
REWRITTEN = "nothing to do: it is not used, and is written again when the log is closed next time"


@dataclass(frozen=True)
class PartitionSummary:
    path: Path
    segments: int
    batches: int
    records: int
    bytes: int
    gaps: int
    log_start_offset: int
    log_end_offset: int
    max_timestamp: int
    errors: int
    warnings: int
    notes: int


@dataclass(frozen=True)
class Report:
    path: Path
    partitions: list[PartitionSummary]
    errors: int
    warnings: int
    notes: int

    @property
    def problems(self) -> int:
        return self.errors + self.warnings


def total_log_bytes(path: Path) -> int:
    """Return the bytes that a verification reads, for showing progress."""
    total = 0
    for partition in find_partitions(path):
        for log in partition.glob(f"*{names.LOG}"):
            total += log.stat().st_size if log.is_file() else 0
    return total


def verify(path: Path, observer: Observer, *, deep: bool = True) -> Report:
    """Verify a partition or a data directory. Raises StorageError if it is neither, OSError if it can't be listed."""
    partitions = find_partitions(path)
    is_data_directory = partitions != [path]
    if not partitions:
        raise StorageError(f"{path}: is neither a partition nor a data directory: it has no directory like orders-0")
    summaries = [verify_partition(partition, observer, deep=deep) for partition in partitions]
    directory_findings = Findings(observer)
    if is_data_directory:
        check_data_directory(path, {summary.path.name: summary for summary in summaries}, directory_findings)
    return report_of(path, summaries, directory_findings)


def report_of(path: Path, summaries: list[PartitionSummary], directory_findings: Findings) -> Report:
    return Report(
        path,
        summaries,
        sum(summary.errors for summary in summaries) + directory_findings.counts[Severity.ERROR],
        sum(summary.warnings for summary in summaries) + directory_findings.counts[Severity.WARNING],
        sum(summary.notes for summary in summaries) + directory_findings.counts[Severity.NOTE],
    )


def verify_partition(path: Path, observer: Observer, *, deep: bool = True) -> PartitionSummary:
    findings = Findings(observer)
    is_live = has_writer(path)
    partition = list_partition(path)
    epochs = check_names_and_epochs(partition, findings)
    walked = walk_segments(partition, partition.segments, epochs, findings, deep=deep, is_live=is_live)
    return conclude(partition, epochs, walked, findings, is_live=is_live)


def check_names_and_epochs(partition: PartitionFiles, findings: Findings) -> LeaderEpochs | None:
    """Check the files next to the segments. Return the leader epochs if their file can be used."""
    _check_names(partition, findings)
    epochs = _read_epochs(partition, findings)
    if not partition.segments:
        advice = "nothing to do if the partition is new: opening it creates a segment"
        findings.note(partition.path, None, "has no segments", advice)
    return epochs


def walk_segments(
    partition: PartitionFiles,
    segments: Sequence[SegmentFiles],
    epochs: LeaderEpochs | None,
    findings: Findings,
    *,
    deep: bool,
    is_live: bool,
) -> Walked:
    """Verify consecutive segments of a partition. Return the sums and the state after the last one."""
    walked = Walked(last_offset=segments[0].base_offset - 1 if segments else -1)
    recovery_point = partition.recovery_point()
    for segment in segments:
        # A running process changes the last segment, and may still be finishing the one before it.
        may_change = is_live and segment in partition.segments[-2:]
        try:
            SegmentVerifier(
                segment, walked, epochs, findings, deep=deep, is_live=may_change, recovery_point=recovery_point
            ).run()
        except FileNotFoundError:
            findings.note(segment.path(names.LOG), None, "was deleted during the verification")
        except (OSError, StorageError) as error:
            findings.error(
                segment.path(names.LOG), None, f"can't be read: {error}", "check its permissions and the disk"
            )
    return walked


def conclude(
    partition: PartitionFiles, epochs: LeaderEpochs | None, walked: Walked, findings: Findings, *, is_live: bool
) -> PartitionSummary:
    """Check the small files after all segments were walked. Return the summary of the partition."""
    end = max(walked.last_offset + 1, partition.segments[-1].base_offset if partition.segments else 0)
    _check_small_files(partition, epochs, end, findings, is_live=is_live)
    return PartitionSummary(
        partition.path,
        walked.segments,
        walked.batches,
        walked.records,
        walked.bytes,
        walked.gaps,
        partition.log_start_offset_or_first() if partition.segments else 0,
        end,
        walked.max_timestamp,
        findings.counts[Severity.ERROR],
        findings.counts[Severity.WARNING],
        findings.counts[Severity.NOTE],
    )


def _check_names(partition: PartitionFiles, findings: Findings) -> None:
    for orphan in partition.orphans:
        findings.note(orphan, None, "is an index without a log", "nothing to do: opening the log removes it")
    for left_over in partition.left_over:
        if left_over.suffix == names.SWAP:
            advice = "nothing to do: opening the log finishes it"
            findings.warning(left_over, None, "is left from an interrupted compaction", advice)
        else:
            advice = "nothing to do: opening the log removes it"
            findings.note(left_over, None, "is left from a deletion or an unfinished write", advice)
    for entry in sorted(partition.path.iterdir()):
        is_numbered = names.parse_segment_file(entry.name) is not None
        if entry.suffix in (*names.SEGMENT_SUFFIXES, names.SNAPSHOT) and not is_numbered:
            what = "has a suffix of a segment's file, but its name is not 20 digits"
            findings.warning(entry, None, what, "move it away: Apache Kafka does not start with it")


def _read_epochs(partition: PartitionFiles, findings: Findings) -> LeaderEpochs | None:
    file = partition.path / names.LEADER_EPOCH_CHECKPOINT
    try:
        entries = checkpoint_files.read_epochs(file)
    except FileNotFoundError:
        # The first flush of a batch creates it.
        if partition.segments and partition.recovery_point() > partition.segments[0].base_offset:
            findings.note(file, None, "is missing", "nothing to do: the epochs are read from the log when it is opened")
        return None
    except (OSError, StorageError) as error:
        findings.warning(file, None, str(error), "nothing to do: the epochs are read from the log when it is opened")
        return None
    previous = (-1, -1)
    for entry in entries:
        if entry[0] <= previous[0] or entry[1] <= previous[1]:
            what = f"epoch {entry[0]} from offset {entry[1]} follows epoch {previous[0]} from offset {previous[1]}"
            findings.warning(file, None, f"{what}; both must rise", "delete it while the log is closed")
            return None
        previous = entry
    return LeaderEpochs(entries)


def _check_small_files(
    partition: PartitionFiles, epochs: LeaderEpochs | None, end: int, findings: Findings, *, is_live: bool
) -> None:
    if epochs is not None and epochs.entries and epochs.entries[-1][1] > end and not is_live:
        epoch, start = epochs.entries[-1]
        what = f"epoch {epoch} starts at offset {start}, but the log ends at {end}"
        findings.warning(partition.path / names.LEADER_EPOCH_CHECKPOINT, None, what, "open the log once")
    for snapshot in partition.snapshots:
        try:
            checkpoint_files.read_producers(snapshot)
        except FileNotFoundError:
            continue  # a writer has replaced it just now
        except (OSError, StorageError) as error:
            findings.warning(snapshot, None, str(error), "nothing to do: it is not used, and the log is read instead")
            continue
        if base_offset_of(snapshot) > end and not is_live:
            what = f"is of offset {base_offset_of(snapshot)}, but the log ends at {end}"
            findings.warning(snapshot, None, what, "nothing to do: opening the log removes it")
    metadata = partition.path / names.PARTITION_METADATA
    try:
        checkpoint_files.read_topic_id(metadata)
    except FileNotFoundError:
        findings.note(metadata, None, "is missing", "Apache Kafka would treat this partition as stray")
    except (OSError, StorageError) as error:
        findings.warning(metadata, None, str(error), "write the topic id into it again, see docs/disk-format.md")


def check_data_directory(path: Path, partitions: dict[str, PartitionSummary], findings: Findings) -> None:
    for name in OFFSET_CHECKPOINTS:
        file = path / name
        try:
            offsets = checkpoint_files.read_offsets(file)
        except FileNotFoundError:
            continue
        except (OSError, StorageError) as error:
            findings.warning(file, None, str(error), REWRITTEN)
            continue
        for partition, offset in offsets.items():
            summary = partitions.get(str(partition))
            if summary is None:
                findings.note(file, None, f"names {partition}, which has no directory here")
            elif offset > summary.log_end_offset and not has_writer(summary.path):
                what = f"says {offset} for {partition}, whose log ends at {summary.log_end_offset}"
                advice = "records may be missing: compare with a replica or a backup before the log is opened"
                findings.warning(file, None, what, advice)
        findings.end_of(file)
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and entry.name.endswith("-delete"):
            findings.note(entry, None, "is a deleted partition", "nothing to do: the next start removes it")
