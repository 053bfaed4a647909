"""The files and the start position of a scan: the right directory, all segments that can match, and no use of a damaged
index."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from stratalog.inspect.partition_files import list_partition
from stratalog.inspect.segment_reader import SegmentReader
from stratalog.records.builder import build_batch
from stratalog.records.format import ControlType
from stratalog.spark import direct_plan
from stratalog.spark.decoding import Aborted
from stratalog.spark.direct_plan import FilesUnavailableError, first_position, partition_directory, segments_of
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.storage.checkpoints import format_partition_metadata
from tests.storage.compaction.keyed_log import KeyedLog
from tests.storage.faults.racing import Unsynced
from tests.storage.hand_made import START_MS, batch_of
from tests.storage.log_builder import LogBuilder

TOPIC_ID = uuid.UUID(int=7)


def make_partition(data_dir: Path, topic_id: uuid.UUID = TOPIC_ID, name: str = "orders-0") -> Path:
    partition = data_dir / name
    partition.mkdir(parents=True)
    (partition / "partition.metadata").write_bytes(format_partition_metadata(topic_id))
    return partition


def test_directory_with_the_topic_id_is_chosen(tmp_path: Path) -> None:
    make_partition(tmp_path / "one", uuid.UUID(int=6))
    right = make_partition(tmp_path / "two")
    dirs = [str(tmp_path / name) for name in ("none", "one", "two")]
    assert partition_directory(dirs, "orders", 0, TOPIC_ID) == right
    assert partition_directory(dirs[:2], "orders", 0, None) == tmp_path / "one" / "orders-0"


def test_replica_that_is_not_in_sync_is_read(tmp_path: Path) -> None:
    partitions = [make_partition(tmp_path / f"broker{node_id}") for node_id in (1, 2, 3)]
    for node_id, key in ((1, "node.id"), (2, "broker.id")):
        (tmp_path / f"broker{node_id}" / "meta.properties").write_text(f"version=1\n{key}={node_id}\n")
    dirs = [str(partition.parent) for partition in partitions]
    assert partition_directory(dirs, "orders", 0, TOPIC_ID, ()) == partitions[0]
    assert partition_directory(dirs, "orders", 0, TOPIC_ID, (2, 1)) == partitions[0]
    assert partition_directory(dirs, "orders", 0, TOPIC_ID, (3, 2)) == partitions[1]
    assert partition_directory(dirs, "orders", 0, TOPIC_ID, (3,)) == partitions[2]  # it does not say whose it is
    with pytest.raises(FilesUnavailableError, match="broker1/orders-0 belongs to broker 1, and in sync are only 2, 3"):
        partition_directory(dirs[:1], "orders", 0, TOPIC_ID, (2, 3))


def test_missing_or_wrong_directory_is_reported(tmp_path: Path) -> None:
    make_partition(tmp_path / "one", uuid.UUID(int=6))
    (tmp_path / "two" / "orders-0").mkdir(parents=True)
    (tmp_path / "three" / "orders-0").mkdir(parents=True)
    (tmp_path / "three" / "orders-0" / "partition.metadata").write_text("nonsense")
    dirs = [str(tmp_path / name) for name in ("none", "one", "two", "three")]
    with pytest.raises(FilesUnavailableError) as caught:
        partition_directory(dirs, "orders", 0, TOPIC_ID)
    message = str(caught.value)
    assert "files of orders-0 can't be read directly" in message
    assert f"{tmp_path}/none/orders-0 does not exist" in message
    assert f"{tmp_path}/one/orders-0 belongs to topic id {uuid.UUID(int=6)}" in message
    assert f"{tmp_path}/two/orders-0 has no partition.metadata" in message
    assert f"{tmp_path}/three/orders-0 can't be read" in message
    assert "log.dirs" in message


def test_only_the_segments_of_the_range_are_read(tmp_path: Path) -> None:
    with LogBuilder(tmp_path) as built:
        built.append(10).roll().append(10).roll().append(10).roll().append(10)
        actual = segments_of(built.log_path, 10, 20, read_committed=False)
        assert [segment.base_offset for segment in actual.files] == [10]
        assert (actual.first_offset, actual.reaches_past_end, actual.aborted) == (0, True, ())
        actual = segments_of(built.log_path, 9, 40, read_committed=False)
        assert [segment.base_offset for segment in actual.files] == [0, 10, 20, 30]
        assert not actual.reaches_past_end


def test_deleted_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(FilesUnavailableError, match="does not exist any more"):
        segments_of(tmp_path / "orders-0", 0, 10, read_committed=False)


def test_unfinished_swap_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_partition(tmp_path)
    swap = partition / f"{0:020d}.log.swap"
    swap.write_bytes(build_batch([(b"k", b"v")]))
    pauses = []

    def rename_at_the_third_pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            swap.rename(partition / f"{0:020d}.log")

    monkeypatch.setattr("time.sleep", rename_at_the_third_pause)
    assert [s.base_offset for s in segments_of(partition, 0, 10, read_committed=False).files] == [0]
    assert len(pauses) == 3


def test_a_swap_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_partition(tmp_path)
    (partition / f"{0:020d}.log.swap").write_bytes(b"")
    monkeypatch.setattr(direct_plan, "_LISTINGS", 3)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(FilesUnavailableError, match="compaction is unfinished"):
        segments_of(partition, 0, 10, read_committed=False)


def test_aborted_transactions_are_read_from_the_segment_of_their_marker(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        transactional = {"producer_epoch": 0, "is_transactional": True}
        keyed.put("a=1", "b=1", producer_id=7, base_sequence=0, **transactional)
        keyed.put("c=1", producer_id=8, base_sequence=0, **transactional).roll()
        keyed.end_transaction(ControlType.ABORT, 7).end_transaction(ControlType.COMMIT, 8)
        keyed.put("d=1", producer_id=7, base_sequence=2, **transactional)
        keyed.end_transaction(ControlType.ABORT, 7)
        actual = segments_of(keyed.log_path, 0, keyed.log.log_end_offset, read_committed=True)
        assert actual.aborted == (Aborted(7, 0, 3), Aborted(7, 5, 6))
        assert segments_of(keyed.log_path, 0, 2, read_committed=True).aborted == (Aborted(7, 0, 3),)
        assert segments_of(keyed.log_path, 0, 2, read_committed=False).aborted == ()
        index = keyed.log_path / f"{3:020d}.txnindex"
        with index.open("ab") as file:
            file.write(b"\0\0\0")  # an incomplete entry
        assert segments_of(keyed.log_path, 0, 7, read_committed=True).aborted == actual.aborted


def dense(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path, disk=Unsynced(), index_interval_bytes=100)


def position_of(built: LogBuilder, start: int, predicate: Predicate = EVERYTHING) -> tuple[int, list[int]]:
    """Return the start position in the first segment, and the base offsets of the batches after it."""
    reader = SegmentReader(list_partition(built.log_path).segments[0])
    try:
        position = first_position(reader, start, predicate)
        return position, [located.header.base_offset for located in reader.headers(position)]
    finally:
        reader.close()


def test_offset_is_looked_up_in_the_index(tmp_path: Path) -> None:
    with dense(tmp_path) as built:
        for _ in range(100):
            built.append(1, value_size=100)
        built.roll()
        position, bases = position_of(built, 60)
        assert position > 0
        assert 50 < bases[0] <= 60


def test_timestamp_is_looked_up_in_the_index(tmp_path: Path) -> None:
    with dense(tmp_path) as built:
        for step in range(100):
            built.log.append(batch_of(START_MS + step * 1000))
        built.roll()
        _, bases = position_of(built, 0, Predicate(from_timestamp=START_MS + 60_000))
        assert 50 < bases[0] <= 60
        _, bases = position_of(built, 80, Predicate(from_timestamp=START_MS + 60_000))
        assert 70 < bases[0] <= 80
        _, bases = position_of(built, 0, Predicate(from_timestamp=START_MS + 1_000_000))
        assert bases == [99]  # only the last batch has to be read


def test_new_record_among_old_ones_is_not_skipped(tmp_path: Path) -> None:
    with dense(tmp_path) as built:
        times = [step * 1000 for step in range(100)]
        times[20] = 90_000
        for step in times:
            built.log.append(batch_of(START_MS + step))
        built.roll()
        _, bases = position_of(built, 0, Predicate(from_timestamp=START_MS + 80_000))
        assert bases[0] <= 20


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "zeros", "noise", "of another log"])
def test_damaged_index_is_not_used(tmp_path: Path, suffix: str, damage: str) -> None:
    with dense(tmp_path / "log") as built, dense(tmp_path / "other") as other:
        for step in range(50):
            built.log.append(batch_of(START_MS + step * 1000))
            other.log.append(batch_of(START_MS - 900_000 + step * 777, size=33))
        built.roll()
        other.roll()
        (index, _), (foreign, _) = built.files(suffix), other.files(suffix)
        if damage == "missing":
            index.unlink()
        elif damage == "of another log":
            index.write_bytes(foreign.read_bytes())
        else:
            index.write_bytes((b"\0" if damage == "zeros" else b"\x13") * index.stat().st_size)
        _, bases = position_of(built, 40, Predicate(from_timestamp=START_MS + 30_000))
        assert bases[0] <= 30 if suffix == ".index" else bases[0] <= 40
