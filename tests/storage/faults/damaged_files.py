"""Truncated and corrupt files: builds a log, changes its files, and checks the result of opening them.

`DamagedLog` has one log's files in memory and writes them out repeatedly, each time with one change. `check` opens the
result and reads everything: each result must be right, or an error of ours. No record is ever missing silently: the log
ends early only if the recovery report says so.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError, StratalogError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.reader import records_of
from stratalog.storage import Log, LogDirectory, Origin
from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.storage.faults.checks import check_goes_on
from tests.storage.log_builder import PARTITION, LogBuilder

SETTINGS: dict[str, Any] = {
    "segment_bytes": 90_000,
    "segment_index_bytes": 4096,
    "index_interval_bytes": 400,
    "retention_ms": -1,
}
_CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4)
_PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}


class UnsyncedDisk(Disk):
    """Syncs nothing: these tests have no power cuts, and syncing would take most of the time."""

    def sync(self, fd: int) -> None:
        pass

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class DamagedLog:
    """A log of two segments, the last one longer than 64 KiB, with producers, an aborted transaction and two leader
    epochs."""

    def __init__(self, where: Path) -> None:
        self._where = where
        rng = random.Random(5)
        with LogBuilder(where / "sound", disk=UnsyncedDisk(), **SETTINGS) as built:
            while len(built.log.segments) < 2 or built.log.segments[-1].size < 70_000:
                built.append(rng.randint(1, 9), codec=rng.choice(_CODECS))
                if len(built.files(".txnindex")) == 0 and built.next_offset > 200:
                    self._abort_a_transaction(built)
            built.log.flush()
            built.log.save_recovery_point()
            self.records = {record.offset: record for record in built.log.records()}
            self.config = built.config
            killed = _contents(built.left_by_kill(where / "killed"))
            built.advance_start(3)
        self._states = {"killed": killed, "closed": _contents(where / "sound")}

    def _abort_a_transaction(self, built: LogBuilder) -> None:
        data = build_batch(built.next_records(1), base_sequence=0, is_transactional=True, **_PRODUCER)
        built.log.append(data, leader_epoch=1)
        marker = build_control_batch(ControlType.ABORT, 7, 0, 0, 1_700_000_000_000)
        built.log.append(marker, origin=Origin.COORDINATOR)
        built._records = list(built.log.records())
        built._records.append(built._records[-1])  # the marker takes an offset

    def content(self, state: str, name: str) -> bytes:
        return self._states[state][name]

    def names(self, state: str, suffix: str) -> list[str]:
        return sorted(name for name in self._states[state] if name.endswith(suffix))

    def check(self, state: str, name: str, change: Callable[[bytearray], None], rng: random.Random) -> str:
        """Open the files with one of them changed, and read everything. Return the outcome in a word."""
        path = self._where / "damaged"
        shutil.rmtree(path, ignore_errors=True)
        for other, content in self._states[state].items():
            target = path / other
            target.parent.mkdir(parents=True, exist_ok=True)
            changed = bytearray(content)
            if other == name:
                change(changed)
            target.write_bytes(changed)
        is_shorter = name.endswith(".log") and (path / name).stat().st_size < len(self._states[state][name])
        try:
            directory = LogDirectory.open(path, self.config, disk=UnsyncedDisk(), background=False)
        except StratalogError:
            return "refused"
        try:
            return self._check_log(directory.log(*PARTITION), rng, may_end_early=is_shorter)
        except StratalogError as error:
            raise AssertionError(f"can't be opened: {error}") from error
        finally:
            directory.close()

    def _check_log(self, log: Log, rng: random.Random, *, may_end_early: bool) -> str:
        start, end = log.log_start_offset, log.log_end_offset
        whole = max(self.records) + 1
        # A file that was truncated between two batches looks as if it had never been longer.
        assert may_end_early or end == whole or log.recovery.cut is not None, (
            f"ends at {end}, not {whole}, and recovery cut nothing"
        )
        expected = [record for offset, record in sorted(self.records.items()) if start <= offset < end]
        damaged = self._check_records(log, expected)
        for _ in range(6):
            self._check_look_ups(log, expected, rng)
        if not damaged:
            check_goes_on(log, batches=1)
        return "damaged" if damaged else "cut" if end < whole else "sound"

    def _check_records(self, log: Log, expected: list[Record]) -> bool:
        """Return True if reading raised CorruptBatchError. Check that every record before that is the expected one."""
        records: list[Record] = []
        try:
            records.extend(_one_by_one(log))
        except CorruptBatchError as error:
            assert error.file is not None and error.position is not None, f"does not name file and position: {error}"
            assert records == expected[: len(records)], "wrong records before the corrupt batch"
            return True
        assert records == expected, f"{len(records)} records instead of {len(expected)}"
        return False

    def _check_look_ups(self, log: Log, expected: list[Record], rng: random.Random) -> None:
        if not expected:
            return
        target = rng.choice(expected)
        try:
            for batch in log.read(target.offset, rng.choice([0, 5000])).batches():
                assert batch.crc_matches(), f"read({target.offset}) returns a corrupt batch"
                for record in records_of(batch) if not batch.header.is_control else []:
                    assert record == self.records.get(record.offset), f"read({target.offset}) returns {record}"
        except (CorruptBatchError, OffsetOutOfRangeError):
            pass
        try:
            match = log.find_timestamp(target.timestamp)
        except CorruptBatchError:
            return
        first = next(record for record in expected if record.timestamp >= target.timestamp)
        assert match == (first.offset, first.timestamp), f"find_timestamp({target.timestamp}) returns {match}"


def _one_by_one(log: Log) -> Iterator[Record]:
    yield from log.records()


def _contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def cut_to(size: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[size:]

    return change


def flip(bit: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[bit // 8] ^= 1 << bit % 8

    return change


def cuts(log: DamagedLog, state: str, last: int = 65_536) -> list[tuple[str, int]]:
    """Return (file, size) for each of the last bytes of the last segment."""
    name = log.names(state, ".log")[-1]
    size = len(log.content(state, name))
    return [(name, at) for at in range(size - 1, max(size - 1 - last, -1), -1)]


STRETCH = 4096
CHECKPOINTS = ("leader-epoch-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
TARGETS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", *CHECKPOINTS, "partition.metadata", CLEAN_SHUTDOWN)


def flips(log: DamagedLog, state: str) -> list[tuple[str, int]]:
    """Return (file, bit) for every bit in a range of each file. A .log has a range at either end."""
    bits = []
    for suffix in TARGETS:
        for name in log.names(state, suffix):
            size = len(log.content(state, name))
            stretches = [range(min(size, STRETCH))]
            if suffix == ".log":
                stretches.append(range(max(size - STRETCH, STRETCH), size))
            bits += [(name, byte * 8 + bit) for stretch in stretches for byte in stretch for bit in range(8)]
    return bits
