"""Verification in pieces says what verification in one go says, and goes on where it was stopped."""

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
from tests.pipelines.local_sharing import LocalSharing


class Listener:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        pass


def in_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, resume_file: Path | None = None
) -> tuple[Report, list[Finding], list[pipeline.Piece]]:
    """Each segment is a piece."""
    monkeypatch.setattr(pipeline, "cut", lambda *given, **named: list(cut(*given, **named, piece_bytes=1)))
    listener, sharing = Listener(), LocalSharing()
    (report,) = pipeline.verify(sharing.spark, [path], listener, resume_file=resume_file)
    return report, listener.findings, [piece for some in sharing.context.rounds for piece in some]


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
def test_pieces_together_say_what_one_go_says(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, findings, _ = in_pieces(golden, monkeypatch)
    expected, expected_findings = in_one_go(golden)
    assert sorted_by_file(findings) == sorted_by_file(expected_findings)
    assert report == expected


def test_damage_in_one_piece_is_found_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path / "orders-0", 200)
    middle = logs_of(path)[2]
    damage(middle, 100, b"\xfe")
    report, findings, _ = in_pieces(tmp_path, monkeypatch)
    expected, expected_findings = in_one_go(tmp_path)
    assert report.errors == expected.errors == 1
    assert findings == expected_findings
    assert findings[0].file == middle


def test_stopped_run_reads_only_what_is_left_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = write_log(tmp_path / "data" / "orders-0", 200), tmp_path / "kept"
    damage(logs_of(path)[0], 100, b"\xfe")
    first, findings, pieces = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert len(pieces) == len(logs_of(path))
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # stopped in the middle of the last
    damage(logs_of(path)[1], 100, b"\xfe")
    second, found_then, read_again = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert len(read_again) == 2
    assert (first.errors, second.errors) == (1, 2)
    assert findings[0] in found_then
    third, _, read_again = in_pieces(tmp_path / "data", monkeypatch, resume_file=kept)
    assert (third.errors, read_again) == (2, [])


def test_results_of_another_job_are_not_taken(tmp_path: Path) -> None:
    path, kept = write_log(tmp_path / "orders-0", 20), tmp_path / "kept"
    pipeline.verify(LocalSharing().spark, [path], Listener(), resume_file=kept)
    with pytest.raises(StorageError, match="does not hold results of this job"):
        pipeline.verify(LocalSharing().spark, [path], Listener(), resume_file=kept, deep=False)


def test_segment_that_goes_before_its_turn_is_a_note(tmp_path: Path) -> None:
    partition = list_partition(write_log(tmp_path / "orders-0", 200))
    first = next(cut(partition, deep=True, is_live=True, piece_bytes=1))
    logs_of(partition.path)[0].unlink()
    assert [finding.what for finding in walk(first).findings] == ["was deleted while the rest was being read"]


def test_directory_with_nothing_to_verify_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="neither a partition nor a data directory"):
        pipeline.verify(LocalSharing().spark, [tmp_path], Listener())


def test_several_directories_get_a_report_each(tmp_path: Path) -> None:
    path = write_log(tmp_path / "one" / "orders-0", 20)
    shutil.copytree(path.parent, tmp_path / "two")
    reports = pipeline.verify(LocalSharing().spark, [tmp_path / "one", tmp_path / "two"], Listener())
    assert [report.path.name for report in reports] == ["one", "two"]
    assert [partition.records for report in reports for partition in report.partitions] == [20, 20]
