"""Verification in pieces gives the same findings as in one go, and continues after an interruption."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.inspect.findings import Finding
from stratalog.inspect.partition_files import list_partition
from stratalog.inspect.verify import Report
from stratalog.inspect.verify import verify as verify_in_one_go
from stratalog.pipelines import verify as pipeline
from stratalog.pipelines.verify import cut, walk
from tests.inspect.written_logs import damage, golden_partitions, logs_of, write_log
from tests.pipelines.local_tasks import LocalTasks


class Listener:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        pass


def in_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, resume_file: Path | None = None
) -> tuple[Report, list[Finding], list[pipeline.VerifyPiece]]:
    """Verify with one piece per segment."""
    monkeypatch.setattr(pipeline, "cut", lambda *args, **options: list(cut(*args, **options, piece_bytes=1)))
    listener, tasks = Listener(), LocalTasks()
    (report,) = pipeline.verify(tasks.spark, [path], listener, resume_file=resume_file)
    return report, listener.findings, [piece for pieces in tasks.context.rounds for piece in pieces]


def in_one_go(path: Path) -> tuple[Report, list[Finding]]:
    listener = Listener()
    return verify_in_one_go(path, listener), listener.findings


def sorted_by_file(findings: list[Finding]) -> list[tuple[str, str]]:
    return sorted((str(finding.file), finding.what) for finding in findings)


def test_pieces_are_neighbours_up_to_a_size(tmp_path: Path) -> None:
    partition = list_partition(write_log(tmp_path / "orders-0", 200))
    sizes = [path.stat().st_size for path in logs_of(partition.path)]
    assert len(sizes) > 3
    pieces = list(cut(partition, deep=True, is_live=False, piece_bytes=sizes[0] + sizes[1]))
    assert pieces[0].base_offsets == tuple(partition.bases[:2])
    assert [base for piece in pieces for base in piece.base_offsets] == partition.bases
    assert sum(piece.size for piece in pieces) == sum(sizes)


@pytest.mark.parametrize("golden", golden_partitions(), ids=lambda path: path.name)
def test_pieces_give_the_findings_of_one_go(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, findings, _ = in_pieces(golden, monkeypatch)
    expected, expected_findings = in_one_go(golden)
    assert sorted_by_file(findings) == sorted_by_file(expected_findings)
    assert report == expected


def test_damage_in_one_piece_is_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path / "orders-0", 200)
    middle = logs_of(path)[2]
    damage(middle, 100, b"\xfe")
    report, findings, _ = in_pieces(tmp_path, monkeypatch)
    expected, expected_findings = in_one_go(tmp_path)
    assert report.errors == expected.errors == 1
    assert findings == expected_findings
    assert findings[0].file == middle


def test_run_after_an_interruption_reads_only_remaining_or_changed_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = write_log(tmp_path / "data" / "orders-0", 200), tmp_path / "kept"
    damage(logs_of(path)[0], 100, b"\xfe")
    first, findings, pieces = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert len(pieces) == len(logs_of(path))
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # interrupted while it wrote the last result
    damage(logs_of(path)[1], 100, b"\xfe")
    second, later_findings, read_again = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert len(read_again) == 2
    assert (first.errors, second.errors) == (1, 2)
    assert findings[0] in later_findings
    third, _, read_again = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert (third.errors, read_again) == (2, [])


def test_results_of_another_job_are_refused(tmp_path: Path) -> None:
    path, kept = write_log(tmp_path / "orders-0", 20), tmp_path / "kept"
    pipeline.verify(LocalTasks().spark, [path], Listener(), resume_file=kept)
    with pytest.raises(StorageError, match="contains results of another job"):
        pipeline.verify(LocalTasks().spark, [path], Listener(), resume_file=kept, deep=False)


def test_segment_deleted_during_the_run_is_a_note(tmp_path: Path) -> None:
    partition = list_partition(write_log(tmp_path / "orders-0", 200))
    first = next(cut(partition, deep=True, is_live=True, piece_bytes=1))
    logs_of(partition.path)[0].unlink()
    assert [finding.what for finding in walk(first).findings] == ["was deleted while the rest was being read"]


def test_directory_with_nothing_to_verify_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="neither a partition nor a data directory"):
        pipeline.verify(LocalTasks().spark, [tmp_path], Listener())


def test_several_directories_get_a_report_each(tmp_path: Path) -> None:
    path = write_log(tmp_path / "one" / "orders-0", 20)
    shutil.copytree(path.parent, tmp_path / "two")
    reports = pipeline.verify(LocalTasks().spark, [tmp_path / "one", tmp_path / "two"], Listener())
    assert [report.path.name for report in reports] == ["one", "two"]
    assert [partition.records for report in reports for partition in report.partitions] == [20, 20]
