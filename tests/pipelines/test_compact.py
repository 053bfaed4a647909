"""Compaction of cold directories: the tasks, the choice of partitions, and the locks."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from stratalog.broker.metadata.store import MetadataStore, StoredMetadata, Topic
from stratalog.errors import ConfigError, DirectoryLockedError, StorageError, UnknownTopicError
from stratalog.pipelines import compact, task_rounds
from stratalog.pipelines.cold_directory import ColdDirectory, opened_in_task
from stratalog.pipelines.compact import choose, compact_partition
from stratalog.records.builder import build_batch
from stratalog.storage import LogConfig, LogDirectory, names
from stratalog.storage.disk import Disk
from stratalog.storage.names import TopicPartition
from tests.pipelines.local_tasks import LocalTasks
from tests.pipelines.stopping import StopAfter, StoppedError

COMPACTED = {"cleanup.policy": "compact"}
TABLE = TopicPartition("table", 0)


def write(directory: Path, topic: str, partitions: int = 1, keys: int = 3, rounds: int = 4) -> None:
    """Write each key `rounds` times. Each round fills a segment; the last one is the active segment."""
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
    done = compact.compact(LocalTasks().spark, tmp_path, ["table"])
    assert [result.partition.partition for result in done] == [0, 1, 2]
    assert all(result.bytes_saved > 0 and not result.failure for result in done)
    # The active segment stays as it is, so each key remains twice, from the last two rounds.
    assert left(tmp_path, "table", 2) == [(6 + i, b"key-%d" % (i % 3)) for i in range(6)]


def test_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    write(tmp_path, "table")
    compact.compact(LocalTasks().spark, tmp_path, ["table"])
    (again,) = compact.compact(LocalTasks().spark, tmp_path, ["table"])
    assert again.bytes_saved == 0


def test_run_after_an_interrupt_compacts_only_the_remaining_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_rounds, "PIECES_PER_CORE", 1)  # two cores, so two partitions per round
    write(tmp_path, "table", partitions=4)
    with pytest.raises(StoppedError):
        compact.compact(LocalTasks().spark, tmp_path, ["table"], progress=StopAfter(1))
    again = compact.compact(LocalTasks().spark, tmp_path, ["table"])
    assert sorted(result.bytes_saved > 0 for result in again) == [False, False, True, True]
    assert all(len(left(tmp_path, "table", number)) == 6 for number in range(4))


def test_dry_run_reports_the_savings_and_changes_no_file(tmp_path: Path) -> None:
    write(tmp_path, "table")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.log")}
    (expected,) = compact.compact(LocalTasks().spark, tmp_path, ["table"], dry_run=True)
    assert expected.bytes_saved > 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.log")} == before
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()
    (done,) = compact.compact(LocalTasks().spark, tmp_path, ["table"])
    assert done == expected


def test_little_memory_for_keys_gives_the_same_result(tmp_path: Path) -> None:
    write(tmp_path / "much", "table", keys=2000, rounds=3)
    write(tmp_path / "little", "table", keys=2000, rounds=3)
    compact.compact(LocalTasks().spark, tmp_path / "much", ["table"])
    (result,) = compact.compact(LocalTasks().spark, tmp_path / "little", ["table"], key_memory=1)
    assert left(tmp_path / "little", "table") == left(tmp_path / "much", "table")
    assert result.bytes_saved > 0


def test_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "table")
    with LogDirectory.open(tmp_path, background=False), pytest.raises(DirectoryLockedError):
        compact.compact(LocalTasks().spark, tmp_path, ["table"])


_TRY_TO_OPEN = (
    "import sys; from stratalog.storage import LogDirectory; LogDirectory.open(sys.argv[1], background=False)"
)


def test_broker_can_not_start_while_a_task_of_a_dead_driver_runs(tmp_path: Path) -> None:
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
    assert "another task has table-0 open" in ran.stderr


def test_failure_leaves_no_marker_of_a_clean_shutdown(tmp_path: Path) -> None:
    write(tmp_path, "table")
    with pytest.raises(KeyboardInterrupt), ColdDirectory.held(tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    (done,) = compact.compact(LocalTasks().spark, tmp_path, ["table"])  # the next run recovers it
    assert done.bytes_saved > 0
    with pytest.raises(StorageError, match="had no clean shutdown"):
        compact.compact(LocalTasks().spark, tmp_path, ["table"], dry_run=True)


def test_damaged_partition_is_reported_and_the_others_are_compacted(tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=2)
    first = sorted((tmp_path / "table-0").glob("*.log"))[0]
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    damaged, intact = compact.compact(LocalTasks().spark, tmp_path, ["table"])
    assert "checksum" in damaged.failure
    assert intact.bytes_saved > 0
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_topics_are_chosen_by_their_cleanup_policy(tmp_path: Path) -> None:
    metadata = declare(tmp_path, table=COMPACTED, events={})
    existing = [TopicPartition("events", 0), TABLE]
    assert list(choose(existing, metadata, [], {}, force=False)) == [TABLE]


def test_topic_with_another_policy_requires_force(tmp_path: Path) -> None:
    metadata = declare(tmp_path, events={})
    events = TopicPartition("events", 0)
    with pytest.raises(ConfigError, match=r"'events' has cleanup\.policy=delete"):
        choose([events], metadata, ["events"], {}, force=False)
    assert choose([events], metadata, ["events"], {}, force=True) == {events: COMPACTED}


def test_directory_without_topic_settings_requires_topic_names() -> None:
    with pytest.raises(ConfigError, match="name them"):
        choose([TABLE], StoredMetadata(), [], {}, force=False)
    assert list(choose([TABLE], StoredMetadata(), ["table"], {}, force=False)) == [TABLE]


def test_unknown_topic_is_refused_by_name() -> None:
    with pytest.raises(UnknownTopicError, match=r"'tabel'.*its topics are: table"):
        choose([TABLE], StoredMetadata(), ["tabel"], {}, force=False)


def test_partition_that_can_not_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / names.LOCK).touch()
    (tmp_path / "table-0").write_text("a file, not a directory")
    result = compact_partition(compact.CompactPiece(tmp_path, TABLE, 0, COMPACTED, 0, 0, True, False, 1))
    assert str(tmp_path / "table-0") in result.failure
