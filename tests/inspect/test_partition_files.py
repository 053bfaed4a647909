from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stratalog.inspect.partition_files import find_partitions, has_writer, list_partition
from stratalog.storage import Log
from tests.inspect.written_logs import SMALL, fill, write_log


def test_segments_are_listed_in_order_with_their_limits(tmp_path: Path) -> None:
    partition = list_partition(write_log(tmp_path / "orders-0"))
    bases = partition.bases
    assert len(bases) > 2
    assert [segment.next_base_offset for segment in partition.segments] == [*bases[1:], None]
    assert [segment.is_active for segment in partition.segments] == [False] * (len(bases) - 1) + [True]


def test_index_without_a_log_is_an_orphan_and_deleted_files_are_left_over(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 5)
    orphan = path / "00000000000000000999.index"
    doomed = path / "00000000000000000999.log.deleted"
    for file in (orphan, doomed, path / "notes.txt"):
        file.touch()
    partition = list_partition(path)
    assert (partition.orphans, partition.left_over) == ([orphan], [doomed])


def test_log_start_offset_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with Log.open(path) as log:
        fill(log, 20)
        log.advance_start(7)
    assert list_partition(path).log_start_offset() == 7


def test_damaged_checkpoint_gives_the_first_base_offset(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 5)
    (tmp_path / "log-start-offset-checkpoint").write_text("nonsense")
    assert list_partition(path).log_start_offset_or_first() == 0


def test_data_directory_lists_its_partitions_only(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", 5)
    write_log(tmp_path / "orders-1", 5)
    (tmp_path / "orders-2.0123456789abcdef0123456789abcdef-delete").mkdir()
    (tmp_path / "notes").mkdir()
    assert find_partitions(tmp_path) == [tmp_path / "orders-0", tmp_path / "orders-1"]
    assert find_partitions(tmp_path / "orders-1") == [tmp_path / "orders-1"]


def test_writer_is_detected_while_it_has_the_directory_open(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    assert not has_writer(path)
    with Log.open(path, {name.replace("_", "."): value for name, value in SMALL.items()}) as log:
        fill(log, 1)
        assert has_writer(path)
        program = "import sys, pathlib; from stratalog.inspect.partition_files import has_writer as ask; "
        program += "print(ask(pathlib.Path(sys.argv[1])))"
        process = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
        assert process.stdout == "True\n"
    assert not has_writer(path)
