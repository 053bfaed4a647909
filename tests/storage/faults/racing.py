"""Runs a writer, readers of each kind and a housekeeper on one log of many small segments, all at once.

`race` lets them run for a while. It raises AssertionError with the seed if one of them reads wrong records (see
readers_and_writer.py), if a thread hangs, or if the log differs from what the writer appended, at once or after
reopening.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from stratalog.storage import DirectoryConfig
from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOG, OFFSET_INDEX, TIME_INDEX
from tests.storage.faults.readers_and_writer import History, Reader, Writer
from tests.storage.log_builder import LogBuilder

SETTINGS: dict[str, Any] = {
    "segment_bytes": 3000,
    "segment_index_bytes": 128,
    "index_interval_bytes": 300,
    "retention_ms": -1,
    "retention_bytes": 40_000,
    "file_delete_delay_ms": 1,
    "flush_ms": 10,
}
OFTEN = DirectoryConfig(
    log_retention_check_interval_ms=3,
    log_flush_scheduler_interval_ms=5,
    log_flush_offset_checkpoint_interval_ms=10,
    max_open_segments=2,
)
KINDS = [Reader.in_order, Reader.at_random, Reader.by_time, Reader.from_deleted]
_PAUSE = 0.001  # of a reader between two reads, so that the writer gets to run
_HANGS = 60.0


def race(path: Path, seed: int, seconds: float) -> dict[str, int]:
    """Run the race and return how often each kind of thread did its work."""
    history = History(seed)
    with (
        _eager_threads(),
        LogBuilder(path, seed=seed, disk=Unsynced(), directory_config=OFTEN, background=True, **SETTINGS) as built,
    ):
        writer = Writer(built.log, history)
        readers = [(kind, Reader(built.log, history, kind.__name__)) for kind in KINDS]
        threads = Threads()
        threads.start(writer.step)
        for kind, reader in readers:
            threads.start(partial(kind, reader), pause=_PAUSE)
        try:
            threads.finish(seconds, until=lambda: history.done > 0 and all(reader.answers for _, reader in readers))
            _check_end(built, history, writer.end)
            built.reopen()
            _check_end(built, history, writer.end)
        except Exception as error:
            raise AssertionError(f"seed {seed}, left in {path}: {error!r}") from error
    return {
        "written": writer.end,
        "truncated": history.done,
        **{kind.__name__: reader.answers for kind, reader in readers},
    }


def _check_end(built: LogBuilder, history: History, end: int) -> None:
    log = built.log
    assert log.log_end_offset == end
    expected = [history.record(offset, history.done) for offset in range(log.log_start_offset, end)]
    assert list(log.records()) == expected, "the log does not hold what was written"
    bases = {path.stem for path in built.files(LOG)}
    for suffix in (OFFSET_INDEX, TIME_INDEX):
        assert {path.stem for path in built.files(suffix)} == bases, f"{suffix} files are not those of {bases}"


class Threads:
    """Threads that each repeat a step until the time is up or one of them fails."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[Exception] = []

    def start(self, step: Callable[[], None], *, pause: float = 0) -> None:
        thread = threading.Thread(target=self._run, args=(step, pause), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, step: Callable[[], None], pause: float) -> None:
        try:
            while not self._stop.is_set():
                step()
                time.sleep(pause)
        except Exception as error:
            self._failures.append(error)
            self._stop.set()

    def finish(self, seconds: float, until: Callable[[], bool]) -> None:
        """Stop the threads after `seconds`, or later on a busy machine, so that each has run."""
        self._stop.wait(seconds)
        deadline = time.monotonic() + _HANGS
        while not until() and not self._stop.is_set() and time.monotonic() < deadline:
            self._stop.wait(0.1)
        self._stop.set()
        for thread in self._threads:
            thread.join(_HANGS)
            assert not thread.is_alive(), "a thread hangs"
        if self._failures:
            raise self._failures[0]


class Unsynced(Disk):
    """Syncs nothing: these tests have no power cuts, and a writer that does not wait for the disk does more."""

    def sync(self, fd: int) -> None:
        pass

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@contextmanager
def _eager_threads() -> Iterator[None]:
    """Switch threads often. Python's default of 5 ms is too long for threads to meet in the middle of a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
