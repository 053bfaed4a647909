"""Compaction of cold directories: what a task does to its partition, which partitions are chosen, who is kept out."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from stratalog.broker.metadata.store import MetadataStore, StoredMetadata, Topic
from stratalog.errors import ConfigError, DirectoryLockedError, StorageError, UnknownTopicError
from stratalog.pipelines import compact, sharing_out
from stratalog.pipelines.cold_directory import ColdDirectory, opened_in_task
from stratalog.pipelines.compact import choose, compact_partition
from stratalog.records.builder import build_batch
from stratalog.storage import LogConfig, LogDirectory, names
from stratalog.storage.disk import Disk
from stratalog.storage.names import TopicPartition
from tests.pipelines.local_sharing import LocalSharing
from tests.pipelines.stopping import StopAfter, StoppedError

COMPACTED = {"cleanup.policy": "compact"}
TABLE = TopicPartition("table", 0)


def write(directory: Path, topic: str, partitions: int = 1, keys: int = 3, rounds: int = 4) -> None:
    """Each key `rounds` times, a segment a round, and a last segment that grows."""
    batches = [
        build_batch([(b"key-%d" % key, b"value-%d" % number + bytes(90)) for key in range(keys)])
        for number in range(rounds)
    ]
    config = LogConfig(segment_bytes=max(256, len(batches[0]) * 3 // 2))
    with LogDirectory.open(directory, config, background=False) as data:
        for partition in range(partitions):
            for batch in batches:
                data.log(topic, partition).append(bytearray(batch))


def left(directory: Path, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    with LogDirectory.open(directory, background=False) as data:
        return [(record.offset, record.key) for record in data.log(topic, partition).records()]


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, check=False)


def declare(directory: Path, **settings: dict[str, str]) -> StoredMetadata:
    topics = {name: Topic(name, uuid.uuid4(), 1, own) for name, own in settings.items()}
    return MetadataStore(directory, Disk()).change(topics=topics)


def test_each_partition_keeps_the_last_record_of_each_key(tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=3)
    sharing = LocalSharing()
    done = compact.compact(sharing.spark, tmp_path, ["table"])
    assert [result.partition.partition for result in done] == [0, 1, 2]
    assert all(result.bytes_saved > 0 and not result.failure for result in done)
    # The segment of the last round grows, and is left: so each key is there twice, from the last two rounds.
    assert left(tmp_path, "table", 2) == [(6 + i, b"key-%d" % (i % 3)) for i in range(6)]


def test_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    write(tmp_path, "table")
    compact.compact(LocalSharing().spark, tmp_path, ["table"])
    (again,) = compact.compact(LocalSharing().spark, tmp_path, ["table"])
    assert again.bytes_saved == 0


def test_interrupted_run_keeps_the_rounds_that_are_done_and_the_next_does_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing_out, "PIECES_A_CORE", 1)  # of two cores: two partitions a round
    write(tmp_path, "table", partitions=4)
    with pytest.raises(StoppedError):
        compact.compact(LocalSharing().spark, tmp_path, ["table"], progress=StopAfter(1))
    again = compact.compact(LocalSharing().spark, tmp_path, ["table"])
    assert sorted(result.bytes_saved > 0 for result in again) == [False, False, True, True]
    assert all(len(left(tmp_path, "table", number)) == 6 for number in range(4))


def test_dry_run_says_what_would_go_and_leaves_every_file(tmp_path: Path) -> None:
    write(tmp_path, "table")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.log")}
    (would,) = compact.compact(LocalSharing().spark, tmp_path, ["table"], dry_run=True)
    assert would.bytes_saved > 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.log")} == before
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()
    (did,) = compact.compact(LocalSharing().spark, tmp_path, ["table"])
    assert did == would


def test_memory_for_few_keys_takes_more_passes_to_the_same_end(tmp_path: Path) -> None:
    write(tmp_path / "much", "table", keys=2000, rounds=3)
    write(tmp_path / "little", "table", keys=2000, rounds=3)
    compact.compact(LocalSharing().spark, tmp_path / "much", ["table"])
    (result,) = compact.compact(LocalSharing().spark, tmp_path / "little", ["table"], key_memory=1)
    assert left(tmp_path / "little", "table") == left(tmp_path / "much", "table")
    assert result.bytes_saved > 0


def test_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "table")
    with LogDirectory.open(tmp_path, background=False), pytest.raises(DirectoryLockedError):
        compact.compact(LocalSharing().spark, tmp_path, ["table"])


_TRY_TO_OPEN = (
    "import sys; from stratalog.storage import LogDirectory; LogDirectory.open(sys.argv[1], background=False)"
)


def test_broker_is_kept_out_by_a_task_whose_driver_has_died(tmp_path: Path) -> None:
    write(tmp_path, "table")
    with opened_in_task(tmp_path, TABLE, 7, LogConfig(), clean=True):
        ran = subprocess.run(
            [sys.executable, "-c", _TRY_TO_OPEN, tmp_path], capture_output=True, text=True, check=False
        )
        assert "DirectoryLockedError" in ran.stderr
    assert run(_TRY_TO_OPEN, tmp_path).returncode == 0


_TRY_TASKS = """
import sys
from pathlib import Path
from stratalog.pipelines.cold_directory import opened_in_task
from stratalog.storage import LogConfig
from stratalog.storage.names import TopicPartition
for slot in (1, 0):
    with opened_in_task(Path(sys.argv[1]), TopicPartition("table", slot), slot, LogConfig(), clean=True):
        print("opened", slot, flush=True)
"""


def test_two_attempts_at_one_partition_exclude_each_other(tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=2)
    with ColdDirectory.held(tmp_path), opened_in_task(tmp_path, TABLE, 0, LogConfig(), clean=True):
        ran = run(_TRY_TASKS, tmp_path)
    assert ran.stdout == "opened 1\n"
    assert "another task works at table-0" in ran.stderr


def test_failure_leaves_the_directory_marked_as_not_closed(tmp_path: Path) -> None:
    write(tmp_path, "table")
    with pytest.raises(KeyboardInterrupt), ColdDirectory.held(tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    (done,) = compact.compact(LocalSharing().spark, tmp_path, ["table"])  # and the next run recovers it
    assert done.bytes_saved > 0
    with pytest.raises(StorageError, match="not closed in order"):
        compact.compact(LocalSharing().spark, tmp_path, ["table"], dry_run=True)


def test_damaged_partition_is_named_and_the_others_are_compacted(tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=2)
    first = sorted((tmp_path / "table-0").glob("*.log"))[0]
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    damaged, sound = compact.compact(LocalSharing().spark, tmp_path, ["table"])
    assert "checksum" in damaged.failure
    assert sound.bytes_saved > 0
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_topics_that_are_compacted_are_chosen_by_their_settings(tmp_path: Path) -> None:
    metadata = declare(tmp_path, table=COMPACTED, events={})
    there = [TopicPartition("events", 0), TABLE]
    assert list(choose(there, metadata, [], {}, force=False)) == [TABLE]


def test_topic_that_is_not_compacted_needs_force(tmp_path: Path) -> None:
    metadata = declare(tmp_path, events={})
    events = TopicPartition("events", 0)
    with pytest.raises(ConfigError, match=r"'events' has cleanup\.policy=delete"):
        choose([events], metadata, ["events"], {}, force=False)
    assert choose([events], metadata, ["events"], {}, force=True) == {events: COMPACTED}


def test_directory_without_settings_needs_names_of_topics() -> None:
    with pytest.raises(ConfigError, match="name them"):
        choose([TABLE], StoredMetadata(), [], {}, force=False)
    assert list(choose([TABLE], StoredMetadata(), ["table"], {}, force=False)) == [TABLE]


def test_topic_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UnknownTopicError, match=r"'tabel'.*there are: table"):
        choose([TABLE], StoredMetadata(), ["tabel"], {}, force=False)


def test_task_reports_what_it_can_not_open(tmp_path: Path) -> None:
    (tmp_path / names.LOCK).touch()
    (tmp_path / "table-0").write_text("a file, not a directory")
    result = compact_partition(compact.Piece(tmp_path, TABLE, 0, COMPACTED, 0, 0, True, False, 1))
    assert str(tmp_path / "table-0") in result.failure
