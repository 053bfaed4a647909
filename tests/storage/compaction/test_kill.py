"""kill -9 of a process that writes and compacts: all acknowledged records are there, and the next process continues."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.storage import LogDirectory
from stratalog.storage.names import CLEANER_OFFSET_CHECKPOINT
from tests.storage.compaction.compacting_child import CONFIG
from tests.storage.compaction.keyed_log import TOPIC

REPOSITORY = Path(__file__).resolve().parents[3]
KEYS = 23
ROUNDS = 5


@pytest.mark.timeout(120)
def test_killed_process_leaves_each_keys_last_value(scratch: Path) -> None:
    rng = random.Random(1)
    acknowledged = -1
    shrunk = 0
    for _ in range(ROUNDS):
        acknowledged = max(acknowledged, _write_and_kill(scratch, rng.randrange(30, 500)))
        with LogDirectory.open(scratch, CONFIG, background=False) as directory:
            log = directory.log(TOPIC, 0)
            end = log.log_end_offset
            assert end > acknowledged, "an acknowledged record is lost"
            records = list(log.records())
            assert [int(record.value or b"") for record in records] == [record.offset for record in records]
            last = {record.key: record.offset for record in records}
            expected = {b"%d" % (value % KEYS): value for value in range(end)}
            assert last == expected, "the last of a key is lost"
            producer = log.producers.get(5)
            assert producer is not None
            assert producer.batches[-1].last_sequence == end - 1
            shrunk += len(records) < end
            log.roll()
            while directory.cleaner.turn() is not None:
                pass
            assert [record.offset for record in log.records()] == sorted(expected.values())
    assert acknowledged > 20
    assert shrunk, "nothing was compacted before a kill"


def _write_and_kill(path: Path, appends: int) -> int:
    """Kill a writer after this many appends and the first compaction. Return the last value that it printed."""
    command = [sys.executable, "-m", "tests.storage.compaction.compacting_child", str(path), str(KEYS)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines: list[bytes] = []
        while len(lines) < appends or not (path / CLEANER_OFFSET_CHECKPOINT).exists():
            lines.append(writer.stdout.readline())
            assert lines[-1], "the writer has ended"
        writer.kill()
        output = b"".join(lines) + writer.stdout.read()
    return int(output.split(b"\n")[-2])  # after the last line feed, a line may be incomplete
