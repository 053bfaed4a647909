"""The tools report no finding and no error while a process appends, rolls and deletes as fast as it can."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError
from stratalog.inspect.dump import dump
from stratalog.inspect.findings import Severity
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.lookup_time import explain_timestamp
from stratalog.inspect.rows import ProblemRow
from stratalog.inspect.verify import verify
from tests.inspect.test_verify import Listener
from tests.inspect.written_logs import START, logs_of

WRITER = """
import sys
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.storage import Log
with Log.open(sys.argv[1], {"segment.bytes": 100000, "retention.bytes": 1000000, "retention.ms": -1,
                            "file.delete.delay.ms": 0, "index.interval.bytes": 300}) as log:
    print("started", flush=True)
    for number in range(10**9):
        at = log.log_end_offset
        count = number % 60 + 1
        log.append(build_batch([Record(timestamp=START + at + i, value=bytes(i * 13 % 400)) for i in range(count)]))
        if number % 500 == 0:
            log.apply_retention()
""".replace("START", str(START))
SECONDS = 2.0


def findings_now(path: Path) -> list[str]:
    """Return all problems. Segments may be deleted during the check, but there must be no damage."""
    listener = Listener()
    verify(path, listener)
    wrong = [
        f"{finding.file.name}: {finding.what}" for finding in listener.findings if finding.severity is not Severity.NOTE
    ]
    try:
        newest = logs_of(path)[-1]
        rows = [
            *dump(newest).rows,
            *dump(newest.with_suffix(".index")).rows,
            *dump(newest.with_suffix(".timeindex")).rows,
        ]
        wrong += [row.reason for row in rows if isinstance(row, ProblemRow) and not row.is_harmless]
        end = explain_offset(path, int(newest.stem)).log_end_offset
        explain_timestamp(path, START + end - 1)
    except (FileNotFoundError, OffsetOutOfRangeError):
        pass
    except CorruptBatchError as error:
        wrong.append(str(error))
    return wrong


def test_busy_writer_causes_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"started\n"
            deadline = time.monotonic() + SECONDS
            rounds = 0
            while time.monotonic() < deadline:
                assert findings_now(path) == []
                rounds += 1
        finally:
            writer.kill()
    assert rounds > 3
    assert int(logs_of(path)[-1].stem) > 0
