# Batches of one partition -> columns of selected records, in portions of a limited size. Records that are not selected
# are skipped without copying: they are outside the range of offsets or timestamps, have another key, or belong to
# control batches or aborted transactions. _column_decoder owns the columns and their memory. A portion may end inside a
# batch. The limit of memory is one portion, the decompressed bytes of one batch, and one record.
#
# The checksum of a batch is checked before its timestamps or records are used. _record_fields.pxd checks each length.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MAX, LLONG_MIN
from libc.stdlib cimport free

from stratalog.records._column_decoder cimport (
    HEADERS_COLUMN, KEY_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, TIMESTAMP_TYPE_COLUMN, VALUE_COLUMN, ColumnDecoder,
)
from stratalog.records._column_memory cimport is_utf8, make_room, put
from stratalog.records._framing cimport BatchHeader, checksum, fill_header
from stratalog.records._key_set cimport KeySet, fill_keys, has_key
from stratalog.records._record_fields cimport (
    SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record, read_record_rest, read_record_start,
)
from stratalog.records._varint cimport load16
from stratalog.records.format cimport (
    CODEC_MASK, CONTROL_BIT, CONTROL_KEY_SIZE, CONTROL_TYPE_ABORT, CONTROL_TYPE_POSITION, CURRENT_MAGIC, HEADER_SIZE,
    TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
)

from stratalog.errors import CorruptBatchError
from stratalog.records import compression, legacy
from stratalog.records.batch import Batch

cdef enum Outcome:
    FAILED = -1
    AT_END = 0     # the batch is used up
    FULL = 1       # the portion has reached its limit
    NEEDS_ROOM = 2

cdef long long FIRST = LLONG_MIN
cdef long long LAST = LLONG_MAX
cdef long long MOST_MILLISECONDS = 9223372036854775  # the limit of timestamps that fit 64 bits as microseconds


# Without cyclic garbage collection, which would clear the bytes while the views still use them.
@cython.no_gc
@cython.final
cdef class ScanDecoder:
    """A decoder of the selected records. Call `feed` with bytes, then `run`. True means that a portion is full: call
    `take` before the next run. False means that the bytes are used up. After an error, the decoder can't be used.

    It selects records from offset `start` to before `end`, from timestamp `from_timestamp` to before `until_timestamp`
    (milliseconds), and with one of `keys`; None selects all keys. With `read_committed`, the aborted transactions
    passed to `feed` are left out. The timestamp column has microseconds.
    """

    cdef readonly long long next_offset  # the offset after the last batch that was read; at first `start`
    cdef readonly Py_ssize_t position    # the position after that batch, in the bytes that were fed
    cdef readonly long long at_offset    # base offset of the current batch; errors concern it, but don't name it
    cdef readonly long long last_fed     # the last offset of the batch before it in these bytes, or -1
    cdef readonly bint is_done           # whether all batches before `end` were read
    cdef int _columns
    cdef long long _start                # the first offset to select from the current batch
    cdef long long _end
    cdef long long _from_timestamp
    cdef long long _until_timestamp
    cdef KeySet _keys
    cdef list _held_keys                 # the bytes objects that _keys points into
    cdef bint _has_keys
    cdef bint _selects                   # whether each record's key or timestamp must be checked
    cdef bint _read_committed
    cdef Py_ssize_t _most_rows
    cdef Py_ssize_t _most_bytes
    cdef Py_ssize_t _max_decompressed
    cdef dict _aborted                   # producer id -> [[first offset, last offset], ...]
    cdef ColumnDecoder _out
    cdef Py_ssize_t _content             # bytes of the portion's rows so far
    cdef Py_ssize_t _room                # bytes that fit until more room is made
    cdef Py_ssize_t _row_room            # number of rows for which there is room
    cdef Py_ssize_t _needed              # bytes that the next record needs
    cdef object _data
    cdef Py_buffer _view
    cdef bint _has_view
    cdef Py_buffer _decompressed_view
    cdef bint _is_decompressed
    cdef BatchHeader _header
    cdef const unsigned char *_p         # the next record of the current batch
    cdef const unsigned char *_payload_end
    cdef int _left                       # records of the current batch that are not read yet
    cdef int _timestamp_type
    cdef list _legacy                    # records of the current message of magic 0 or 1
    cdef Py_ssize_t _legacy_index
    cdef const char *_problem

    def __init__(
        self, int columns, *, long long start=0, long long end=LAST, long long from_timestamp=FIRST,
        long long until_timestamp=LAST, keys=None, bint read_committed=False, Py_ssize_t most_rows=100_000,
        Py_ssize_t most_bytes=16777216, Py_ssize_t max_decompressed=268435456,
    ):
        if most_rows < 1 or most_bytes < 1:
            raise ValueError(f"most_rows is {most_rows} and most_bytes is {most_bytes}; both must be at least 1")
        self._columns = columns
        self._start = self.next_offset = self.at_offset = start
        self._end = end
        self._from_timestamp = from_timestamp
        self._until_timestamp = until_timestamp
        self._has_keys = keys is not None
        if keys is not None:
            self._held_keys = list(keys)
            fill_keys(&self._keys, self._held_keys)
        self._selects = keys is not None or from_timestamp > FIRST or until_timestamp < LAST
        self._read_committed = read_committed
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._max_decompressed = max_decompressed
        self._aborted = {}
        self._header = BatchHeader.__new__(BatchHeader)
        self.is_done = start >= end

    def __dealloc__(self):
        self._drop_decompressed()
        self._drop_data()
        free(self._keys.slots)

    def feed(self, data, aborted=(), bint continues=False):
        """Set the next bytes: batches in the order of the log. A batch that is cut off at the end is not read, and
        `position` stays before it. `aborted` has (producer id, first offset, last offset) of the transactions to leave
        out of these bytes; a last offset of 2^63 - 1 means that the transaction ends at its marker. With `continues`,
        the bytes follow the bytes fed before, so the offsets must keep rising."""
        if self._left or self._legacy is not None:
            raise ValueError("the bytes that were fed before are not used up; call run() until it returns False")
        self._drop_data()
        PyObject_GetBuffer(data, &self._view, PyBUF_SIMPLE)
        self._has_view = True
        self._data = data
        self.position = 0
        if not continues:
            self.last_fed = -1
        self._aborted = {}
        if self._read_committed:
            for producer_id, first, last in aborted:
                self._aborted.setdefault(producer_id, []).append([first, last])

    def release(self):
        """Release the bytes, for example before a mapping is closed. Records that were not taken yet are lost."""
        self._left = 0
        self._legacy = None
        self._drop_data()

    @property
    def rows(self):
        """The rows of the portion so far."""
        return 0 if self._out is None else self._out.rows

    def run(self):
        """Decode until a portion is full (True) or the bytes are used up (False)."""
        while not self.is_done or self._left or self._legacy is not None:
            if self._legacy is not None:
                if self._take_legacy():
                    return True
            elif self._left:
                if self._take_records():
                    return True
            elif not self._load():
                return False
        return False

    def take(self):
        """Return (rows, columns by their bit, as ColumnDecoder.finish returns them), and start a new portion."""
        cdef ColumnDecoder out = self._open_portion()
        self._out = None
        return out.rows, out.finish()

    cdef ColumnDecoder _open_portion(self):
        cdef Py_ssize_t expected
        if self._out is None:
            # The bytes that are left are an upper bound of the portion, except for compressed batches.
            expected = max(self._view.len - self.position, 0) if self._has_view else 0
            if self._left and self._payload_end - self._p > expected:
                expected = self._payload_end - self._p
            if self._selects:
                expected = min(expected, 65536)
            self._room = min(expected, self._most_bytes)
            self._row_room = min(self._most_rows, self._room // SMALLEST_RECORD)
            self._content = 0
            self._out = ColumnDecoder(self._columns, self._row_room, self._room)
        return self._out

    cdef bint _load(self) except -1:
        """Load the next batch that may have selected records. Return False if no complete batch is left."""
        cdef const unsigned char *data
        cdef BatchHeader header = self._header
        while self._has_view and not self.is_done:
            data = <const unsigned char *>self._view.buf
            if not fill_header(header, data, self.position, self._view.len) or header.size > self._view.len - self.position:
                return False
            self.at_offset = header.base_offset
            self._check_order(data)
            if header.magic == CURRENT_MAGIC and header.base_offset >= self._end:
                self.is_done = True
                return False
            self.position += header.size
            self.last_fed = header.base_offset + header.last_offset_delta
            if self.last_fed < self.next_offset:
                continue  # it is before the start, or was read already
            self._check(data)
            self._start = self.next_offset
            self.next_offset = self.last_fed + 1
            if self.next_offset >= self._end:
                self.is_done = True
            if header.magic != CURRENT_MAGIC:
                self._legacy = legacy.records_of_message(Batch(self._data, header), self._max_decompressed)
                self._legacy_index = 0
                return True
            if header.attributes & CONTROL_BIT:
                self._apply_marker(data)
            elif self._may_be_selected():
                self._start_batch(data)
                return True
        return False

    cdef int _check_order(self, const unsigned char *data) except -1:
        """Check that offsets rise. The checksum does not cover the base offset, so only its neighbours prove it. An
        offset that would end the scan is also compared with the batch after it."""
        cdef BatchHeader header = self._header
        cdef BatchHeader following
        cdef long long last = header.base_offset + header.last_offset_delta
        cdef bint is_past_end
        if header.last_offset_delta < 0 or header.base_offset <= self.last_fed:
            raise CorruptBatchError(
                f"offsets {header.base_offset}..{last} follow offset {self.last_fed}", position=header.position
            )
        is_past_end = header.magic == CURRENT_MAGIC and header.base_offset >= self._end
        if is_past_end and header.base_offset != self.last_fed + 1:
            following = BatchHeader.__new__(BatchHeader)
            if (
                fill_header(following, data, header.position + header.size, self._view.len)
                and following.base_offset <= last
            ):
                raise CorruptBatchError(
                    f"offset {following.base_offset} follows offset {last}", position=header.position
                )
        return 0

    cdef int _check(self, const unsigned char *data) except -1:
        cdef BatchHeader header = self._header
        if header.magic != CURRENT_MAGIC:
            Batch(self._data, header).check_crc()
        elif checksum(data + header.position, header) != header.crc:
            raise CorruptBatchError(
                f"checksum of the batch is not the one in its header, {header.crc:#010x}", position=header.position
            )
        return 0

    cdef bint _may_be_selected(self) except -1:
        cdef BatchHeader header = self._header
        if header.record_count == 0 or header.max_timestamp < self._from_timestamp:
            return False
        if header.attributes & TIMESTAMP_TYPE_BIT and header.max_timestamp >= self._until_timestamp:
            return False  # all of its records have this timestamp
        if header.attributes & TRANSACTIONAL_BIT and self._aborted:
            for first, last in self._aborted.get(header.producer_id, ()):
                if first <= header.base_offset <= last:
                    return False
        return True

    cdef int _apply_marker(self, const unsigned char *data) except -1:
        """End the transactions of an abort marker's producer whose last offset is unknown."""
        cdef BatchHeader header = self._header
        cdef RecordFields fields
        cdef const char *problem
        cdef const unsigned char *payload = data + header.position + HEADER_SIZE
        transactions = self._aborted.get(header.producer_id)
        if transactions is None:
            return 0
        problem = read_record(payload, payload + header.size - HEADER_SIZE, &fields)
        if problem != NULL or fields.key_length < CONTROL_KEY_SIZE:
            raise CorruptBatchError("control record can't be read", position=header.position)
        if load16(fields.key + CONTROL_TYPE_POSITION) == CONTROL_TYPE_ABORT:
            for transaction in transactions:
                if transaction[1] == LAST and transaction[0] <= header.base_offset:
                    transaction[1] = header.base_offset
        return 0

    cdef int _start_batch(self, const unsigned char *data) except -1:
        """Point to the records of the current batch, and decompress them if necessary."""
        cdef BatchHeader header = self._header
        cdef Py_ssize_t size
        self._drop_decompressed()
        if header.attributes & CODEC_MASK:
            payload = compression.decompress(
                header.attributes & CODEC_MASK,
                memoryview(self._data)[header.position + HEADER_SIZE : header.position + header.size],
                self._max_decompressed,
            )
            PyObject_GetBuffer(payload, &self._decompressed_view, PyBUF_SIMPLE)
            self._is_decompressed = True
            self._p = <const unsigned char *>self._decompressed_view.buf
            size = self._decompressed_view.len
        else:
            self._p = data + header.position + HEADER_SIZE
            size = header.size - HEADER_SIZE
        self._payload_end = self._p + size
        self._timestamp_type = 1 if header.attributes & TIMESTAMP_TYPE_BIT else 0
        if header.record_count < 0 or header.record_count > size // SMALLEST_RECORD:
            raise self._corrupt(f"record count is {header.record_count}, which {size} bytes of records can't be")
        self._left = header.record_count
        return 0

    cdef bint _take_records(self) except -1:
        """Decode the current batch until it is used up (False) or the portion is full (True)."""
        cdef ColumnDecoder out = self._open_portion()
        cdef Outcome outcome
        while True:
            with nogil:
                outcome = self._decode(out)
            if outcome == NEEDS_ROOM:
                self._make_room(out)
            elif outcome == FAILED:
                number = self._header.record_count - self._left
                raise self._corrupt(f"record {number} of {self._header.record_count}: {self._problem.decode()}")
            else:
                out.check_limit()
                return outcome == FULL

    cdef int _make_room(self, ColumnDecoder out) except -1:
        """Make room for the next record, and for as much of the batch as the portion may still take."""
        cdef Py_ssize_t size = min(self._payload_end - self._p, max(self._most_bytes - self._content, 0))
        self._room = max(size, self._needed)
        self._row_room = min(out.rows + self._left, self._most_rows)
        out.reserve(self._row_room - out.rows, self._room)
        return 0

    cdef Outcome _decode(self, ColumnDecoder out) noexcept nogil:
        cdef const unsigned char *p = self._p
        cdef long long base_offset = self._header.base_offset
        cdef long long base_timestamp = self._header.base_timestamp
        cdef long long append_time = self._header.max_timestamp
        cdef int columns = self._columns
        cdef int left = self._left
        cdef long long offset, timestamp
        cdef RecordFields fields
        cdef Outcome outcome = AT_END
        while left > 0:
            self._problem = read_record_start(p, self._payload_end, &fields)
            if self._problem != NULL:
                outcome = FAILED
                break
            # Unsigned: a corrupt delta wraps around, as in Java, and that must be defined.
            offset = <long long>(<unsigned long long>base_offset + <unsigned long long>fields.offset_delta)
            timestamp = append_time
            if self._timestamp_type != 1:
                timestamp = <long long>(
                    <unsigned long long>base_timestamp + <unsigned long long>fields.timestamp_delta
                )
            if offset >= self._start and offset < self._end and (
                not self._selects or self._is_selected(timestamp, fields.key, fields.key_length)
            ):
                if out.rows >= self._most_rows or self._content >= self._most_bytes:
                    outcome = FULL
                    break
                if out.rows >= self._row_room or fields.end - p > self._room:
                    self._needed = fields.end - p
                    outcome = NEEDS_ROOM
                    break
                self._problem = read_record_rest(&fields)
                if self._problem == NULL and columns & HEADERS_COLUMN:
                    self._put_headers(out, &fields)
                if self._problem == NULL and columns & TIMESTAMP_COLUMN:
                    self._put_timestamp(out, timestamp)
                if self._problem != NULL:
                    outcome = FAILED
                    break
                if columns & KEY_COLUMN:
                    put(&out.key, fields.key, fields.key_length)
                if columns & VALUE_COLUMN:
                    put(&out.value, fields.value, fields.value_length)
                if columns & OFFSET_COLUMN:
                    (<long long *>out.offset.data)[out.rows] = offset
                    out.offset.size += sizeof(long long)
                if columns & TIMESTAMP_TYPE_COLUMN:
                    (<int *>out.timestamp_type.data)[out.rows] = self._timestamp_type
                    out.timestamp_type.size += sizeof(int)
                out.rows += 1
                if columns & (KEY_COLUMN | VALUE_COLUMN | HEADERS_COLUMN):
                    self._room -= fields.end - p
                    self._content += fields.end - p
            p = fields.end
            left -= 1
        self._p = p
        self._left = left
        if outcome == AT_END and p != self._payload_end:
            self._problem = b"bytes are left over after the last record"
            outcome = FAILED
        return outcome

    cdef inline bint _is_selected(self, long long timestamp, const unsigned char *key, int key_length) noexcept nogil:
        if timestamp < self._from_timestamp or timestamp >= self._until_timestamp:
            return False
        return not self._has_keys or has_key(&self._keys, key, key_length)

    cdef inline void _put_timestamp(self, ColumnDecoder out, long long timestamp) noexcept nogil:
        if timestamp > MOST_MILLISECONDS or timestamp < -MOST_MILLISECONDS:
            self._problem = b"timestamp does not fit 64 bits as microseconds"
            return
        (<long long *>out.timestamp.data)[out.rows] = timestamp * 1000
        out.timestamp.size += sizeof(long long)

    cdef int _put_headers(self, ColumnDecoder out, RecordFields *fields) noexcept nogil:
        cdef const unsigned char *cursor = fields.headers
        cdef HeaderFields header
        cdef int i
        out.put_header_offset()
        for i in range(fields.header_count):
            self._problem = read_header(&cursor, fields.end, &header)
            if self._problem != NULL:
                return -1
            if (
                make_room(&out.header_key, 1, header.key_length)
                or make_room(&out.header_value, 1, header.value_length if header.value_length > 0 else 0)
            ):
                self._problem = b"not enough memory for its headers"
                return -1
            if is_utf8(header.key, header.key_length):
                put(&out.header_key, header.key, header.key_length)
            elif self._put_replaced(out, &header):
                return -1
            put(&out.header_value, header.value, header.value_length)
        if cursor != fields.end:
            self._problem = b"length leaves bytes over"
            return -1
        return 0

    cdef int _put_replaced(self, ColumnDecoder out, HeaderFields *header) noexcept with gil:
        """Put a header key that is not UTF-8 with replacement characters, as Java's clients read it."""
        cdef bytes text
        try:
            text = header.key[:header.key_length].decode("utf-8", "replace").encode()
            if make_room(&out.header_key, 1, len(text)):
                raise MemoryError
        except MemoryError:
            self._problem = b"not enough memory for its headers"
            return -1
        put(&out.header_key, text, <int>len(text))
        return 0

    cdef bint _take_legacy(self) except -1:
        """Do what _take_records does for a message of magic 0 or 1. They are rare, so this is Python code per
        record."""
        cdef ColumnDecoder out = self._open_portion()
        cdef bytes key
        while self._legacy_index < len(self._legacy):
            record = self._legacy[self._legacy_index]
            key = record.key
            if self._start <= record.offset < self._end and (
                not self._selects
                or self._is_selected(record.timestamp, key or b"", -1 if key is None else <int>len(key))
            ):
                if out.rows >= self._most_rows or self._content >= self._most_bytes:
                    return True
                self._put_record(out, record)
            self._legacy_index += 1
        self._legacy = None
        return False

    cdef int _put_record(self, ColumnDecoder out, record) except -1:
        cdef Py_ssize_t size = len(record.key or b"") + len(record.value or b"")
        out.reserve(1, size)
        self._row_room = out.rows  # the room that is left is unknown now
        self._room = 0
        self._content += size
        if self._columns & HEADERS_COLUMN:
            out.put_header_offset()
        if self._columns & TIMESTAMP_COLUMN:
            self._problem = NULL
            self._put_timestamp(out, record.timestamp)
            if self._problem != NULL:
                raise CorruptBatchError(f"record at offset {record.offset}: {self._problem.decode()}")
        out.put_object(record.key, record.value)
        if self._columns & OFFSET_COLUMN:
            (<long long *>out.offset.data)[out.rows] = record.offset
            out.offset.size += sizeof(long long)
        if self._columns & TIMESTAMP_TYPE_COLUMN:
            (<int *>out.timestamp_type.data)[out.rows] = record.timestamp_type
            out.timestamp_type.size += sizeof(int)
        out.rows += 1
        out.check_limit()
        return 0

    cdef _corrupt(self, str problem):
        return CorruptBatchError(problem, position=self._header.position)

    cdef void _drop_decompressed(self) noexcept:
        if self._is_decompressed:
            self._is_decompressed = False
            PyBuffer_Release(&self._decompressed_view)

    cdef void _drop_data(self) noexcept:
        if self._has_view:
            self._has_view = False
            PyBuffer_Release(&self._view)
        self._data = None
