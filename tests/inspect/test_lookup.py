"""The explained lookup finds the same batch and record as the storage engine, in any valid log."""

from __future__ import annotations

import random
import resource
import shutil
from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError, StorageError
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.lookup_steps import (
    EntryCompared,
    Explanation,
    FloorEntry,
    IndexDoubted,
    Scanned,
    SegmentChosen,
    SegmentCompared,
    SegmentLeft,
)
from stratalog.inspect.lookup_time import explain_timestamp
from stratalog.storage import Log, LogConfig
from tests.inspect.written_logs import (
    SMALL,
    START,
    compacted_batch,
    copy_of,
    damage,
    fill,
    logs_of,
    tree_state,
    write_batches,
    write_log,
    write_random_log,
    write_transactions,
)


def steps_of(explanation: Explanation, kind: type) -> list[object]:
    return [step for step in explanation.steps if isinstance(step, kind)]


def agrees_with_read(log: Log, offset: int) -> Explanation:
    read = log.read(offset, 1)
    explanation = explain_offset(log.path, offset)
    if read.slice.length == 0:
        assert explanation.batch is None
    else:
        assert explanation.batch is not None
        assert explanation.file == read.slice.file.path
        assert (explanation.batch.position, explanation.batch.base_offset) == (read.slice.position, read.base_offset)
    assert (explanation.log_start_offset, explanation.log_end_offset) == (log.log_start_offset, log.log_end_offset)
    return explanation


def agrees_with_find_timestamp(log: Log, timestamp: int) -> Explanation:
    from_engine = log.find_timestamp(timestamp)
    explanation = explain_timestamp(log.path, timestamp)
    record = explanation.record
    assert (None if record is None else (record.offset, record.timestamp)) == from_engine
    return explanation


def agree_everywhere(log: Log, source: random.Random, samples: int = 40) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    edges = {start, max(end - 1, start), end, *(segment.base_offset for segment in log.segments)}
    for offset in sorted({at for at in edges if at >= start} | {source.randint(start, end) for _ in range(samples)}):
        agrees_with_read(log, offset)
    for timestamp in [
        -1,
        0,
        START,
        START + 520,
        2**62,
        *(source.randrange(START, START + 530) for _ in range(samples)),
    ]:
        agrees_with_find_timestamp(log, timestamp)


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_the_engine_on_random_logs(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    path = tmp_path / "orders-0"
    config = LogConfig(
        segment_bytes=source.choice((3000, 20_000)),
        index_interval_bytes=source.choice((0, 200, 4096)),
        segment_index_bytes=source.choice((256, 8192)),
        retention_ms=-1,
    )
    with Log.open(path, config) as log:
        agree_everywhere(log, source, 3)
        write_random_log(log, source, 120)
        agree_everywhere(log, source)  # while the process writes
        log.advance_start(source.randrange(1, log.log_end_offset))
        agree_everywhere(log, source)
    with Log.open(path, config) as log:
        agree_everywhere(log, source)


def test_agrees_after_a_crash(tmp_path: Path) -> None:
    source = random.Random(1)
    with Log.open(tmp_path / "a" / "orders-0", LogConfig(**SMALL)) as log:  # type: ignore[arg-type]
        write_random_log(log, source, 60)
        crashed = copy_of(log.path, tmp_path / "b")
    explained = {offset: explain_offset(crashed, offset).batch for offset in range(log.log_end_offset)}
    with Log.open(crashed) as recovered:
        for offset, batch in explained.items():
            assert batch is not None
            assert recovered.read(offset, 1).slice.position == batch.position


def test_agrees_where_compaction_left_gaps(tmp_path: Path) -> None:
    first = [compacted_batch(3, [0, 4], 6), compacted_batch(20, [0]), compacted_batch(30, [1, 2], 9)]
    second = [compacted_batch(55, [0, 1]), compacted_batch(90, [0])]
    path = write_batches(tmp_path / "orders-0", {0: first, 50: second, 200: [compacted_batch(200, [0])]})
    with Log.open(path, {"retention.ms": -1}) as log:
        for offset in range(log.log_start_offset, log.log_end_offset + 1):
            agrees_with_read(log, offset)
        for timestamp in range(START, START + 202):
            agrees_with_find_timestamp(log, timestamp)
        explanation = explain_offset(path, 150)
        gone = explain_offset(path, 38)
    assert [type(step) for step in explanation.steps].count(SegmentLeft) == 1
    assert explanation.batch is not None
    assert explanation.batch.base_offset == 200
    assert gone.batch is not None
    assert gone.record is None  # the batch still has this offset range, but its last records are gone


def test_agrees_on_logs_with_markers(tmp_path: Path) -> None:
    path = write_transactions(tmp_path / "orders-0")
    with Log.open(path, {"retention.ms": -1}) as log:
        agree_everywhere(log, random.Random(0))


def test_every_comparison_is_a_step(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 400)
    explanation = explain_offset(path, 397, ManualClock())
    compared = steps_of(explanation, SegmentCompared) + steps_of(explanation, EntryCompared)
    assert len(compared) == explanation.cost.comparisons > 4
    (chosen,) = [step for step in explanation.steps if isinstance(step, SegmentChosen)]
    assert explanation.file == path / f"{chosen.base_offset:020d}.log"
    (floor,) = [step for step in explanation.steps if isinstance(step, FloorEntry)]
    (scan,) = [step for step in explanation.steps if isinstance(step, Scanned)]
    assert floor.entry is not None
    assert scan.start == floor.entry.value
    assert scan.batches == explanation.cost.batches_stepped_over + 1
    assert explanation.record is not None
    assert explanation.record.key == b"key-397"
    assert 0 < explanation.cost.bytes_read < 20_000
    assert explanation.cost.seconds == 0


def test_long_scan_has_a_limited_number_of_steps(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 2000, segment_bytes=2**20, index_interval_bytes=2**20)
    explanation = explain_offset(path, 1999)
    (scan,) = [step for step in explanation.steps if isinstance(step, Scanned)]
    assert (scan.batches, len(scan.head) + len(scan.tail)) == (400, 11)
    assert scan.tail[-1].is_found


@pytest.mark.parametrize("offset", [-1, 201, 2**62])
def test_offset_out_of_range_names_the_range(tmp_path: Path, offset: int) -> None:
    path = write_log(tmp_path / "orders-0", 200)
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} is not in the log, which has offsets 0 to 199"):
        explain_offset(path, offset)


def test_empty_log_is_an_error_with_its_next_offset(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0"):
        pass
    with pytest.raises(OffsetOutOfRangeError, match="empty; its next offset is 0"):
        explain_offset(tmp_path / "orders-0", 1)
    assert explain_offset(tmp_path / "orders-0", 0).batch is None
    assert explain_timestamp(tmp_path / "orders-0", 0).batch is None


def test_directory_without_segments_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"00000000000000000000\.log"):
        explain_offset(tmp_path, 1)


def test_refuted_index_entry_is_a_step_and_is_not_followed(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20)
    sound = explain_offset(path, 60)
    index = path / f"{0:020d}.index"
    content = bytearray(index.read_bytes())
    for position in range(7, len(content), 8):
        content[position] ^= 1
    index.write_bytes(content)
    (path / f"{0:020d}.timeindex").unlink()
    explanation = explain_offset(path, 60)
    assert steps_of(explanation, IndexDoubted)
    assert explanation.batch == sound.batch
    by_time = explain_timestamp(path, START + 60)
    assert by_time.record is not None
    assert by_time.record.offset == 60


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_costs_a_walk(tmp_path: Path, suffix: str) -> None:
    path = write_log(tmp_path / "orders-0", 100)
    for index in path.glob(f"*{suffix}"):
        index.unlink()
    record = explain_timestamp(path, START + 70).record
    assert record is not None
    assert record.offset == 70


def test_damage_on_the_way_is_an_error_with_its_position(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20, index_interval_bytes=2**20)
    log = logs_of(path)[0]
    damage(log, 0, (50).to_bytes(8, "big"))
    with pytest.raises(CorruptBatchError, match="position"):
        explain_offset(path, 10)


def test_lookup_works_with_more_segments_than_open_files(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 500, segment_bytes=600, segment_index_bytes=64)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    already = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (already + 20, limits[1]))
    try:
        assert len(logs_of(path)) > 20
        record = explain_timestamp(path, START + 499).record
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert record is not None
    assert record.offset == 499


def test_looking_up_changes_nothing(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0")
    shutil.copy(path / f"{0:020d}.timeindex", path / f"{0:020d}.index")  # a damaged index stays unchanged
    before = tree_state(tmp_path)
    explain_offset(path, 10)
    explain_timestamp(path, START + 10)
    assert tree_state(tmp_path) == before


def test_torn_tail_of_the_active_segment_is_its_end(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path) as log:
        fill(log, 10)
        with logs_of(path)[-1].open("ab") as file:
            file.write(compacted_batch(10, [0])[:70])
        assert explain_offset(path, 9).batch is not None
        assert explain_offset(path, 10).batch is None
        assert explain_timestamp(path, START + 10).batch is None
