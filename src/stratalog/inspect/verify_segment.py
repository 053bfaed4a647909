"""One segment, from its first byte to its last: framing, checksums, offsets, records, leader epochs, indexes.

One pass over the log; the indexes are checked beside it. Memory is that of the walk.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.errors import DecompressedTooLargeError, StratalogError
from stratalog.inspect.batch_walk import BatchOnDisk, BatchWalk, Damage
from stratalog.inspect.findings import Findings
from stratalog.inspect.partition_files import SegmentFiles
from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.inspect.verify_contents import Contents, check_contents
from stratalog.inspect.verify_indexes import OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck
from stratalog.records import format
from stratalog.records._framing import BatchHeader
from stratalog.storage import names
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.scan import reason

RESTORE = "fetch the records again from a replica or a backup"


@dataclass
class Walked:
    """What is known of a partition's log so far; it goes on from segment to segment."""

    last_offset: int  # the last one seen; one less than the first base offset at the beginning
    leader_epoch: int = -1
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    gaps: int = 0
    max_timestamp: int = -1


class SegmentVerifier:
    def __init__(
        self,
        segment: SegmentFiles,
        walked: Walked,
        epochs: LeaderEpochs | None,
        findings: Findings,
        *,
        deep: bool,
        is_live: bool,
        recovery_point: int,
    ) -> None:
        self.path = segment.path(names.LOG)
        self._segment = segment
        self._walked = walked
        self._epochs = epochs
        self._findings = findings
        self._deep = deep
        self._is_live = is_live
        self._recovery_point = recovery_point
        self._gaps = 0
        self._first_gap = 0
        self._missing = 0
        # Before the log: a writer fills them after it, so every entry that is seen has its batch.
        self._offsets = OffsetIndexCheck(segment, findings, is_live=is_live)
        self._times = TimeIndexCheck(segment, findings, is_live=is_live)
        self._transactions = TransactionIndexCheck(segment, findings)

    def run(self) -> None:
        """Raises OSError where the log itself can't be read."""
        try:
            with ReadOnlyFile(self.path) as file:
                self._walk(file)
        finally:
            self._offsets.close()
            self._times.close()
            self._findings.end_of(self.path)

    def _walk(self, file: ReadOnlyFile) -> None:
        walk = BatchWalk(file)
        for found in walk:
            previous = self._walked.last_offset
            self._check_batch(found)
            self._offsets.batch(found, previous)
            self._times.batch(found)
            self._transactions.batch(found)
            self._walked.batches += 1
            self._walked.bytes += found.header.size
            self._findings.advanced(found.header.size)
        if walk.damage is not None:
            self._report_damage(walk.damage)
            self._findings.advanced(walk.damage.bytes_left)
        else:
            self._offsets.finish(file.size)
            self._times.finish()
            self._transactions.finish()
        self._report_gaps()
        self._walked.segments += 1
        self._walked.gaps += self._gaps

    def _check_batch(self, found: BatchOnDisk) -> None:
        header = found.header
        first = header.base_offset
        if not found.crc_matches():
            what = f"checksum of the batch at offset {first} is not the one in its header"
            self._findings.error(self.path, found.position, what, RESTORE)
        elif self._deep:
            contents = self._contents(found)
            if contents is not None:
                first = contents.first_offset
                self._walked.records += contents.records
                self._check_max_timestamp(found, contents)
        if not self._deep:
            self._walked.records += max(header.record_count, 0)
        self._check_offsets(found, first)
        self._check_epoch(found)
        self._walked.max_timestamp = max(self._walked.max_timestamp, header.max_timestamp)

    def _contents(self, found: BatchOnDisk) -> Contents | None:
        try:
            return check_contents(found)
        except DecompressedTooLargeError as error:
            advice = "nothing to do if the batch is meant to be that large; its checksum holds"
            self._findings.note(self.path, found.position, f"records were not looked at: {reason(error)}", advice)
        except StratalogError as error:
            what = f"records of the batch at offset {found.header.base_offset} can't be decoded: {reason(error)}"
            self._findings.error(self.path, found.position, what, RESTORE)
        return None

    def _check_max_timestamp(self, found: BatchOnDisk, contents: Contents) -> None:
        header = found.header
        if contents.max_timestamp is not None and contents.max_timestamp != header.max_timestamp:
            what = f"max timestamp of the batch at offset {header.base_offset} is {header.max_timestamp}, "
            what += f"but its youngest record has {contents.max_timestamp}"
            advice = "look-ups by time may miss these records; produce them again if that matters"
            self._findings.warning(self.path, found.position, what, advice)

    def _check_offsets(self, found: BatchOnDisk, first: int) -> None:
        header, previous = found.header, self._walked.last_offset
        limit = self._segment.next_base_offset
        offsets = f"batch with offsets {header.base_offset}..{header.last_offset}"
        if header.base_offset <= previous or header.last_offset < header.base_offset:
            self._findings.error(self.path, found.position, f"{offsets} follows offset {previous}", RESTORE)
            return
        if header.base_offset < self._segment.base_offset or (limit is not None and header.last_offset >= limit):
            bounds = f"{self._segment.base_offset}..{'' if limit is None else limit - 1}"
            what = f"{offsets} does not belong in this segment, which has {bounds}"
            self._findings.error(self.path, found.position, what, RESTORE)
        is_packed_legacy = header.magic != format.CURRENT_MAGIC and header.codec != format.Codec.NONE
        missing = 0 if is_packed_legacy and first == header.base_offset else first - previous - 1
        if header.magic == format.CURRENT_MAGIC:
            missing += max(header.last_offset_delta + 1 - header.record_count, 0)
        if missing:
            self._first_gap = self._first_gap if self._gaps else previous
            self._gaps += 1
            self._missing += missing
        self._walked.last_offset = header.last_offset

    def _check_epoch(self, found: BatchOnDisk) -> None:
        header = found.header
        if header.leader_epoch < 0:
            return
        if header.leader_epoch < self._walked.leader_epoch:
            what = f"leader epoch of the batch at offset {header.base_offset} is {header.leader_epoch}, "
            what += f"before it was {self._walked.leader_epoch} already"
            self._findings.warning(self.path, found.position, what, "compare the log with its other replicas")
        self._walked.leader_epoch = max(self._walked.leader_epoch, header.leader_epoch)
        if self._epochs is None or (header.leader_epoch > (self._epochs.latest or 0) and self._may_be_unsaved(header)):
            return
        expected = self._epochs.epoch_of(header.base_offset)
        if expected is not None and expected != header.leader_epoch:
            what = f"leader epoch of the batch at offset {header.base_offset} is {header.leader_epoch}, "
            what += f"{names.LEADER_EPOCH_CHECKPOINT} says {expected}"
            self._findings.warning(self.path, found.position, what, "compare the log with its other replicas")

    def _may_be_unsaved(self, header: BatchHeader) -> bool:
        """An epoch is saved when its first batch is flushed. What a crash left behind the recovery point may have
        newer ones, which opening the log finds."""
        return self._is_live or header.base_offset >= self._recovery_point

    def _report_damage(self, damage: Damage) -> None:
        what = f"{damage.reason}; {damage.bytes_left} bytes are left"
        if not damage.is_torn or not self._segment.is_active:
            advice = f"{RESTORE}: opening the log after a crash cuts it off here, or refuses to read past it"
            self._findings.error(self.path, damage.position, what, advice)
        elif self._is_live:
            self._findings.note(self.path, damage.position, f"{what}: a process is appending")
        else:
            advice = "open the log once: recovery cuts off what a crash left of an append that never returned"
            self._findings.warning(self.path, damage.position, what, advice)

    def _report_gaps(self) -> None:
        if self._gaps:
            what = f"{self._gaps} gaps, {self._missing} offsets are missing; the first at offset {self._first_gap + 1}"
            self._findings.note(self.path, None, what, "nothing to do if the topic is compacted or transactional")
