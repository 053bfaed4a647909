from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import StorageError
from stratalog.inspect.dump import FileKind, Options, dump, identify
from stratalog.inspect.rows import (
    AbortedRow,
    BatchRow,
    EpochRow,
    OffsetEntryRow,
    PartitionOffsetRow,
    ProblemRow,
    ProducerRow,
    RecordRow,
    Row,
    TimeEntryRow,
    TopicIdRow,
)
from stratalog.storage import Log
from tests.inspect.written_logs import (
    GOLDEN,
    copy_of,
    damage,
    fill,
    golden_partitions,
    logs_of,
    tree_state,
    write_log,
    write_transactions,
)


def rows_of(path: Path, **options: Any) -> list[Row]:
    return list(dump(path, Options(**options)).rows)


def expected_of(partition: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((partition / "expected.json").read_text())
    return loaded


@pytest.mark.parametrize("partition", golden_partitions(), ids=lambda path: path.name)
def test_records_equal_those_of_kafkas_consumer(partition: Path) -> None:
    expected = expected_of(partition)["records"]
    start = expected[0]["offset"]  # earlier records were deleted: the consumer does not see them, but the file has them
    shown = [
        [
            row.offset,
            row.timestamp,
            None if row.key is None else base64.b64encode(row.key).decode(),
            None if row.value is None else base64.b64encode(row.value).decode(),
            [[key, None if value is None else base64.b64encode(value).decode()] for key, value in row.headers],
        ]
        for log in logs_of(partition)
        for row in rows_of(log, records=True)
        if isinstance(row, RecordRow) and row.control is None and row.offset >= start
    ]
    fields = ("offset", "timestamp", "key", "value", "headers")
    assert shown == [[record[field] for field in fields] for record in expected]


@pytest.mark.parametrize("partition", golden_partitions(), ids=lambda path: path.name)
def test_batches_and_index_entries_equal_those_of_kafkas_tool(partition: Path) -> None:
    expected = expected_of(partition)
    batches = [
        (log.name, row.position, row.size, row.last_offset, row.max_timestamp, row.codec, row.crc, row.crc_valid)
        for log in logs_of(partition)
        for row in rows_of(log)
        if isinstance(row, BatchRow)
    ]
    fields = ("file", "position", "size", "last_offset", "max_timestamp", "codec", "crc")
    assert batches == [
        (*(batch[field] for field in fields[:4]), batch.get("max_timestamp", -1), batch["codec"], batch["crc"], True)
        for batch in expected["batches"]
    ]
    for name, entries in expected["index"].items():
        shown = [[row.offset, row.position] for row in rows_of(partition / name) if isinstance(row, OffsetEntryRow)]
        assert shown == entries
    for name, entries in expected["timeindex"].items():
        times = [[row.timestamp, row.offset] for row in rows_of(partition / name) if isinstance(row, TimeEntryRow)]
        assert times == entries


def test_markers_are_shown_with_type_and_coordinator_epoch() -> None:
    for name in ("java-transactional", "confluent-kafka-transactional"):
        rows = [row for row in rows_of(logs_of(GOLDEN / name)[0], records=True) if isinstance(row, RecordRow)]
        shown = [(row.offset, row.control, row.coordinator_epoch) for row in rows if row.control is not None]
        expected = expected_of(GOLDEN / name)["control"]
        assert shown == [(marker["offset"], marker["type"], marker["coordinator_epoch"]) for marker in expected]


def test_aborted_transactions_and_producers_are_shown(tmp_path: Path) -> None:
    path = write_transactions(tmp_path / "orders-0")
    (txnindex,) = path.glob("*.txnindex")
    assert rows_of(txnindex) == [AbortedRow(7, 3, 5, 6)]
    (producer,) = [row for row in rows_of(max(path.glob("*.snapshot"))) if isinstance(row, ProducerRow)]
    assert (producer.producer_id, producer.last_sequence, producer.transaction_first_offset) == (7, 5, 6)


def test_small_files_are_shown(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    assert rows_of(path / "leader-epoch-checkpoint") == [EpochRow(0, 0)]
    assert rows_of(tmp_path / "recovery-point-offset-checkpoint") == [PartitionOffsetRow("orders", 0, 10)]
    (topic,) = rows_of(path / "partition.metadata")
    assert isinstance(topic, TopicIdRow)
    assert len(topic.topic_id) == 22


def test_limit_on_bytes_ends_the_dump_early_but_shows_one_batch(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0"))[0]
    assert len(rows_of(log, max_bytes=0)) == 1
    assert 1 < len(rows_of(log, max_bytes=1000)) < len(rows_of(log))


def test_wrong_checksum_is_a_problem_at_its_position_and_the_rest_is_shown(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0"))[0]
    batches = [row for row in rows_of(log) if isinstance(row, BatchRow)]
    damage(log, batches[1].position + 70, b"\xff\xff")
    rows = rows_of(log)
    assert [row.position for row in rows if isinstance(row, ProblemRow)] == [batches[1].position]
    assert len([row for row in rows if isinstance(row, BatchRow)]) == len(batches)


def test_damage_has_position_reason_and_bytes_left(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0"))[0]
    batches = [row for row in rows_of(log) if isinstance(row, BatchRow)]
    damage(log, batches[2].position + 16, b"\x09")
    rows = rows_of(log)
    assert len(rows) == 3
    problem = rows[-1]
    assert isinstance(problem, ProblemRow)
    assert (problem.position, problem.bytes_left) == (batches[2].position, log.stat().st_size - batches[2].position)
    assert "magic is 9" in problem.reason
    assert not problem.is_harmless


def test_torn_tail_is_harmless_while_a_process_appends_and_damage_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path) as log:
        fill(log, 10)
        active = logs_of(path)[-1]
        with active.open("ab") as file:
            file.write(b"\x00" * 7)
        during = rows_of(active)[-1]
        crashed = rows_of(logs_of(copy_of(path, tmp_path / "crashed"))[-1])[-1]
    assert isinstance(during, ProblemRow)
    assert during.is_harmless
    assert isinstance(crashed, ProblemRow)
    assert (crashed.is_harmless, crashed.bytes_left) == (False, 7)


def test_preallocated_indexes_of_a_running_process_are_shown_without_their_zeros(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path, {"index.interval.bytes": 100}) as log:
        fill(log, 50)
        for suffix in (".index", ".timeindex"):
            *entries, zeros = rows_of(path / f"{0:020d}{suffix}")
            assert len(entries) > 3
            assert isinstance(zeros, ProblemRow)
            assert zeros.is_harmless


def test_index_out_of_order_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(bytes.fromhex("0000000500000064000000030000009600"))
    problems = [row for row in rows_of(path) if isinstance(row, ProblemRow)]
    assert [(row.position, row.is_harmless) for row in problems] == [(8, False), (16, False)]


@pytest.mark.parametrize("name", ["a.txnindex", "a.snapshot", "leader-epoch-checkpoint", "partition.metadata"])
def test_unparsable_file_is_one_problem(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x01\x02nonsense" * 5)
    (problem,) = rows_of(path)
    assert isinstance(problem, ProblemRow)
    assert problem.bytes_left == 50


def test_kind_of_deleted_files_is_recognized() -> None:
    assert identify(Path("00000000000000000000.log.deleted")) is FileKind.LOG
    assert identify(Path("00000000000000000000.timeindex.cleaned")) is FileKind.TIME_INDEX
    assert identify(Path("recovery-point-offset-checkpoint.tmp")) is FileKind.OFFSET_CHECKPOINT


def test_unknown_file_is_refused_with_the_known_names() -> None:
    with pytest.raises(StorageError, match=r"known are \*\.log"):
        identify(Path("notes.txt"))


def test_dumping_changes_nothing(tmp_path: Path) -> None:
    path = write_transactions(tmp_path / "orders-0")
    before = tree_state(tmp_path)
    for file in [*path.iterdir(), *tmp_path.glob("*checkpoint")]:
        rows_of(file, records=True)
    assert tree_state(tmp_path) == before
