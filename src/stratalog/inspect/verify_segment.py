"""Verification of one segment: framing, checksums, offsets, records, leader epochs and indexes.

It takes one pass over the log and its indexes together, with the memory of a BatchWalk.
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
    """The state of a verification after the segments so far: sums, and the values that the next segment continues."""

    last_offset: int  # of the last batch; at first one less than the first base offset
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
        # Opened before the log: a writer writes in the opposite order, so each visible entry has its batch.
        self._offsets = OffsetIndexCheck(segment, findings, is_live=is_live)
        self._times = TimeIndexCheck(segment, findings, is_live=is_live)
        self._transactions = TransactionIndexCheck(segment, findings)

    def run(self) -> None:
        """Verify the segment. Raises OSError if the log can't be read."""
        try:
            with ReadOnlyFile(self.path) as file:
                self._walk(file)
        finally:
            self._offsets.close()
            self._times.close()
            self._findings.end_of(self.path)

    def _walk(self, file: ReadOnlyFile) -> None:
        walk = BatchWalk(file)
        for batch in walk:
            previous = self._walked.last_offset
            self._check_batch(batch)
            self._offsets.check_batch(batch, previous)
            self._times.check_batch(batch)
            self._transactions.check_batch(batch)
            self._walked.batches += 1
            self._walked.bytes += batch.header.size
            self._findings.advanced(batch.header.size)
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

    def _check_batch(self, batch: BatchOnDisk) -> None:
        header = batch.header
        first = header.base_offset
        if not batch.crc_matches():
            what = f"checksum of the batch at offset {first} is not the one in its header"
            self._findings.error(self.path, batch.position, what, RESTORE)
        elif self._deep:
            contents = self._contents(batch)
            if contents is not None:
                first = contents.first_offset
                self._walked.records += contents.records
                self._check_max_timestamp(batch, contents)
        if not self._deep:
            self._walked.records += max(header.record_count, 0)
        self._check_offsets(batch, first)
        self._check_epoch(batch)
        self._walked.max_timestamp = max(self._walked.max_timestamp, header.max_timestamp)

    def _contents(self, batch: BatchOnDisk) -> Contents | None:
        try:
            return check_contents(batch)
        except DecompressedTooLargeError as error:
            advice = "nothing to do if the batch may be that large; its checksum is right"
            self._findings.note(self.path, batch.position, f"records were not checked: {reason(error)}", advice)
        except StratalogError as error:
            what = f"records of the batch at offset {batch.header.base_offset} can't be decoded: {reason(error)}"
            self._findings.error(self.path, batch.position, what, RESTORE)
        return None

    def _check_max_timestamp(self, batch: BatchOnDisk, contents: Contents) -> None:
        header = batch.header
        if contents.max_timestamp is not None and contents.max_timestamp != header.max_timestamp:
            what = f"max timestamp of the batch at offset {header.base_offset} is {header.max_timestamp}, "
            what += f"but its youngest record has {contents.max_timestamp}"
            advice = "lookups by time may miss these records; produce them again if that matters"
            self._findings.warning(self.path, batch.position, what, advice)

    def _check_offsets(self, batch: BatchOnDisk, first: int) -> None:
        header, previous = batch.header, self._walked.last_offset
        limit = self._segment.next_base_offset
        offsets = f"batch with offsets {header.base_offset}..{header.last_offset}"
        if header.base_offset <= previous or header.last_offset < header.base_offset:
            self._findings.error(self.path, batch.position, f"{offsets} follows offset {previous}", RESTORE)
            return
        if header.base_offset < self._segment.base_offset or (limit is not None and header.last_offset >= limit):
            last = "" if limit is None else limit - 1
            what = f"{offsets} does not belong in this segment, which has {self._segment.base_offset}..{last}"
            self._findings.error(self.path, batch.position, what, RESTORE)
        is_packed_legacy = header.magic != format.CURRENT_MAGIC and header.codec != format.Codec.NONE
        missing = 0 if is_packed_legacy and first == header.base_offset else first - previous - 1
        if header.magic == format.CURRENT_MAGIC:
            missing += max(header.last_offset_delta + 1 - header.record_count, 0)
        if missing:
            self._first_gap = self._first_gap if self._gaps else previous
            self._gaps += 1
            self._missing += missing
        self._walked.last_offset = header.last_offset

    def _check_epoch(self, batch: BatchOnDisk) -> None:
        header = batch.header
        if header.leader_epoch < 0:
            return
        if header.leader_epoch < self._walked.leader_epoch:
            what = f"leader epoch of the batch at offset {header.base_offset} is {header.leader_epoch}, "
            what += f"but a batch before it has {self._walked.leader_epoch}"
            self._findings.warning(self.path, batch.position, what, "compare the log with its other replicas")
        self._walked.leader_epoch = max(self._walked.leader_epoch, header.leader_epoch)
        if self._epochs is None or (header.leader_epoch > (self._epochs.latest or 0) and self._may_be_unsaved(header)):
            return
        expected = self._epochs.epoch_of(header.base_offset)
        if expected is not None and expected != header.leader_epoch:
            what = f"leader epoch of the batch at offset {header.base_offset} is {header.leader_epoch}, "
            what += f"but {names.LEADER_EPOCH_CHECKPOINT} has {expected}"
            self._findings.warning(self.path, batch.position, what, "compare the log with its other replicas")

    def _may_be_unsaved(self, header: BatchHeader) -> bool:
        """Return whether the batch's leader epoch may be missing from the checkpoint. It is saved when its first batch
        is flushed. After a crash, batches after the recovery point may have newer epochs, which opening the log
        reads."""
        return self._is_live or header.base_offset >= self._recovery_point

    def _report_damage(self, damage: Damage) -> None:
        what = f"{damage.reason}; {damage.bytes_left} bytes are left"
        if not damage.is_torn or not self._segment.is_active:
            advice = f"{RESTORE}: opening the log after a crash truncates it here, or reading fails here"
            self._findings.error(self.path, damage.position, what, advice)
        elif self._is_live:
            self._findings.note(self.path, damage.position, f"{what}: a process is appending")
        else:
            advice = "open the log once: recovery truncates the torn batch of an append that never returned"
            self._findings.warning(self.path, damage.position, what, advice)

    def _report_gaps(self) -> None:
        if self._gaps:
            what = f"{self._gaps} gaps, {self._missing} offsets are missing; the first at offset {self._first_gap + 1}"
            self._findings.note(self.path, None, what, "nothing to do if the topic is compacted or transactional")
