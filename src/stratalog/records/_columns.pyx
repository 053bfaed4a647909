# Batches <-> columns in Arrow's memory layout, one pass, memcpy for keys and values, the GIL released. Knows buffers,
# not pyarrow: arrow.py puts the two together.
#
# Reading trusts no length: _record_fields.pxd checks each before use, and room for a batch is made before its loop.
# Writing trusts no offset of a column: each is checked against the buffer that it points into.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.limits cimport INT_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from stratalog.records._column_memory cimport (
    BinaryIn, BinaryOut, Memory, free_binary, grow, is_utf8, make_room, put, span, take, write_content,
)
from stratalog.records._record_fields cimport (
    SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record,
)
from stratalog.records._varint cimport varint_size, write_varint

from stratalog.errors import CorruptBatchError, InvalidRecordError, MessageTooLargeError

# Columns, as bits.
KEY = 1
VALUE = 2
HEADERS = 4
OFFSET = 8
TIMESTAMP = 16
TIMESTAMP_TYPE = 32

cdef enum:
    KEY_BIT = 1
    VALUE_BIT = 2
    HEADERS_BIT = 4
    OFFSET_BIT = 8
    TIMESTAMP_BIT = 16
    TIMESTAMP_TYPE_BIT = 32
    FIXED_PART = 61          # a batch's header
    LARGEST_OVERHEAD = 41    # of a record: length, attributes, two deltas, two lengths, header count
    LARGEST_HEADER = 10      # of a header: two lengths


@cython.final
cdef class ColumnBuffer:
    """Memory that was filled here and now belongs to whoever holds this object."""

    cdef Memory _memory

    def __dealloc__(self):
        free(self._memory.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._memory.data, self._memory.size, 1, flags)

    def __len__(self):
        return self._memory.size


cdef ColumnBuffer hand_over(Memory *memory):
    """A buffer object that owns the memory from now on, cut to its size."""
    cdef ColumnBuffer owner = ColumnBuffer.__new__(ColumnBuffer)
    cdef void *data
    if memory.data == NULL and grow(memory, 1):  # an empty column has an address too
        raise MemoryError
    if memory.capacity > memory.size:
        data = realloc(memory.data, memory.size if memory.size else 1)
        if data != NULL:
            memory.data = <unsigned char *>data
    owner._memory = memory[0]
    memory.data = NULL
    memory.size = memory.capacity = 0
    return owner


cdef tuple finish_binary(BinaryOut *column):
    """(validity or None, offsets, data, null count)"""
    if make_room(column, 1, 1):
        raise MemoryError
    (<int *>column.offsets.data)[column.rows] = <int>column.data.size
    column.offsets.size = (column.rows + 1) * sizeof(int)
    column.validity.size = (column.rows + 7) // 8
    validity = hand_over(&column.validity) if column.nulls else None
    return validity, hand_over(&column.offsets), hand_over(&column.data), column.nulls


def utf8_is_valid(bytes text):
    """For the test that compares with Python's own decoder."""
    return is_utf8(text, len(text))


@cython.final
cdef class ColumnDecoder:
    """Columns that grow with each batch that is added. `finish` hands them over; the decoder is then spent.

    `columns` are the bits of those wanted. `rows` and `content`, bytes of keys and values, are how many to expect;
    more may come. No column may pass `column_limit` bytes: Arrow's binary type counts with 32 bits.
    """

    cdef int _columns
    cdef size_t _limit
    cdef BinaryOut _key
    cdef BinaryOut _value
    cdef BinaryOut _header_key
    cdef BinaryOut _header_value
    cdef Memory _header_offsets
    cdef Memory _offset
    cdef Memory _timestamp
    cdef Memory _timestamp_type
    cdef readonly Py_ssize_t rows
    cdef const char *_problem
    cdef Py_ssize_t _problem_row

    def __cinit__(self, int columns, Py_ssize_t rows=0, Py_ssize_t content=0, size_t column_limit=INT_MAX):
        self._columns = columns
        self._limit = column_limit
        self._make_room(rows, content)

    def __dealloc__(self):
        free_binary(&self._key)
        free_binary(&self._value)
        free_binary(&self._header_key)
        free_binary(&self._header_value)
        free(self._header_offsets.data)
        free(self._offset.data)
        free(self._timestamp.data)
        free(self._timestamp_type.data)

    def add_batch(
        self, payload, int count, long long base_offset, long long base_timestamp, int timestamp_type,
        long long append_time, long long start_offset, long long end_offset,
    ):
        """Add those of a batch's `count` records that are at start_offset or later and before end_offset."""
        cdef Py_buffer view
        cdef int status
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if count < 0 or count > view.len // SMALLEST_RECORD:
                raise CorruptBatchError(f"record count is {count}, which {view.len} bytes of records can't be")
            self._make_room(count, view.len)
            with nogil:
                status = self._decode(
                    <const unsigned char *>view.buf, view.len, count, base_offset, base_timestamp, timestamp_type,
                    append_time, start_offset, end_offset,
                )
            if status:
                raise CorruptBatchError(f"record {self._problem_row} of {count}: {self._problem.decode()}")
        finally:
            PyBuffer_Release(&view)
        self._check_limit()

    def add_records(self, records):
        """Add Record objects: for messages of a legacy magic, which have no headers."""
        cdef Py_ssize_t content = 0
        for record in records:
            content = len(record.key or b"") + len(record.value or b"")
            self._make_room(1, content)
            self._put_object(record.key, record.value)
            self._put_place(record.offset, record.timestamp, record.timestamp_type)
            if self._columns & HEADERS_BIT:
                self._put_header_offset()
            self.rows += 1
            self._check_limit()

    def finish(self):
        """The columns by their bit: buffers as Arrow lays them out."""
        columns = {}
        if self._columns & KEY_BIT:
            columns[KEY_BIT] = finish_binary(&self._key)
        if self._columns & VALUE_BIT:
            columns[VALUE_BIT] = finish_binary(&self._value)
        if self._columns & HEADERS_BIT:
            if grow(&self._header_offsets, sizeof(int)):
                raise MemoryError
            self._put_header_offset()
            header_rows = self._header_key.rows
            columns[HEADERS_BIT] = (
                hand_over(&self._header_offsets), header_rows, finish_binary(&self._header_key),
                finish_binary(&self._header_value),
            )
        if self._columns & OFFSET_BIT:
            columns[OFFSET_BIT] = hand_over(&self._offset)
        if self._columns & TIMESTAMP_BIT:
            columns[TIMESTAMP_BIT] = hand_over(&self._timestamp)
        if self._columns & TIMESTAMP_TYPE_BIT:
            columns[TIMESTAMP_TYPE_BIT] = hand_over(&self._timestamp_type)
        return columns

    cdef int _make_room(self, Py_ssize_t rows, Py_ssize_t content) except -1:
        """Room for so many rows with so many bytes in all, before a loop that does not ask. Headers do ask."""
        cdef int failed = 0
        if self._columns & KEY_BIT:
            failed |= make_room(&self._key, rows, content)
        if self._columns & VALUE_BIT:
            failed |= make_room(&self._value, rows, content)
        if self._columns & HEADERS_BIT:
            failed |= grow(&self._header_offsets, rows * sizeof(int))
        if self._columns & OFFSET_BIT:
            failed |= grow(&self._offset, rows * sizeof(long long))
        if self._columns & TIMESTAMP_BIT:
            failed |= grow(&self._timestamp, rows * sizeof(long long))
        if self._columns & TIMESTAMP_TYPE_BIT:
            failed |= grow(&self._timestamp_type, rows * sizeof(int))
        if failed:
            raise MemoryError
        return 0

    cdef int _check_limit(self) except -1:
        if (
            self._key.data.size > self._limit or self._value.data.size > self._limit
            or self._header_key.data.size > self._limit or self._header_value.data.size > self._limit
            or self._header_key.rows > INT_MAX
        ):
            raise OverflowError(
                f"a column has more than {self._limit} bytes, the most that Arrow's binary type holds: "
                "read fewer batches at a time"
            )
        return 0

    cdef int _decode(
        self, const unsigned char *p, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) noexcept nogil:
        cdef const unsigned char *end = p + size
        cdef int columns = self._columns
        cdef RecordFields fields
        cdef long long offset, timestamp
        cdef Py_ssize_t i
        for i in range(count):
            self._problem_row = i
            self._problem = read_record(p, end, &fields)
            if self._problem != NULL:
                return -1
            p = fields.end
            offset = <long long>(<unsigned long long>base_offset + <unsigned long long>fields.offset_delta)
            if offset < start_offset or offset >= end_offset:
                if fields.header_count and self._walk_headers(&fields, False):
                    return -1
                continue
            if columns & KEY_BIT:
                put(&self._key, fields.key, fields.key_length)
            if columns & VALUE_BIT:
                put(&self._value, fields.value, fields.value_length)
            if columns & HEADERS_BIT:
                self._put_header_offset()
            if fields.header_count and self._walk_headers(&fields, columns & HEADERS_BIT):
                return -1
            timestamp = append_time
            if timestamp_type != 1:
                timestamp = <long long>(
                    <unsigned long long>base_timestamp + <unsigned long long>fields.timestamp_delta
                )
            self._put_place(offset, timestamp, timestamp_type)
            self.rows += 1
        if p != end:
            self._problem_row = count
            self._problem = b"bytes are left over behind the last record"
            return -1
        return 0

    cdef inline void _put_place(self, long long offset, long long timestamp, int timestamp_type) noexcept nogil:
        if self._columns & OFFSET_BIT:
            (<long long *>self._offset.data)[self.rows] = offset
            self._offset.size += sizeof(long long)
        if self._columns & TIMESTAMP_BIT:
            (<long long *>self._timestamp.data)[self.rows] = timestamp
            self._timestamp.size += sizeof(long long)
        if self._columns & TIMESTAMP_TYPE_BIT:
            (<int *>self._timestamp_type.data)[self.rows] = timestamp_type
            self._timestamp_type.size += sizeof(int)

    cdef inline void _put_header_offset(self) noexcept nogil:
        (<int *>self._header_offsets.data)[self.rows] = <int>self._header_key.rows
        self._header_offsets.size += sizeof(int)

    cdef int _put_object(self, bytes key, bytes value) except -1:
        if self._columns & KEY_BIT:
            if key is None:
                put(&self._key, NULL, -1)
            else:
                put(&self._key, key, <int>len(key))
        if self._columns & VALUE_BIT:
            if value is None:
                put(&self._value, NULL, -1)
            else:
                put(&self._value, value, <int>len(value))
        return 0

    cdef int _walk_headers(self, RecordFields *fields, bint keep) noexcept nogil:
        """Check a record's headers, and add them to the columns where they are wanted."""
        cdef const unsigned char *cursor = fields.headers
        cdef HeaderFields header
        cdef int i
        for i in range(fields.header_count):
            self._problem = read_header(&cursor, fields.end, &header)
            if self._problem != NULL:
                return -1
            if not is_utf8(header.key, header.key_length):
                self._problem = b"header key is not UTF-8"
                return -1
            if not keep:
                continue
            if (
                make_room(&self._header_key, 1, header.key_length)
                or make_room(&self._header_value, 1, header.value_length if header.value_length > 0 else 0)
            ):
                self._problem = b"there is no memory for its headers"
                return -1
            put(&self._header_key, header.key, header.key_length)
            put(&self._header_value, header.value, header.value_length)
        if cursor != fields.end:
            self._problem = b"length leaves bytes over"
            return -1
        return 0


@cython.final
cdef class BinaryColumn:
    """A binary or string column of Arrow: its buffers, and which rows of them. Keeps them alive."""

    cdef BinaryIn _column
    cdef Py_buffer _validity
    cdef Py_buffer _offsets
    cdef Py_buffer _data

    def __cinit__(self, validity, offsets, data, Py_ssize_t start, Py_ssize_t rows, bint is_large):
        cdef Py_ssize_t width = 8 if is_large else 4
        self._column.start = start
        self._column.rows = rows
        self._column.is_large = is_large
        if rows == 0:
            return
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        self._column.offsets = self._offsets.buf
        if start < 0 or rows < 0 or self._offsets.len < (start + rows + 1) * width:
            raise ValueError(f"offsets have {self._offsets.len} bytes, too few for rows {start}..{start + rows}")
        if validity is not None:
            PyObject_GetBuffer(validity, &self._validity, PyBUF_SIMPLE)
            self._column.validity = <const unsigned char *>self._validity.buf
            if self._validity.len * 8 < start + rows:
                raise ValueError(f"validity has {self._validity.len} bytes, too few for {start + rows} rows")
        if data is not None:
            PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
            self._column.data = <const unsigned char *>self._data.buf
            self._column.data_size = self._data.len

    def __dealloc__(self):
        PyBuffer_Release(&self._validity)
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._data)


@cython.final
cdef class ColumnEncoder:
    """Rows of columns -> the bytes of batches, uncompressed and with room for the header in front.

    A column that is None is all null. `timestamps` is a buffer of i64 milliseconds, or None for -1. Headers are
    list offsets (i32, a buffer) into two columns of header keys and values.
    """

    cdef BinaryColumn _key_owner, _value_owner, _header_key_owner, _header_value_owner
    cdef BinaryIn _key, _value, _header_key, _header_value
    cdef Py_buffer _timestamps
    cdef Py_buffer _header_offsets
    cdef readonly Py_ssize_t rows
    cdef const char *_problem

    def __cinit__(
        self, Py_ssize_t rows, BinaryColumn key, BinaryColumn value, timestamps=None, header_offsets=None,
        BinaryColumn header_keys=None, BinaryColumn header_values=None,
    ):
        self.rows = rows
        for column in (key, value):
            if column is not None and (<BinaryColumn>column)._column.rows != rows:
                raise ValueError(f"a column has {(<BinaryColumn>column)._column.rows} rows, not {rows}")
        self._key_owner, self._value_owner = key, value
        self._header_key_owner, self._header_value_owner = header_keys, header_values
        if key is not None:
            self._key = key._column
        if value is not None:
            self._value = value._column
        if timestamps is not None:
            PyObject_GetBuffer(timestamps, &self._timestamps, PyBUF_SIMPLE)
            if self._timestamps.len < rows * 8:
                raise ValueError(f"timestamps have {self._timestamps.len} bytes, too few for {rows} rows")
        if header_offsets is not None:
            if header_keys is None or header_values is None:
                raise ValueError("header offsets without header keys and values")
            self._header_key = header_keys._column
            self._header_value = header_values._column
            PyObject_GetBuffer(header_offsets, &self._header_offsets, PyBUF_SIMPLE)
            if self._header_offsets.len < (rows + 1) * 4:
                raise ValueError(f"header offsets have {self._header_offsets.len} bytes, too few for {rows} rows")

    def __dealloc__(self):
        PyBuffer_Release(&self._timestamps)
        PyBuffer_Release(&self._header_offsets)

    def encode(self, Py_ssize_t start, Py_ssize_t max_bytes):
        """Rows from `start` on, as many as fit `max_bytes` with the header, but at least one.

        Returns (bytearray, the row behind the last, base timestamp, max timestamp).
        """
        cdef Py_ssize_t capacity, size, row = start
        cdef long long base_timestamp, max_timestamp = -1
        cdef unsigned char *out
        if start < 0 or start >= self.rows:
            raise ValueError(f"row {start} is not one of {self.rows}")
        base_timestamp = self._timestamp(start)
        if max_bytes > INT_MAX:
            max_bytes = INT_MAX
        capacity = max(min(max_bytes, self._most_bytes(start)), self._one_record(start))
        if capacity > INT_MAX:
            raise MessageTooLargeError(f"row {start} makes a batch of {capacity} bytes; a batch is less than 2 GiB")
        batch = PyByteArray_FromStringAndSize(NULL, capacity)
        out = <unsigned char *>PyByteArray_AS_STRING(batch)
        with nogil:
            size = self._encode(out, capacity, &row, base_timestamp, &max_timestamp)
        if size < 0:
            raise InvalidRecordError(f"row {row}: {self._problem.decode()}")
        PyByteArray_Resize(batch, size)
        return batch, row, base_timestamp, max_timestamp

    cdef inline long long _timestamp(self, Py_ssize_t row) noexcept nogil:
        return -1 if self._timestamps.buf == NULL else (<const long long *>self._timestamps.buf)[row]

    cdef Py_ssize_t _most_bytes(self, Py_ssize_t start):
        """No less than what the rows from `start` on can take."""
        cdef Py_ssize_t size = FIXED_PART + (self.rows - start) * LARGEST_OVERHEAD
        cdef Py_ssize_t headers
        size += span(&self._key, start) + span(&self._value, start)
        if self._header_offsets.buf != NULL:
            headers = (<const int *>self._header_offsets.buf)[self.rows] - (<const int *>self._header_offsets.buf)[0]
            size += headers * LARGEST_HEADER + self._header_key.data_size + self._header_value.data_size
        return size

    cdef Py_ssize_t _one_record(self, Py_ssize_t row) except -1:
        """What a batch of this row alone takes; if the row can't be written, encoding says so."""
        cdef long long body = self._body_size(row, 0, 0)
        return FIXED_PART + (body + 5 if body > 0 else 0)

    cdef long long _body_size(self, Py_ssize_t row, long long delta, long long timestamp_delta) noexcept nogil:
        """A record's bytes behind its length. -1: `_problem` says why there are none."""
        cdef const unsigned char *content = NULL
        cdef long long size = 1 + varint_size(timestamp_delta) + varint_size(delta)
        cdef int length = -1
        cdef int i, first, last
        if self._key.offsets != NULL:
            length = take(&self._key, row, &content)
        size += varint_size(length) + (length if length > 0 else 0)
        if length == -2:
            self._problem = b"key goes past the end of its column"
            return -1
        length = -1
        if self._value.offsets != NULL:
            length = take(&self._value, row, &content)
        size += varint_size(length) + (length if length > 0 else 0)
        if length == -2:
            self._problem = b"value goes past the end of its column"
            return -1
        if self._header_offsets.buf == NULL:
            return size + 1
        first = (<const int *>self._header_offsets.buf)[row]
        last = (<const int *>self._header_offsets.buf)[row + 1]
        if first < 0 or last < first or last > self._header_key.rows or last > self._header_value.rows:
            self._problem = b"headers go past the end of their column"
            return -1
        size += varint_size(last - first)
        for i in range(first, last):
            length = take(&self._header_key, i, &content)
            if length == -1:
                self._problem = b"header key is null"
                return -1
            if length == -2 or not is_utf8(content, length):
                self._problem = b"header key is not UTF-8"
                return -1
            size += varint_size(length) + length
            length = take(&self._header_value, i, &content)
            if length == -2:
                self._problem = b"header value goes past the end of its column"
                return -1
            size += varint_size(length) + (length if length > 0 else 0)
        return size

    cdef Py_ssize_t _encode(
        self, unsigned char *out, Py_ssize_t capacity, Py_ssize_t *row, long long base_timestamp,
        long long *max_timestamp,
    ) noexcept nogil:
        """Fill `out` behind the header's place; `row` moves on. Returns the size, or -1."""
        cdef unsigned char *p = out + FIXED_PART
        cdef unsigned char *end = out + capacity
        cdef Py_ssize_t start = row[0]
        cdef long long timestamp, delta, timestamp_delta, body
        memset(out, 0, FIXED_PART)
        while row[0] < self.rows:
            timestamp = self._timestamp(row[0])
            if timestamp < -1:
                self._problem = b"timestamp is negative"
                return -1
            delta = row[0] - start
            timestamp_delta = <long long>(<unsigned long long>timestamp - <unsigned long long>base_timestamp)
            body = self._body_size(row[0], delta, timestamp_delta)
            if body < 0:
                return -1
            if body + varint_size(body) > end - p:
                break
            p = self._write(p, row[0], body, delta, timestamp_delta)
            if timestamp > max_timestamp[0]:
                max_timestamp[0] = timestamp
            row[0] += 1
        return p - out

    cdef unsigned char *_write(
        self, unsigned char *p, Py_ssize_t row, long long body, long long delta, long long timestamp_delta
    ) noexcept nogil:
        """One record, whose size was found to fit."""
        cdef int i, first, last
        p = write_varint(p, body)
        p[0] = 0
        p = write_varint(p + 1, timestamp_delta)
        p = write_varint(p, delta)
        p = write_content(p, &self._key, row)
        p = write_content(p, &self._value, row)
        if self._header_offsets.buf == NULL:
            p[0] = 0
            return p + 1
        first = (<const int *>self._header_offsets.buf)[row]
        last = (<const int *>self._header_offsets.buf)[row + 1]
        p = write_varint(p, last - first)
        for i in range(first, last):
            p = write_content(p, &self._header_key, i)
            p = write_content(p, &self._header_value, i)
        return p
