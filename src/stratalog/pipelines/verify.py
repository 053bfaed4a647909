"""Whole data directories verified over Spark: every checksum, offset, record and index, as `stratalog verify` does.

Segments are shared out, neighbours together up to some size, so that one large partition takes all cores too. What lies
around them is looked at on the driver. Only reads; executors must see the directories under the same paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.errors import StorageError
from stratalog.inspect.findings import Finding, Findings, Observer, Severity
from stratalog.inspect.partition_files import PartitionFiles, find_partitions, has_writer, list_partition
from stratalog.inspect.verify import (
    PartitionSummary,
    Report,
    check_data_directory,
    check_names_and_epochs,
    conclude,
    report_of,
    walk_segments,
)
from stratalog.inspect.verify_segment import Walked
from stratalog.pipelines.kept_results import KeptResults
from stratalog.pipelines.progress import NoProgress, Progress
from stratalog.pipelines.sharing_out import share_out
from stratalog.storage import names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Piece:
    """Neighbouring segments of a partition, for one task."""

    partition: Path
    base_offsets: tuple[int, ...]
    size: int
    newest_ns: int  # when the youngest of the files was changed
    deep: bool
    is_live: bool

    @property
    def key(self) -> str:
        return f"{self.partition} {self.base_offsets[0]} {len(self.base_offsets)} {self.size} {self.newest_ns}"


@dataclass(frozen=True)
class PieceResult:
    walked: Walked
    findings: list[Finding]
    counts: dict[Severity, int]


def verify(
    spark: SparkSession,
    directories: Sequence[Path],
    observer: Observer,
    *,
    deep: bool = True,
    resume_file: Path | None = None,
    progress: Progress | None = None,
) -> list[Report]:
    """One report a directory; findings go to the observer. With `resume_file`, what was verified in a run that was
    stopped, and has not changed since, is not read again. Raises StorageError where there is nothing to verify."""
    partitions = {directory: _partitions(directory) for directory in directories}
    listed = {path: list_partition(path) for found in partitions.values() for path in found}
    live = {path: has_writer(path) for path in listed}
    pieces = [piece for path, files in listed.items() for piece in cut(files, deep=deep, is_live=live[path])]
    results: dict[Piece, PieceResult] = {}
    if resume_file is None:
        for some in share_out(spark, pieces, walk, _size, progress or NoProgress(), "verifying"):
            results.update(some)
    else:
        job = {"job": "verify", "deep": deep, "version": 1}
        with KeptResults(resume_file, job) as kept:
            results = {piece: _from_json(found) for piece in pieces if (found := kept.get(piece.key)) is not None}
            left = [piece for piece in pieces if piece not in results]
            for some in share_out(spark, left, walk, _size, progress or NoProgress(), "verifying"):
                results.update(some)
                kept.keep({piece.key: _to_json(result) for piece, result in some})
    return [
        _conclude(directory, [listed[path] for path in found], results, live, observer)
        for directory, found in partitions.items()
    ]


def cut(partition: PartitionFiles, *, deep: bool, is_live: bool, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """A partition's segments in pieces of neighbours, none larger than `piece_bytes` unless one segment is."""
    bases: list[int] = []
    size = newest = 0
    for segment in partition.segments:
        try:
            status = segment.path(names.LOG).stat()
        except FileNotFoundError:
            continue  # a process at work has just deleted it
        if bases and size + status.st_size > piece_bytes:
            yield Piece(partition.path, tuple(bases), size, newest, deep, is_live)
            bases, size, newest = [], 0, 0
        bases.append(segment.base_offset)
        size += status.st_size
        newest = max(newest, _newest_ns(partition.path, segment.base_offset))
    if bases:
        yield Piece(partition.path, tuple(bases), size, newest, deep, is_live)


def walk(piece: Piece) -> PieceResult:
    """In a task: verify the segments of a piece."""
    heard = _Heard()
    findings = Findings(heard)
    partition = list_partition(piece.partition)
    segments = [segment for segment in partition.segments if segment.base_offset in piece.base_offsets]
    epochs = check_names_and_epochs(partition, Findings(_Heard()))  # the driver tells what is wrong with them
    walked = walk_segments(partition, segments, epochs, findings, deep=piece.deep, is_live=piece.is_live)
    for missing in sorted(set(piece.base_offsets) - {segment.base_offset for segment in segments}):
        file = names.segment_file(piece.partition, missing, names.LOG)
        findings.note(file, None, "was deleted while the rest was being read")
    return PieceResult(walked, heard.findings, dict(findings.counts))


def joined(results: Sequence[PieceResult], findings: Findings, path: Path) -> Walked:
    """What is known of a partition of which each piece is. What no piece can see is between two of them."""
    total: Walked | None = None
    for result in results:
        walked = result.walked
        if total is None:
            total = replace(walked)
            continue
        if walked.leader_epoch != -1 and walked.leader_epoch < total.leader_epoch:
            what = f"leader epoch {walked.leader_epoch} follows epoch {total.leader_epoch} in a segment before"
            findings.warning(path, None, what, "compare the log with its other replicas")
        total.last_offset = max(total.last_offset, walked.last_offset)
        total.leader_epoch = max(total.leader_epoch, walked.leader_epoch)
        total.max_timestamp = max(total.max_timestamp, walked.max_timestamp)
        for count in ("segments", "batches", "records", "bytes", "gaps"):
            setattr(total, count, getattr(total, count) + getattr(walked, count))
    return total or Walked(last_offset=-1)


class _Heard:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        pass


def _partitions(directory: Path) -> list[Path]:
    found = find_partitions(directory)
    if not found:
        what = "is neither a partition nor a data directory: it has no directory like orders-0"
        raise StorageError(f"{directory}: {what}")
    return found


def _newest_ns(partition: Path, base_offset: int) -> int:
    newest = 0
    for suffix in names.SEGMENT_SUFFIXES:
        try:
            newest = max(newest, names.segment_file(partition, base_offset, suffix).stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return newest


def _size(piece: Piece) -> int:
    return piece.size


def _conclude(
    directory: Path,
    partitions: list[PartitionFiles],
    results: dict[Piece, PieceResult],
    live: dict[Path, bool],
    observer: Observer,
) -> Report:
    by_partition: dict[Path, list[tuple[Piece, PieceResult]]] = {}
    for piece, result in results.items():
        by_partition.setdefault(piece.partition, []).append((piece, result))
    summaries = []
    for partition in partitions:
        of_it = sorted(by_partition.get(partition.path, ()), key=lambda one: one[0].base_offsets)
        summaries.append(_summary(partition, [result for _, result in of_it], observer, is_live=live[partition.path]))
    around = Findings(observer)
    if [partition.path for partition in partitions] != [directory]:
        check_data_directory(directory, {summary.path.name: summary for summary in summaries}, around)
    return report_of(directory, summaries, around)


def _summary(
    partition: PartitionFiles, results: list[PieceResult], observer: Observer, *, is_live: bool
) -> PartitionSummary:
    findings = Findings(observer)
    epochs = check_names_and_epochs(partition, findings)
    for result in results:
        for finding in result.findings:
            observer.report(finding)
        findings.counts.update(Counter(result.counts))
    walked = joined(results, findings, partition.path)
    return conclude(partition, epochs, walked, findings, is_live=is_live)


def _to_json(result: PieceResult) -> dict[str, Any]:
    return {
        "walked": asdict(result.walked),
        "counts": {severity.value: count for severity, count in result.counts.items()},
        "findings": [
            [finding.severity.value, str(finding.file), finding.position, finding.what, finding.advice]
            for finding in result.findings
        ],
    }


def _from_json(found: dict[str, Any]) -> PieceResult:
    return PieceResult(
        Walked(**found["walked"]),
        [
            Finding(Severity(severity), Path(file), position, what, advice)
            for severity, file, position, what, advice in found["findings"]
        ],
        {Severity(name): count for name, count in found["counts"].items()},
    )
