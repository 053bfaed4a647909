"""Sound logs have no findings; each kind of damage has one, at its place."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.inspect.dump import dump
from stratalog.inspect.findings import FINDINGS_A_FILE, Finding, Severity
from stratalog.inspect.rows import BatchRow
from stratalog.inspect.verify import Report, total_log_bytes, verify
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.storage import Log
from tests.inspect.written_logs import (
    START,
    compacted_batch,
    copy_of,
    damage,
    fill,
    golden_partitions,
    logs_of,
    record,
    tree_state,
    write_batches,
    write_log,
    write_transactions,
)


class Listener:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.bytes = 0

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        self.bytes += size


def verified(path: Path, *, deep: bool = True) -> tuple[Report, list[Finding]]:
    listener = Listener()
    total = total_log_bytes(path)
    report = verify(path, listener, deep=deep)
    assert listener.bytes == total
    return report, listener.findings


def only_finding(path: Path, *, deep: bool = True) -> Finding:
    _, findings = verified(path, deep=deep)
    assert len(findings) == 1, findings
    return findings[0]


def batches_of(log: Path) -> list[BatchRow]:
    return [row for row in dump(log).rows if isinstance(row, BatchRow)]


@pytest.mark.parametrize("partition", golden_partitions(), ids=lambda path: path.name)
def test_kafkas_own_files_have_no_problems(partition: Path) -> None:
    report, _ = verified(partition)
    assert report.problems == 0


@pytest.mark.parametrize("deep", [True, False])
def test_sound_log_has_no_findings(tmp_path: Path, deep: bool) -> None:
    report, findings = verified(write_log(tmp_path / "orders-0"), deep=deep)
    assert findings == []
    (partition,) = report.partitions
    assert (partition.records, partition.log_end_offset, partition.max_timestamp) == (200, 200, START + 199)
    assert partition.segments == len(logs_of(tmp_path / "orders-0"))


def test_sound_log_beside_its_writer_has_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path, {"index.interval.bytes": 100, "segment.bytes": 4096}) as log:
        fill(log, 300)
        assert verified(path)[1] == []
        assert verified(tmp_path)[1] == []


def test_what_a_crash_left_is_sound_but_for_the_torn_tail(tmp_path: Path) -> None:
    with Log.open(tmp_path / "a" / "orders-0", {"index.interval.bytes": 100}) as log:
        fill(log, 50)
        crashed = copy_of(log.path, tmp_path / "b")
    assert verified(crashed)[1] == []
    size = logs_of(crashed)[0].stat().st_size
    with logs_of(crashed)[0].open("ab") as file:
        file.write(compacted_batch(50, [0])[:70])
    finding = only_finding(crashed)
    assert (finding.severity, finding.position) == (Severity.WARNING, size)
    assert "recovery cuts off" in finding.advice


def test_torn_tail_is_a_note_while_a_process_appends(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        fill(log, 10)
        with logs_of(log.path)[0].open("ab") as file:
            file.write(b"\x00" * 5)
        assert only_finding(log.path).severity is Severity.NOTE


def test_wrong_checksum_is_an_error_at_its_batch(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    log = logs_of(path)[1]
    spoiled = batches_of(log)[2]
    damage(log, spoiled.position + spoiled.size - 1, b"!")
    finding = only_finding(path)
    assert (finding.severity, finding.file, finding.position) == (Severity.ERROR, log, spoiled.position)


def test_torn_tail_of_a_sealed_segment_is_an_error(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    log = logs_of(path)[0]
    with log.open("ab") as file:
        file.write(b"\x00" * 9)
    finding = only_finding(path)
    assert (finding.severity, finding.position) == (Severity.ERROR, log.stat().st_size - 9)
    assert "9 bytes are left" in finding.what


def test_offsets_that_go_back_are_an_error(tmp_path: Path) -> None:
    path = write_batches(tmp_path / "orders-0", {0: [compacted_batch(5, [0]), compacted_batch(3, [0])]})
    _, findings = verified(path)
    errors = [finding.what for finding in findings if finding.severity is Severity.ERROR]
    assert errors == ["batch with offsets 3..3 follows offset 5"]


def test_offsets_past_the_next_segment_are_an_error(tmp_path: Path) -> None:
    segments = {0: [compacted_batch(0, [0, 1, 2, 3])], 3: [compacted_batch(4, [0])]}
    _, findings = verified(write_batches(tmp_path / "orders-0", segments))
    errors = [finding.what for finding in findings if finding.severity is Severity.ERROR]
    assert errors == ["batch with offsets 0..3 does not belong in this segment, which has 0..2"]


def test_gaps_are_one_note_a_segment(tmp_path: Path) -> None:
    with Log.open(write_batches(tmp_path / "orders-0", {0: [compacted_batch(3, [0, 4], 6), compacted_batch(20, [0])]})):
        pass
    report, findings = verified(tmp_path / "orders-0")
    (gaps,) = [finding for finding in findings if "gaps" in finding.what]
    assert (gaps.severity, gaps.what) == (
        Severity.NOTE,
        "2 gaps, 18 offsets are missing; the first at offset 0",
    )
    assert (report.problems, report.partitions[0].gaps) == (0, 2)


def with_count(batch: bytearray, count: int) -> bytearray:
    """A batch whose header lies about its records, under a right checksum."""
    from stratalog.records.builder import BATCH_HEADER, seal_batch

    base, _, epoch, _, _, attributes, delta, first, largest, *_, _ = BATCH_HEADER.unpack_from(batch)
    return seal_batch(
        batch,
        base_offset=base,
        record_count=count,
        last_offset_delta=delta,
        base_timestamp=first,
        max_timestamp=largest,
        attributes=attributes,
        leader_epoch=epoch,
    )


def test_records_that_are_not_there_are_found_only_by_looking_deep(tmp_path: Path) -> None:
    lying = with_count(compacted_batch(0, [0, 1, 2]), 2)
    path = write_batches(tmp_path / "orders-0", {0: [lying]})
    errors = [finding for finding in verified(path)[1] if finding.severity is Severity.ERROR]
    assert len(errors) == 1
    assert "can't be decoded" in errors[0].what
    assert not [finding for finding in verified(path, deep=False)[1] if finding.severity is Severity.ERROR]


def test_bomb_is_noted_and_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.inspect.verify_contents.LARGEST_INFLATED", 1000)
    bomb = build_batch([record(0, size=100_000)], codec=Codec.ZSTD)
    with Log.open(tmp_path / "orders-0") as log:
        log.append(bomb)
    finding = only_finding(tmp_path / "orders-0")
    assert finding.severity is Severity.NOTE
    assert "inflates to more" in finding.what


def test_max_timestamp_that_is_too_low_is_a_warning(tmp_path: Path) -> None:
    from stratalog.records.builder import BATCH_HEADER, seal_batch

    batch = compacted_batch(0, [0, 1])
    attributes, delta, first = BATCH_HEADER.unpack_from(batch)[5:8]
    seal = seal_batch(
        batch, base_offset=0, record_count=2, last_offset_delta=delta, base_timestamp=first,
        max_timestamp=first, attributes=attributes, leader_epoch=0,
    )  # fmt: skip
    with Log.open(write_batches(tmp_path / "orders-0", {0: [seal]})):
        pass
    _, findings = verified(tmp_path / "orders-0")
    assert "its youngest record has" in " ".join(f.what for f in findings if f.severity is Severity.WARNING)


def spoil_offset(content: bytearray) -> None:
    struct.pack_into(">i", content, 8, struct.unpack_from(">i", content, 8)[0] - 1)


def spoil_position(content: bytearray) -> None:
    struct.pack_into(">i", content, 12, struct.unpack_from(">i", content, 12)[0] + 1)


def spoil_order(content: bytearray) -> None:
    content[0:8], content[8:16] = content[8:16], content[0:8]


def spoil_length(content: bytearray) -> None:
    content += b"\x01"


def spoil_end(content: bytearray) -> None:
    content += struct.pack(">ii", 2**30, 2**30)


@pytest.mark.parametrize("spoil", [spoil_position, spoil_order, spoil_length, spoil_end])
def test_offset_index_that_does_not_fit_is_a_warning(tmp_path: Path, spoil: Callable[[bytearray], None]) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20)
    index = path / f"{0:020d}.index"
    content = bytearray(index.read_bytes())
    spoil(content)
    index.write_bytes(content)
    finding = only_finding(path)
    assert (finding.severity, finding.file) == (Severity.WARNING, index)
    assert "made again" in finding.advice


def test_offset_index_entry_of_an_older_broker_is_a_note(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20)
    index = path / f"{0:020d}.index"
    content = bytearray(index.read_bytes())
    spoil_offset(content)
    index.write_bytes(content)
    assert only_finding(path).severity is Severity.NOTE


def test_offset_index_entry_that_would_skip_records_is_a_warning(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20, index_interval_bytes=1000)
    index = path / f"{0:020d}.index"
    content = bytearray(index.read_bytes())
    struct.pack_into(">i", content, 8, struct.unpack_from(">i", content, 0)[0] + 1)
    index.write_bytes(content)
    assert only_finding(path).severity is Severity.WARNING


@pytest.mark.parametrize("change", [-1, 1])
def test_time_index_with_a_wrong_timestamp_is_a_warning(tmp_path: Path, change: int) -> None:
    path = write_log(tmp_path / "orders-0")
    index = sorted(path.glob("*.timeindex"))[0]
    content = bytearray(index.read_bytes())
    struct.pack_into(">q", content, 12, struct.unpack_from(">q", content, 12)[0] + change)
    index.write_bytes(content)
    finding = only_finding(path)
    assert (finding.severity, finding.file, finding.position) == (Severity.WARNING, index, 12)


def test_sealed_time_index_without_the_largest_timestamp_is_a_warning(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    index = sorted(path.glob("*.timeindex"))[0]
    index.write_bytes(index.read_bytes()[:-12])
    assert "the segment's largest is" in only_finding(path).what


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_is_a_warning(tmp_path: Path, suffix: str) -> None:
    path = write_log(tmp_path / "orders-0")
    sorted(path.glob(f"*{suffix}"))[1].unlink()
    assert only_finding(path).what == "is missing"


def test_sealed_index_with_zeros_at_its_end_is_a_warning(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    index = sorted(path.glob("*.index"))[0]
    index.write_bytes(index.read_bytes() + bytes(80))
    assert "zeros" in only_finding(path).what


def test_transaction_index_must_name_markers(tmp_path: Path) -> None:
    path = write_transactions(tmp_path / "orders-0")
    assert verified(path)[1] == []
    (index,) = path.glob("*.txnindex")
    content = index.read_bytes()
    index.write_bytes(content[:18] + (4).to_bytes(8, "big") + content[26:])
    assert "no marker has its last offset" in only_finding(path).what
    index.write_bytes(content + b"\x00")
    assert "not a multiple of 34" in only_finding(path).what


def test_advice_for_a_damaged_transaction_index_works(tmp_path: Path) -> None:
    path = write_transactions(tmp_path / "orders-0")
    (index,) = path.glob("*.txnindex")
    content = index.read_bytes()
    for file in [index, *path.glob("*.snapshot")]:
        file.unlink()
    with Log.open(path, {"retention.ms": -1}):
        pass
    assert index.read_bytes() == content
    assert verified(path)[1] == []


def test_damaged_small_files_are_warnings(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    snapshot = max(path.glob("*.snapshot"))
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"!")
    (path / "leader-epoch-checkpoint").write_text("0\n2\n5 0\n3 7\n")
    (path / "partition.metadata").write_text("version: 0\ntopic_id: short")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 999\n")
    report, findings = verified(tmp_path)
    assert {finding.file.name for finding in findings if finding.severity is Severity.WARNING} == {
        snapshot.name,
        "leader-epoch-checkpoint",
        "partition.metadata",
        "recovery-point-offset-checkpoint",
    }
    assert (report.errors, report.warnings) == (0, 4)


def test_leader_epochs_of_log_and_checkpoint_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path) as log:
        log.append(build_batch([record(0)]), leader_epoch=3)
        log.append(build_batch([record(1)]), leader_epoch=5)
    assert verified(path)[1] == []
    (path / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n4 1\n")
    assert "leader-epoch-checkpoint says 4" in only_finding(path).what


def test_epoch_that_a_kill_left_unsaved_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "live" / "orders-0"
    with Log.open(path) as log:
        log.append(build_batch([record(0)]), leader_epoch=3)
        log.flush()
        log.append(build_batch([record(1)]), leader_epoch=5)
        left = copy_of(path, tmp_path / "left")
    assert not [finding for finding in verified(left)[1] if "epoch" in finding.what]


def test_files_that_stop_kafka_are_warnings_and_left_overs_notes(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    for name in ("foo.log", "00000000000000000000.log.swap", "00000000000000000000.log.deleted", "notes.txt"):
        (path / name).touch()
    found = {finding.file.name: finding.severity for finding in verified(path)[1]}
    assert found == {
        "foo.log": Severity.WARNING,
        "00000000000000000000.log.swap": Severity.WARNING,
        "00000000000000000000.log.deleted": Severity.NOTE,
    }


def test_file_full_of_findings_does_not_fill_the_screen(tmp_path: Path) -> None:
    spoiled = compacted_batch(0, [0])
    spoiled[-1] ^= 1
    path = write_batches(tmp_path / "orders-0", {0: [spoiled] * 100})
    report, findings = verified(path)
    assert report.errors == 199  # each but the first is also out of order
    assert len([finding for finding in findings if finding.severity is Severity.ERROR]) == FINDINGS_A_FILE
    assert [finding.what for finding in findings if "more findings" in finding.what] == [
        "179 more findings in this file"
    ]


def test_directory_without_partitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="neither a partition nor a data directory"):
        verify(tmp_path, Listener())


def test_verifying_changes_nothing(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    damage(logs_of(path)[0], 100, b"damage")
    sorted(path.glob("*.index"))[0].write_bytes(b"nonsense!")
    before = tree_state(tmp_path)
    verified(tmp_path)
    assert tree_state(tmp_path) == before
