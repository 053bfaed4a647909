"""A log with every kind of record that compaction handles, and checks of its state after an interrupted run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from stratalog.records.format import Codec, ControlType
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOCK
from tests.storage.compaction.keyed_log import KeyedLog, pair_of
from tests.storage.faults.faulty_disk import FaultyDisk, Names, _mixture

PRODUCER, COMMITTING, ABORTING = 7, 8, 9


class EventfulLog(KeyedLog):
    """Several groups of segments with gaps, tombstones, transactions, compressed batches and an idempotent producer.
    The first groups are already compacted. Everything is durable."""

    def __init__(self, path: Path, disk: Disk | None = None, **settings: Any) -> None:
        super().__init__(path, disk=disk, segment_bytes=1700, **settings)

    def fill(self) -> EventfulLog:
        for round_ in range(2):
            for number in range(5):
                self.put(f"k{number}={round_}-{number}", f"only-{round_}-{number}=1", codec=Codec(number))
            self.put("gone=1").put("gone").put("p=1", "q=1", **_of(PRODUCER, 2 * round_))
            self.put(f"c={round_}", **_of(COMMITTING, round_, True)).put("k1=aborted", **_of(ABORTING, round_, True))
            self.end_transaction(ControlType.ABORT, ABORTING).end_transaction(ControlType.COMMIT, COMMITTING)
            if round_ == 0:
                self.roll().clean()
        self.put("p=2", "q=2").roll().put("grows=1")
        self.log.flush()
        self.history = [record for record in self.history if record.value != b"aborted"]
        return self

    def expect_as_before(self) -> None:
        """Remember the current records, before the run that is interrupted."""
        self.before = list(self.log.records())
        aborted = [record for record in self.before if record.value == b"aborted"]
        last = {record.key: record.offset for record in self.before if record not in aborted}
        self.after = [record for record in self.before if last[record.key] == record.offset]

    def check(self, keyed: KeyedLog) -> None:
        """Check this log after a fault: no record is lost that must stay, and all records were appended."""
        records = list(keyed.log.records())
        assert keyed.log.log_end_offset == self.log.log_end_offset, "the end moved"
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), "offsets do not rise"
        by_offset = {record.offset: record for record in self.before}
        assert all(by_offset.get(record.offset) == record for record in records), "a record that never was"
        missing = [pair_of(record) for record in self.after if record.offset not in offsets]
        assert missing == [], "the last of a key is lost"
        for record in self.before[:: len(self.before) // 7]:
            following = next(candidate for candidate in records if candidate.offset >= record.offset)
            batch = next(keyed.log.read(record.offset, 0).batches())
            assert batch.header.base_offset <= following.offset
            at = keyed.log.find_timestamp(record.timestamp)
            assert at is None or at.timestamp >= record.timestamp
        producer = keyed.log.producers.get(PRODUCER)
        assert producer is not None
        assert producer.batches[-1].last_sequence == 3, "the producer could not go on"
        assert keyed.log.producers.first_open_transaction is None, "a transaction seems open"

    def check_goes_on(self, keyed: KeyedLog) -> None:
        """Check that appending and compacting work after the fault."""
        self.check(keyed)
        keyed.put("new=1", **_of(PRODUCER, 4)).roll()
        keyed.clock.advance(10**6)
        while keyed.directory.cleaner.turn() is not None:
            pass
        assert keyed.directory.cleaner.set_aside() == {}
        left = [pair_of(record) for record in keyed.log.records()]
        gone = [pair_of(record) for record in self.after if record.value is None]
        assert [pair for pair in left if pair not in gone] == [
            *(pair_of(record) for record in self.after if record.value is not None),
            "new=1",
        ]


def _of(producer: int, sequence: int, transactional: bool = False) -> dict[str, Any]:
    return {
        "producer_id": producer,
        "producer_epoch": 0,
        "base_sequence": sequence,
        "is_transactional": transactional,
    }


class JournalingDisk(FaultyDisk):
    """A disk whose directories keep the order of their changes: after a power cut, a directory has the names that it
    had at its last sync or at some later moment. (FaultyDisk treats each name on its own, so a rename may leave
    neither. No real file system does that, and no program that renames could cope with it.)"""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._moments: dict[Path, list[Names]] = {}

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._moments.pop(path, None)

    def _called(self) -> None:
        parents = [self._root] if self._root.exists() else []
        for path in [*parents, *(entry for parent in parents for entry in parent.iterdir() if entry.is_dir())]:
            self._moments.setdefault(path, []).append(self._names(path))
        super()._called()

    def _drop_unreachable(self) -> None:
        pass  # an earlier moment may need them; forget() releases all of them

    def _image(self, source: Path, target: Path, rng: random.Random, leaning: float, block: int) -> None:
        target.mkdir()
        moments = [self._durable_names.get(source, {}), *self._moments.get(source, []), self._names(source)]
        names = moments[0] if leaning == 0 else rng.choice(moments)
        for name, inode in names.items():
            if name == LOCK:
                continue
            if inode is None:
                self._image(source / name, target / name, rng, leaning, block)
            else:
                (target / name).write_bytes(_mixture(inode.durable, inode.current(), rng, leaning, block))
