# The batches of one partition in a fetch response. This module steps from batch to batch, checks and decompresses them,
# and skips the batches that the user must not see: control batches and, with read_committed, batches of aborted
# transactions. Each length is checked before use, and decompression stops at a limit. It does not read records, except
# the key of a marker: _consumer_records.pyx does.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from stratalog.records._framing cimport BatchHeader, checksum, fill_header
from stratalog.records._record_fields cimport SMALLEST_RECORD, RecordFields, read_record
from stratalog.records._varint cimport load16, load32, load64
from stratalog.records.format cimport (
    BATCH_LENGTH_POSITION, CODEC_MASK, CONTROL_BIT, CONTROL_KEY_SIZE, CONTROL_TYPE_ABORT, CONTROL_TYPE_POSITION,
    CURRENT_MAGIC, HEADER_SIZE, LAST_OFFSET_DELTA_POSITION, LEADER_EPOCH_POSITION, LOG_OVERHEAD, MAGIC_POSITION,
    RECORD_COUNT_POSITION, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
)

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records import compression, legacy
from stratalog.records.batch import Batch


@cython.final
cdef class Progress:
    """How far a partition was consumed. Each assignment and each seek makes a new Progress, so data that was fetched
    for an older one is recognized by it and dropped."""

    def __init__(self, long long offset=-1, int leader_epoch=-1):
        self.offset = offset
        self.leader_epoch = leader_epoch

    def __repr__(self):
        return f"Progress(offset={self.offset}, leader_epoch={self.leader_epoch})"


# Without support for the cyclic garbage collector. It would release the bytes while the views, which it does not know
# of, still point to them.
@cython.no_gc
cdef class FetchedBatches:
    """Batches `body[start:end]`, of which the last may be incomplete. Loads one batch after the other.

    `progress` moves with the batches. An error leaves it where it is, so the next call raises the error again until the
    user seeks to a position after the batch.
    """

    cdef int _open(
        self, partition, Progress progress, long long fetch_offset, body, Py_ssize_t start, Py_ssize_t end, aborted,
        bint read_committed, bint check_crcs, Py_ssize_t max_decompressed,
    ) except -1:
        PyObject_GetBuffer(body, &self._view, PyBUF_SIMPLE)
        self._has_view = True
        if not 0 <= start <= end <= self._view.len:
            raise ValueError(f"range {start}..{end} is outside the body of {self._view.len} bytes")
        self.partition = partition
        self.progress = progress
        self.fetch_offset = fetch_offset
        self.size = end - start
        self._body = body
        self._start = self._at = start
        self._end = end
        self._header = BatchHeader.__new__(BatchHeader)
        self._aborted = sorted([(first, producer) for producer, first in aborted or ()], reverse=True)
        self._aborted_producers = set()
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_decompressed = max_decompressed
        self._find_end()
        return 0

    cdef int _find_end(self) except -1:
        """Step from batch to batch by their lengths. The contents of a batch are checked when it is loaded."""
        cdef const unsigned char *data = <const unsigned char *>self._view.buf
        cdef Py_ssize_t at = self._start
        cdef Py_ssize_t size
        self.end_offset = self.fetch_offset
        self.end_epoch = -1
        while self._end - at > MAGIC_POSITION:
            size = <Py_ssize_t><int>load32(data + at + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            if size <= MAGIC_POSITION:
                return 0
            if size > self._end - at:
                break
            if data[at + MAGIC_POSITION] == CURRENT_MAGIC and size >= HEADER_SIZE:
                self.end_offset = <long long>load64(data + at) + <int>load32(data + at + LAST_OFFSET_DELTA_POSITION) + 1
                self.end_epoch = <int>load32(data + at + LEADER_EPOCH_POSITION)
                self.record_count += min(
                    load32(data + at + RECORD_COUNT_POSITION), <unsigned int>(size // SMALLEST_RECORD)
                )
            else:
                self.end_offset = <long long>load64(data + at) + 1
            at += size
        self.is_well_formed = self.end_offset > self.fetch_offset
        return 0

    def __dealloc__(self):
        if self._is_decompressed:
            PyBuffer_Release(&self._payload_view)
        if self._has_view:
            PyBuffer_Release(&self._view)

    cdef const unsigned char *_payload_start(self):
        if self._is_decompressed:
            return <const unsigned char *>self._payload_view.buf
        return <const unsigned char *>self._view.buf + self._header.position + HEADER_SIZE

    cdef int _advance(self, long long offset) noexcept:
        if offset > self.progress.offset:
            self.progress.offset = offset
        if self._header.magic == CURRENT_MAGIC:
            self.progress.leader_epoch = self._header.leader_epoch
        return 0

    cdef bint _load(self) except -1:
        """Load the next batch that has records for the user. Return False if there is no further one."""
        cdef BatchHeader header = self._header
        while True:
            if self._is_decompressed:
                self._is_decompressed = False
                PyBuffer_Release(&self._payload_view)
                self._decompressed = None
            if not self._next_header():
                self.is_exhausted = True
                return False
            self._next_batch_offset = header.base_offset + header.last_offset_delta + 1
            if header.last_offset_delta < 0:
                raise self._corrupt(f"last offset delta is {header.last_offset_delta}")
            if self._next_batch_offset > self.progress.offset and not self._is_hidden():
                self._load_payload()
                self._at = header.position + header.size
                if self._left or self._legacy is not None:
                    return True
            self._at = header.position + header.size
            self._advance(self._next_batch_offset)

    cdef bint _next_header(self) except -1:
        if self._at >= self._end:
            return False
        try:
            if fill_header(self._header, <const unsigned char *>self._view.buf, self._at, self._end):
                if self._header.size <= self._end - self._at:
                    return True
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error))) from error
        if self._at == self._start:
            raise CorruptBatchError(
                f"{self.partition[0]}-{self.partition[1]}: the {self.size} bytes fetched at offset "
                f"{self.progress.offset} are less than one batch; raise max_partition_fetch_bytes"
            )
        return False

    cdef bint _is_hidden(self) except -1:
        """Return whether the user must not see the batch: a control batch or, with read_committed, an aborted one."""
        cdef BatchHeader header = self._header
        if header.magic != CURRENT_MAGIC:
            return False
        if self._read_committed and header.producer_id >= 0:
            while self._aborted and self._aborted[len(self._aborted) - 1][0] < self._next_batch_offset:
                self._aborted_producers.add(self._aborted.pop()[1])
            if header.attributes & CONTROL_BIT:
                if self._is_abort_marker():
                    self._aborted_producers.discard(header.producer_id)
            elif header.attributes & TRANSACTIONAL_BIT and header.producer_id in self._aborted_producers:
                return True
        return (header.attributes & CONTROL_BIT) != 0

    cdef bint _is_abort_marker(self) except -1:
        cdef RecordFields fields
        cdef const unsigned char *batch = <const unsigned char *>self._view.buf + self._header.position
        cdef const char *problem = read_record(batch + HEADER_SIZE, batch + self._header.size, &fields)
        if problem != NULL:
            raise self._corrupt(problem.decode())
        return fields.key_length >= CONTROL_KEY_SIZE and (
            load16(fields.key + CONTROL_TYPE_POSITION) == CONTROL_TYPE_ABORT
        )

    cdef int _load_payload(self) except -1:
        cdef BatchHeader header = self._header
        cdef const unsigned char *batch = <const unsigned char *>self._view.buf + header.position
        if header.magic != CURRENT_MAGIC:
            return self._load_legacy()
        if self._check_crcs and checksum(batch, header) != header.crc:
            raise self._corrupt(f"its checksum is not the one in its header, {header.crc:#010x}")
        self._p = batch + HEADER_SIZE
        self._payload_end = batch + header.size
        if header.attributes & CODEC_MASK:
            self._decompress()
        self._timestamp_type = 1 if header.attributes & TIMESTAMP_TYPE_BIT else 0
        if header.record_count < 0 or header.record_count > (self._payload_end - self._p) // SMALLEST_RECORD:
            raise self._corrupt(
                f"record count is {header.record_count}, which {self._payload_end - self._p} bytes of records can't be"
            )
        self._left = header.record_count
        return 0

    cdef int _decompress(self) except -1:
        cdef BatchHeader header = self._header
        packed = memoryview(self._body)[header.position + HEADER_SIZE : header.position + header.size]
        try:
            self._decompressed = compression.decompress(header.attributes & CODEC_MASK, packed, self._max_decompressed)
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error)), type(error)) from error
        PyObject_GetBuffer(self._decompressed, &self._payload_view, PyBUF_SIMPLE)
        self._is_decompressed = True
        self._p = <const unsigned char *>self._payload_view.buf
        self._payload_end = self._p + self._payload_view.len
        return 0

    cdef int _load_legacy(self) except -1:
        batch = Batch(self._body, self._header)
        try:
            if self._check_crcs:
                batch.check_crc()
            self._legacy = legacy.records_of_message(batch, self._max_decompressed)[::-1]
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error)), type(error)) from error
        return 0

    cdef object _corrupt(self, problem, kind=CorruptBatchError):
        if not issubclass(kind, CorruptBatchError):
            kind = CorruptBatchError
        return kind(
            f"{self.partition[0]}-{self.partition[1]}: the batch at offset {self._header.base_offset} can't be read: "
            f"{problem}; seek to a position after it to skip it"
        )
