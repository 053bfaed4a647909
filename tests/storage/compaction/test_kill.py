"""kill -9 of a process that writes and compacts: what was acknowledged is there, and the next process goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratalog.storage import LogDirectory
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
        acknowledged = max(acknowledged, _write_and_kill(scratch, 0.1 + 0.3 * rng.random()))
        with LogDirectory.open(scratch, CONFIG, background=False) as directory:
            log = directory.log(TOPIC, 0)
            end = log.log_end_offset
            assert end > acknowledged, "an acknowledged record is lost"
            records = list(log.records())
            assert [int(record.value or b"") for record in records] == [record.offset for record in records]
            last = {record.key: record.offset for record in records}
            wanted = {b"%d" % (value % KEYS): value for value in range(end)}
            assert last == wanted, "the last of a key is lost"
            producer = log.producers.get(5)
            assert producer is not None
            assert producer.batches[-1].last_sequence == end - 1
            shrunk += len(records) < end
            log.roll()
            while directory.cleaner.turn() is not None:
                pass
            assert [record.offset for record in log.records()] == sorted(wanted.values())
    assert acknowledged > 20
    assert shrunk, "nothing was compacted before a kill"


def _write_and_kill(path: Path, seconds: float) -> int:
    """The last value that the writer had an answer for."""
    command = [sys.executable, "-m", "tests.storage.compaction.compacting_child", str(path), str(KEYS)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        said = writer.stdout.readline()  # it writes
        time.sleep(seconds)
        writer.kill()
        said += writer.stdout.read()
    lines = said.split(b"\n")[:-1]  # the last may be cut in two
    return int(lines[-1]) if lines else -1
