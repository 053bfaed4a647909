"""kill -9 of a process that writes to a log: every acknowledged append is there, whatever the process was doing.

`kill_rounds` kills writers at random moments, up to three in a row on the same directory, and then opens it in this
process. The records are those that were appended, in order and once each, up to the last acknowledged one or the end of
a batch of the append that was interrupted. Each can be looked up by its offset and its timestamp, and appends work.
While the writer runs, its directory is locked.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog.errors import DirectoryLockedError
from stratalog.storage import Log, LogDirectory
from tests.storage.faults.checks import check_goes_on, check_log
from tests.storage.faults.model import AppendedBatch, Model
from tests.storage.faults.writing_child import config_of, next_append
from tests.storage.log_builder import PARTITION

_REPOSITORY = Path(__file__).resolve().parents[3]
_LONGEST_WAIT = 60.0  # for a line of output; longer than even a busy machine takes


def kill_rounds(rounds: int, seed: int, progress: Callable[[int], None]) -> int:
    """Run this many rounds, with seeds from `seed` on, and call progress(n) after the nth. Return the number of rounds.

    Raises AssertionError with the seed of the round that failed, and keeps its directory.
    """
    with Writers.start() as writers:
        for done in range(rounds):
            path = _new_directory(seed + done)
            try:
                KillRound(writers, path / "data", seed + done).run()
            except Exception as error:
                raise AssertionError(f"seed {seed + done}, left in {path}: {error!r}") from error
            shutil.rmtree(path)
            progress(done + 1)
    return rounds


def _new_directory(seed: int) -> Path:
    """Return a new directory, mostly in memory: the result of a kill does not depend on the disk, and a writer in
    memory gets further. Writers on a disk are killed while they wait for it."""
    memory = Path("/dev/shm")
    in_memory = seed % 10 != 0 and os.access(memory, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="stratalog-kill-", dir=memory if in_memory else None))


class Writers:
    """The process that forks writers, and the pipe for the output of all of them."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = process.stdout.fileno()
        self._buffer = b""

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[Writers]:
        command = [sys.executable, "-m", "tests.storage.faults.writing_child"]
        with subprocess.Popen(command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def fork(self, seed: int, nth: int, path: Path) -> int:
        """Fork a writer and return its process id."""
        self._input.write(f"{seed} {nth} {path}\n".encode())
        self._input.flush()
        kind, numbers = self.wait()
        assert kind == "pid", f"{kind} {numbers} instead of a pid"
        return numbers[0]

    def wait(self) -> tuple[str, list[int]]:
        line = self.line(_LONGEST_WAIT)
        assert line is not None, f"a writer says nothing for {_LONGEST_WAIT} s"
        return line

    def line(self, timeout: float) -> tuple[str, list[int]] | None:
        """Return the next line of output, or None after `timeout` seconds."""
        while b"\n" not in self._buffer:
            if not select.select([self._output], [], [], max(timeout, 0))[0]:
                return None
            data = os.read(self._output, 65536)
            assert data, "the process that forks writers has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        kind, *numbers = line.decode().split()
        return kind, [int(number) for number in numbers]


class KillRound:
    def __init__(self, writers: Writers, path: Path, seed: int) -> None:
        self.path = path
        self.seed = seed
        self.config = config_of(seed)
        self.rng = random.Random(f"killer {seed}")
        self.batches: list[AppendedBatch] = []  # acknowledged, or read after a kill
        self._writers = writers

    @property
    def end(self) -> int:
        return Model(self.batches).end

    def run(self) -> None:
        for nth in range(self.rng.choice([1, 1, 2, 3])):
            self._write_and_kill(nth)
        for _ in range(2):  # after the kill, and after a clean close
            with LogDirectory.open(self.path, self.config, background=False) as directory:
                log = directory.log(*PARTITION)
                self._check_opened(log.log_start_offset, log.log_end_offset)
                self._check_retention(log)
                check_log(log, Model(self.batches), self.rng)
                check_every_offset(log, self.batches)
        with LogDirectory.open(self.path, self.config, background=False) as directory:
            check_goes_on(directory.log(*PARTITION), batches=20)

    def _write_and_kill(self, nth: int) -> None:
        pid = self._writers.fork(self.seed, nth, self.path)
        if nth == 0 or self.rng.random() < 0.7:
            self._hear(*self._writers.wait())
            self._check_locked()
            self._listen(self.rng.choice([0.005, 0.04, 0.1]) * self.rng.random())
        else:
            self._listen(0.004 * self.rng.random())  # most likely while it still opens the log
        os.kill(pid, signal.SIGKILL)
        while True:
            kind, numbers = self._writers.wait()
            if kind == "gone":
                assert numbers == [-signal.SIGKILL], f"the writer ended by itself, status {numbers}"
                return
            self._hear(kind, numbers)

    def _listen(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (line := self._writers.line(until - time.monotonic())) is not None:
            self._hear(*line)

    def _hear(self, kind: str, numbers: list[int]) -> None:
        if kind == "opened":
            self._check_opened(*numbers)
        else:
            assert kind == "acknowledged", f"the writer says {kind} {numbers}"
            self.batches += next_append(self.seed, self.end)
            assert numbers == [self.end], f"append ended at {numbers}, not {self.end}"

    def _check_opened(self, start: int, end: int) -> None:
        """Check a log that was opened: it has all acknowledged batches, and possibly some of the append that was
        interrupted."""
        acknowledged = self.end
        assert end >= acknowledged, f"the log ends at {end}, but all up to {acknowledged} was acknowledged"
        assert start <= end
        under_way = next_append(self.seed, acknowledged)
        self.batches += [batch for batch in under_way if batch.next_offset <= end]
        assert self.end == end, f"the log ends at {end}, which is not where a batch ends; {acknowledged} acknowledged"

    def _check_locked(self) -> None:
        try:
            LogDirectory.open(self.path, self.config, background=False).close()
        except DirectoryLockedError:
            return
        raise AssertionError("the directory could be opened while another process had it")

    def _check_retention(self, log: Log) -> None:
        """Check the log size: only retention.bytes deletes records, and it leaves at least that many bytes."""
        start, kept, least = log.log_start_offset, log.size, self.config.retention_bytes
        assert start == 0 or 0 <= least <= kept, f"starts at {start}, {kept} bytes left, retention.bytes is {least}"


def check_every_offset(log: Log, batches: list[AppendedBatch]) -> None:
    """Look up each record by its offset, and some by timestamp. (Timestamps rise with the offsets here.)"""
    start = log.log_start_offset
    for batch in batches:
        for record in batch.records:
            if record.offset >= start:
                read = log.read(record.offset, 0)
                assert read.base_offset == batch.base_offset, f"read({record.offset}) begins at {read.base_offset}"
                [served] = read.batches()
                assert served.header.next_offset == batch.next_offset, f"read({record.offset}) gives {served}"
        last = batch.records[-1]
        if last.offset >= start:
            assert log.find_timestamp(last.timestamp) == (last.offset, last.timestamp), f"time of {last.offset}"
