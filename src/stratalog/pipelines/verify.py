"""Verifies whole data directories on Spark: every checksum, offset, record and index, like `stratalog verify`.

Each task gets neighbouring segments up to a size, so that even one large partition uses all cores. The driver checks
the files around the segments. Nothing is changed. Executors must see the directories under the same paths.
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
from stratalog.pipelines.task_rounds import run_in_rounds
from stratalog.storage import names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class VerifyPiece:
    """Neighbouring segments of a partition, for one task."""

    partition: Path
    base_offsets: tuple[int, ...]
    size: int
    newest_ns: int  # the latest change of one of the files
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
    """Return a report per directory; findings go to the observer.

    With `resume_file`, pieces that an interrupted run has verified are skipped if they have not changed. Raises
    StorageError if there is nothing to verify.
    """
    partitions = {directory: _partitions(directory) for directory in directories}
    listed = {path: list_partition(path) for paths in partitions.values() for path in paths}
    live = {path: has_writer(path) for path in listed}
    pieces = [piece for path, files in listed.items() for piece in cut(files, deep=deep, is_live=live[path])]
    results: dict[VerifyPiece, PieceResult] = {}
    if resume_file is None:
        for finished in run_in_rounds(spark, pieces, walk, _size, progress or NoProgress(), "verifying"):
            results.update(finished)
    else:
        job = {"job": "verify", "deep": deep, "version": 1}
        with KeptResults(resume_file, job) as kept:
            results = {piece: _from_json(saved) for piece in pieces if (saved := kept.get(piece.key)) is not None}
            left = [piece for piece in pieces if piece not in results]
            for finished in run_in_rounds(spark, left, walk, _size, progress or NoProgress(), "verifying"):
                results.update(finished)
                kept.keep({piece.key: _to_json(result) for piece, result in finished})
    return [
        _conclude(directory, [listed[path] for path in paths], results, live, observer)
        for directory, paths in partitions.items()
    ]


def cut(
    partition: PartitionFiles, *, deep: bool, is_live: bool, piece_bytes: int = PIECE_BYTES
) -> Iterator[VerifyPiece]:
    """Yield a partition's segments in pieces of neighbours. Only a single segment may exceed `piece_bytes`."""
    bases: list[int] = []
    size = newest = 0
    for segment in partition.segments:
        try:
            status = segment.path(names.LOG).stat()
        except FileNotFoundError:
            continue  # a running broker has just deleted it
        if bases and size + status.st_size > piece_bytes:
            yield VerifyPiece(partition.path, tuple(bases), size, newest, deep, is_live)
            bases, size, newest = [], 0, 0
        bases.append(segment.base_offset)
        size += status.st_size
        newest = max(newest, _newest_ns(partition.path, segment.base_offset))
    if bases:
        yield VerifyPiece(partition.path, tuple(bases), size, newest, deep, is_live)


def walk(piece: VerifyPiece) -> PieceResult:
    """Verify the segments of a piece, in a task."""
    collected = _CollectedFindings()
    findings = Findings(collected)
    partition = list_partition(piece.partition)
    segments = [segment for segment in partition.segments if segment.base_offset in piece.base_offsets]
    epochs = check_names_and_epochs(partition, Findings(_CollectedFindings()))  # the driver reports these findings
    walked = walk_segments(partition, segments, epochs, findings, deep=piece.deep, is_live=piece.is_live)
    for missing in sorted(set(piece.base_offsets) - {segment.base_offset for segment in segments}):
        file = names.segment_file(piece.partition, missing, names.LOG)
        findings.note(file, None, "was deleted while the rest was being read")
    return PieceResult(walked, collected.findings, dict(findings.counts))


def joined(results: Sequence[PieceResult], findings: Findings, path: Path) -> Walked:
    """Combine the results of a partition's pieces, and check what no piece can see: the leader epochs between them."""
    total: Walked | None = None
    for result in results:
        walked = result.walked
        if total is None:
            total = replace(walked)
            continue
        if walked.leader_epoch != -1 and walked.leader_epoch < total.leader_epoch:
            message = (
                f"leader epoch {walked.leader_epoch} follows leader epoch {total.leader_epoch} of an older segment"
            )
            findings.warning(path, None, message, "compare the log with its other replicas")
        total.last_offset = max(total.last_offset, walked.last_offset)
        total.leader_epoch = max(total.leader_epoch, walked.leader_epoch)
        total.max_timestamp = max(total.max_timestamp, walked.max_timestamp)
        for count in ("segments", "batches", "records", "bytes", "gaps"):
            setattr(total, count, getattr(total, count) + getattr(walked, count))
    return total or Walked(last_offset=-1)


class _CollectedFindings:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        pass


def _partitions(directory: Path) -> list[Path]:
    partitions = find_partitions(directory)
    if not partitions:
        raise StorageError(
            f"{directory}: is neither a partition nor a data directory: it contains no directory like orders-0"
        )
    return partitions


def _newest_ns(partition: Path, base_offset: int) -> int:
    newest = 0
    for suffix in names.SEGMENT_SUFFIXES:
        try:
            newest = max(newest, names.segment_file(partition, base_offset, suffix).stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return newest


def _size(piece: VerifyPiece) -> int:
    return piece.size


def _conclude(
    directory: Path,
    partitions: list[PartitionFiles],
    results: dict[VerifyPiece, PieceResult],
    live: dict[Path, bool],
    observer: Observer,
) -> Report:
    by_partition: dict[Path, list[tuple[VerifyPiece, PieceResult]]] = {}
    for piece, result in results.items():
        by_partition.setdefault(piece.partition, []).append((piece, result))
    summaries = []
    for partition in partitions:
        pieces = sorted(by_partition.get(partition.path, ()), key=lambda pair: pair[0].base_offsets)
        summaries.append(_summary(partition, [result for _, result in pieces], observer, is_live=live[partition.path]))
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


def _from_json(saved: dict[str, Any]) -> PieceResult:
    return PieceResult(
        Walked(**saved["walked"]),
        [
            Finding(Severity(severity), Path(file), position, what, advice)
            for severity, file, position, what, advice in saved["findings"]
        ],
        {Severity(name): count for name, count in saved["counts"].items()},
    )
