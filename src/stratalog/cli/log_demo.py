"""`stratalog demo --log`: the log without a broker. It is written, read, looked up, crashed, recovered and verified."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.cli import page_cache
from stratalog.cli.lookup import print_steps
from stratalog.cli.output import GOOD, QUIET, STRONG, Output
from stratalog.cli.program import CommandError
from stratalog.cli.progress import VerifyProgress
from stratalog.cli.verify import show_report
from stratalog.cli.wording import format_duration, pluralize
from stratalog.inspect.findings import Finding
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.page_cache import regular_files, residency
from stratalog.inspect.verify import total_log_bytes, verify
from stratalog.records.arrow import from_arrow, to_arrow
from stratalog.records.builder import build_batch
from stratalog.storage import Log

_ORDERS, _CRASH = "orders-0", "crash-0"
_CONFIG = {"segment.bytes": 16 * 1024 * 1024, "retention.ms": -1}
_VALUE_SIZE, _CUSTOMERS, _CHUNK_ROWS = 100, 10_007, 50_000
_FIRST_TIMESTAMP = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_BATCH_BYTES, _READ_BYTES = 64 * 1024, 8 * 1024 * 1024
_APPEND_SECONDS = 0.25  # before kill -9
# Appends batches until it is killed, and prints the log end offset after each.
_APPENDER = """
import sys
from stratalog.records.builder import build_batch
from stratalog.storage import Log
with Log.open(sys.argv[1]) as log:
    while True:
        print(log.append(build_batch([(b"key", bytes(100))] * 100)).last_offset + 1, flush=True)
"""


def run_log_demo(data: Path, records: int) -> None:
    """Leave two partition directories in `data`. Raise CommandError if one exists, or a result is wrong."""
    for partition in (_ORDERS, _CRASH):
        if (data / partition).exists():
            raise CommandError(f"{data / partition} already exists; give another --data-dir, or remove it")
    logging.getLogger("stratalog").addHandler(logging.NullHandler())  # recovery's warnings are part of the demo
    output, path, started = Output(), data / _ORDERS, time.perf_counter()
    with Log.open(path, _CONFIG) as log:
        _write(output, log, records)
        _read(output, log, records)
    output.line()
    print_steps(output, explain_offset(path, records // 2), f"offset {records // 2:,}", is_time=False)
    output.line()
    page_cache.draw(output, [residency(file, 80) for file in regular_files([path]) if file.suffix == ".log"], path)
    output.line()
    _crash(output, data / _CRASH)
    _verify(output, data)
    _say(output, "done", f"in {format_duration(time.perf_counter() - started)}")


def _write(output: Output, log: Log, records: int) -> None:
    batches, spent = 0, 0.0
    for table in _tables(records):
        started = time.perf_counter()
        for batch in from_arrow(table, max_batch_bytes=_BATCH_BYTES):
            log.append(batch)
            batches += 1
        spent += time.perf_counter() - started
    started = time.perf_counter()
    log.flush()
    flushed = format_duration(time.perf_counter() - started)
    counts = f"{pluralize(batches, 'batch')}, {pluralize(len(log.segments), 'segment')}"
    _say(
        output,
        "wrote",
        f"{records:,} records of {_VALUE_SIZE} bytes in {counts}: ",
        _rates(records, log.size, spent),
    )
    _say(output, "flushed", f"in {flushed}")


def _read(output: Output, log: Log, records: int) -> None:
    offset = rows = 0
    started = time.perf_counter()
    while offset < log.log_end_offset:
        columns: Any = to_arrow(log.read(offset, _READ_BYTES).slice.read())
        rows += columns.num_rows
        offset = columns.column("offset")[-1].as_py() + 1
    _expect(rows == records, f"{rows} of {records} records were read back")
    rates = _rates(rows, log.size, time.perf_counter() - started)
    _say(output, "read back", f"{rows:,} records as Arrow columns: ", rates)


def _crash(output: Output, path: Path) -> None:
    """Kill a process that appends, leave half a batch at the end as a crash would, and recover the log."""
    command = [sys.executable, "-c", _APPENDER, str(path)]
    # In a session of its own, so that Ctrl-C reaches only this process.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        assert child.stdout is not None
        acknowledged = int(child.stdout.readline() or 0)
        _expect(acknowledged > 0, "the appending process did not start")
        deadline = time.monotonic() + _APPEND_SECONDS
        while time.monotonic() < deadline:
            acknowledged = int(child.stdout.readline())
        child.kill()
        for line in child.stdout:
            acknowledged = int(line) if line.endswith(b"\n") else acknowledged
    batch = build_batch([(b"key", b"never acknowledged")] * 100)
    with max(path.glob("*.log")).open("ab") as file:
        file.write(batch[: len(batch) // 2])
    started = time.perf_counter()
    with Log.open(path) as log:
        spent = format_duration(time.perf_counter() - started)
        cut = log.recovery.cut
        torn_bytes = cut.bytes if cut else 0
        _expect(log.log_end_offset >= acknowledged, f"{acknowledged} records were acknowledged, {log!r} is left")
        _expect(cut is not None, "recovery did not find the torn batch")
    _say(output, "crashed", f"kill -9 of a process that had appended {acknowledged:,} records, and a torn batch")
    _say(
        output,
        "recovered",
        "",
        f"in {spent}, 0 records lost",
        f", {torn_bytes} torn bytes removed",
    )


def _verify(output: Output, data: Path) -> None:
    findings: list[Finding] = []
    started = time.perf_counter()
    with VerifyProgress(findings.append, total_log_bytes(data)) as progress:
        report = verify(data, progress)
    spent = time.perf_counter() - started
    _expect(not report.problems, f"the verification found: {[finding.what for finding in findings]}")
    counts = [(partition.records, partition.bytes) for partition in report.partitions]
    records, size = (sum(count) for count in zip(*counts, strict=True))
    _say(output, "verified", "every checksum, record and index entry: ", _rates(records, size, spent))
    show_report(output, report, findings)


def _tables(records: int) -> Iterator[Any]:
    """Yield orders of customers, one per millisecond, as tables with key, value and timestamp."""
    for start in range(0, records, _CHUNK_ROWS):
        numbers = pa.array(range(start, min(start + _CHUNK_ROWS, records)), pa.int64())
        order = pc.utf8_lpad(pc.cast(numbers, pa.string()), 12, "0")
        rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, _CUSTOMERS), _CUSTOMERS))
        customer = pc.cast(rest, pa.string())
        text = pc.binary_join_element_wise('{"order": "', order, '", "customer": "', customer, '", "note": "tea', "")
        yield pa.table(
            {
                "key": pc.binary_join_element_wise("customer-", customer, ""),
                "value": pc.binary_join_element_wise(pc.utf8_rpad(text, _VALUE_SIZE - 2, "."), '"}', ""),
                "timestamp": pc.add(numbers, _FIRST_TIMESTAMP),
            }
        )


def _rates(records: int, size: int, seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    return f"{records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s"


def _say(output: Output, title: str, text: str, result: str = "", detail: str = "") -> None:
    output.line((f"{title:<12}", STRONG), text, (result, GOOD), (detail, QUIET))


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise CommandError(f"the demo failed: {problem}; this is a bug in Stratalog, please report it")
