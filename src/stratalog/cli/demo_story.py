"""What the demo does, act by act, through the public API; each act says in a line or two what came of it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from stratalog.cli import demo_data, look_up_story, wording
from stratalog.cli.output import GOOD, NAME, QUIET, STRONG, Output
from stratalog.cli.page_cache import draw
from stratalog.cli.program import CommandError
from stratalog.inspect.findings import Finding, Severity
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.page_cache import regular_files, residency
from stratalog.inspect.verify import verify
from stratalog.records.arrow import from_arrow, to_arrow
from stratalog.records.builder import build_batch
from stratalog.storage import Log

PARTITIONS = ("orders-0", "crash-0")
CONFIG = {"segment.bytes": 16 * 1024 * 1024, "retention.ms": -1}
BATCH_BYTES = 64 * 1024
READ_BYTES = 8 * 1024 * 1024
CRASH_AFTER = 0.25  # seconds of appending before kill -9
_TITLE = 12


class DemoStory:
    def __init__(self, output: Output, data: Path, records: int) -> None:
        self._output = output
        self._data = data
        self._path = data / PARTITIONS[0]
        self._records = records
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def run(self) -> None:
        logging.getLogger("stratalog").addHandler(logging.NullHandler())  # what recovery has to say is shown below
        started = time.perf_counter()
        with self._progress:
            with Log.open(self._path, CONFIG) as log:
                self._write(log)
                self._look_up(log)
                self._read(log)
            self._verify()
        self._show_page_cache()
        self._crash()
        self._say("done", (f"all of it in {wording.duration(time.perf_counter() - started)}", GOOD))

    def _write(self, log: Log) -> None:
        advance = self._track("writing")
        batches, spent = 0, 0.0
        for table in demo_data.tables(self._records):
            begun = time.perf_counter()
            for batch in from_arrow(table, max_batch_bytes=BATCH_BYTES):
                log.append(batch)
                batches += 1
            spent += time.perf_counter() - begun
            advance(table.num_rows)
        begun = time.perf_counter()
        log.flush()
        flushed = wording.duration(time.perf_counter() - begun)
        self._say(
            "wrote",
            f"{self._records:,} records of {demo_data.VALUE_SIZE} bytes in {wording.plural(batches, 'batch')}, ",
            f"{wording.plural(len(log.segments), 'segment')}: ",
            (self._rates(log.size, spent), GOOD),
        )
        self._say("", (f"Arrow columns to batches on disk; the flush behind it took {flushed}", QUIET))

    def _look_up(self, log: Log) -> None:
        middle = self._records // 2
        for offset in sorted({0, middle, self._records - 1}):
            seconds = _fastest(partial(log.read, offset, 1))
            explanation = explain_offset(self._path, offset)
            self._say(
                "looked up",
                (f"offset {offset:>9,}  ", NAME),
                (f"{wording.duration(seconds):>7}  ", GOOD),
                (look_up_story.cost_line(explanation), QUIET),
            )
        for number in sorted({self._records // 3, self._records - 1}):
            timestamp = demo_data.FIRST_TIMESTAMP + number
            seconds = _fastest(partial(log.find_timestamp, timestamp))
            found = log.find_timestamp(timestamp)
            _expect(found is not None and found.offset == number, f"timestamp {timestamp} leads to {found}")
            self._say(
                "looked up",
                (f"{wording.timestamp(timestamp)}  ", NAME),
                (f"{wording.duration(seconds):>7}  ", GOOD),
                (f"offset {number:,}", QUIET),
            )
        self._output.line()
        look_up_story.tell_story(self._output, explain_offset(self._path, middle), middle, is_time=False)
        self._output.line()

    def _read(self, log: Log) -> None:
        advance = self._track("reading")
        offset, rows, size = 0, 0, 0
        begun = time.perf_counter()
        while offset < log.log_end_offset:
            read = log.read(offset, READ_BYTES)
            columns: Any = to_arrow(read.slice.read())
            rows += columns.num_rows
            size += columns.nbytes
            offset = columns.column("offset")[-1].as_py() + 1
            advance(columns.num_rows)
        spent = time.perf_counter() - begun
        _expect(rows == self._records, f"{rows} records were read back")
        self._say("read back", f"{rows:,} records as Arrow columns: ", (self._rates(log.size, spent), GOOD))

    def _verify(self) -> None:
        listener = _Quiet(self._track("verifying", self._path_size()))
        begun = time.perf_counter()
        report = verify(self._path, listener)
        spent = time.perf_counter() - begun
        _expect(report.problems == 0, f"verification found: {listener.problems}")
        (partition,) = report.partitions
        self._say(
            "verified",
            f"every checksum, record and index entry, {report.problems} problems: ",
            (self._rates(partition.bytes, spent), GOOD),
        )

    def _show_page_cache(self) -> None:
        logs = [path for path in regular_files([self._path]) if path.suffix == ".log"]
        self._output.line()
        self._say("page cache", ("what of the logs is in RAM", QUIET))
        draw(self._output, [residency(path, 80) for path in logs], self._path)
        self._output.line()

    def _crash(self) -> None:
        path = self._data / PARTITIONS[1]
        acknowledged = _append_until_killed(path)
        _tear(path)
        begun = time.perf_counter()
        with Log.open(path) as log:
            spent = wording.duration(time.perf_counter() - begun)
            cut = log.recovery.cut
            _expect(log.log_end_offset >= acknowledged, f"{acknowledged} were acknowledged, {log!r} is left")
            _expect(cut is not None, "the torn batch was not found")
            lost = max(acknowledged - log.log_end_offset, 0)
            self._say(
                "crashed",
                f"kill -9 of a process that had appended {acknowledged:,} records, then half a batch behind them",
            )
            self._say(
                "",
                (f"reopened in {spent}, {lost} records lost", GOOD),
                (f", {0 if cut is None else cut.bytes} torn bytes cut off", QUIET),
            )

    def _track(self, what: str, total: int | None = None) -> Callable[[int], None]:
        task = self._progress.add_task(what, total=self._records if total is None else total)

        def advance(count: int) -> None:
            self._progress.advance(task, count)
            if self._progress.tasks[task].finished:
                self._progress.update(task, visible=False)

        return advance

    def _path_size(self) -> int:
        return sum(path.stat().st_size for path in self._path.glob("*.log"))

    def _rates(self, size: int, seconds: float) -> str:
        seconds = max(seconds, 1e-9)
        return f"{self._records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s"

    def _say(self, title: str, *parts: str | tuple[str, str]) -> None:
        self._output.line((f"{title:<{_TITLE}}", STRONG), *parts)


class _Quiet:
    """Listens to a verification that is expected to find nothing."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advanced = advance
        self.problems: list[str] = []

    def report(self, finding: Finding) -> None:
        if finding.severity is not Severity.NOTE:
            self.problems.append(f"{finding.file.name}: {finding.what}")


def _append_until_killed(path: Path) -> int:
    """How many records the process that was killed had been told were appended."""
    command = [sys.executable, "-m", "stratalog.cli.demo_writer", str(path)]
    # In a session of its own and silent: an interrupt is for the demo, which kills it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        assert child.stdout is not None
        acknowledged = int(child.stdout.readline() or 0)
        _expect(acknowledged > 0, "the appending process did not start")
        deadline = time.monotonic() + CRASH_AFTER
        while time.monotonic() < deadline:
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            acknowledged = int(line) if line.endswith(b"\n") else acknowledged
    return acknowledged


def _tear(path: Path) -> None:
    """Half a batch at the end, as a crash in the middle of a write leaves it."""
    batch = build_batch([(b"key", b"never acknowledged")] * 100)
    last = max(path.glob("*.log"))
    with last.open("ab") as file:
        file.write(batch[: len(batch) // 2])


def _fastest(act: Callable[[], object], times: int = 50) -> float:
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begun)
    return min(spent)


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CommandError(f"the demo did not come out as it should: {otherwise}; please report this")
