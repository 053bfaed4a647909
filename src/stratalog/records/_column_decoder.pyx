# Batches -> columns in Arrow's memory layout, one pass, memcpy for keys and values, the GIL released. Knows buffers, not
# pyarrow: arrow.py puts the two together. Trusts no length: _record_fields.pxd checks each before use, and room for a
# batch is made before its loop.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport INT_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from stratalog.records._column_memory cimport (
    BinaryOut, Memory, free_binary, grow, is_utf8, make_room, put,
)
from stratalog.records._record_fields cimport (
    SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record,
)

from stratalog.errors import CorruptBatchError

# Columns, as bits.
KEY = KEY_COLUMN
VALUE = VALUE_COLUMN
HEADERS = HEADERS_COLUMN
OFFSET = OFFSET_COLUMN
TIMESTAMP = TIMESTAMP_COLUMN
TIMESTAMP_TYPE = TIMESTAMP_TYPE_COLUMN


# Large blocks are kept when their column is gone, a few of them, and filled again: fresh memory costs a page fault for
# each of its pages, several times as much as the decoding. Only touched with the GIL.
cdef enum:
    WORTH_KEEPING = 65536
    MOST_BLOCKS = 32
    MOST_KEPT = 33554432  # bytes, of all of them

cdef Memory _kept[MOST_BLOCKS]
cdef int _kept_count = 0
cdef size_t _kept_bytes = 0


cdef void give_back(Memory *memory) noexcept:
    global _kept_count, _kept_bytes
    if (
        memory.capacity >= WORTH_KEEPING and _kept_count < MOST_BLOCKS and _kept_bytes + memory.capacity <= MOST_KEPT
    ):
        _kept[_kept_count] = memory[0]
        _kept_count += 1
        _kept_bytes += memory.capacity
    else:
        free(memory.data)
    memory.data = NULL
    memory.size = memory.capacity = 0


cdef void take_kept(Memory *memory, size_t wanted) noexcept:
    """A block of at least this size and not much more, if one is kept; the latest first, which caches may still have."""
    global _kept_count, _kept_bytes
    cdef int i
    if wanted < WORTH_KEEPING:
        return
    for i in range(_kept_count - 1, -1, -1):
        if wanted <= _kept[i].capacity <= 4 * wanted:
            memory[0] = _kept[i]
            memory.size = 0
            _kept_count -= 1
            _kept_bytes -= memory.capacity
            _kept[i] = _kept[_kept_count]
            return


@cython.final
cdef class ColumnBuffer:
    """Memory that was filled here and now belongs to whoever holds this object."""

    cdef Memory _memory

    def __dealloc__(self):
        give_back(&self._memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._memory.data, self._memory.size, 1, flags)

    def __len__(self):
        return self._memory.size


cdef ColumnBuffer hand_over(Memory *memory):
    """A buffer object that owns the memory from now on, cut to its size."""
    cdef ColumnBuffer owner = ColumnBuffer.__new__(ColumnBuffer)
    cdef void *data
    cdef Memory small
    cdef bint can_be_kept
    if memory.data == NULL and grow(memory, 1):  # an empty column has an address too
        raise MemoryError
    can_be_kept = WORTH_KEEPING <= memory.capacity <= MOST_KEPT
    if can_be_kept and memory.size >= memory.capacity // 2:
        pass  # what is left over is little, and the block as a whole can be used again
    elif can_be_kept:
        small.data = <unsigned char *>malloc(memory.size if memory.size else 1)
        if small.data == NULL:
            raise MemoryError
        small.size = small.capacity = memory.size
        memcpy(small.data, memory.data, memory.size)
        give_back(memory)
        memory[0] = small
    elif memory.capacity > memory.size:
        data = realloc(memory.data, memory.size if memory.size else 1)
        if data != NULL:
            memory.data = <unsigned char *>data
            memory.capacity = memory.size
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

    def __cinit__(self, int columns, Py_ssize_t rows=0, Py_ssize_t content=0, size_t column_limit=INT_MAX):
        self.columns = columns
        self.most_content = column_limit
        if content >= WORTH_KEEPING:
            if columns & KEY_COLUMN:
                take_kept(&self.key.data, content)
            if columns & VALUE_COLUMN:
                take_kept(&self.value.data, content)
        if rows * sizeof(long long) >= WORTH_KEEPING:
            if columns & OFFSET_COLUMN:
                take_kept(&self.offset, rows * sizeof(long long))
            if columns & TIMESTAMP_COLUMN:
                take_kept(&self.timestamp, rows * sizeof(long long))
        self.reserve(rows, content)

    def __dealloc__(self):
        free_binary(&self.key)
        free_binary(&self.value)
        free_binary(&self.header_key)
        free_binary(&self.header_value)
        free(self.header_offsets.data)
        free(self.offset.data)
        free(self.timestamp.data)
        free(self.timestamp_type.data)

    def add_batch(
        self, payload, int count, long long base_offset, long long base_timestamp, int timestamp_type,
        long long append_time, long long start_offset, long long end_offset,
    ):
        """Add those of a batch's `count` records that are at start_offset or later and before end_offset."""
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            self.add_payload(
                <const unsigned char *>view.buf, view.len, count, base_offset, base_timestamp, timestamp_type, append_time,
                start_offset, end_offset,
            )
        finally:
            PyBuffer_Release(&view)

    cdef int add_payload(
        self, const unsigned char *payload, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) except -1:
        cdef int status
        if count < 0 or count > size // SMALLEST_RECORD:
            raise CorruptBatchError(f"record count is {count}, which {size} bytes of records can't be")
        self.reserve(count, size)
        with nogil:
            status = self.decode(
                payload, size, count, base_offset, base_timestamp, timestamp_type, append_time, start_offset, end_offset
            )
        if status:
            raise CorruptBatchError(f"record {self._problem_row} of {count}: {self._problem.decode()}")
        return self.check_limit()

    def add_records(self, records):
        """Add Record objects: for messages of a legacy magic, which have no headers."""
        cdef Py_ssize_t content = 0
        for record in records:
            content = len(record.key or b"") + len(record.value or b"")
            self.reserve(1, content)
            self.put_object(record.key, record.value)
            self.put_place(record.offset, record.timestamp, record.timestamp_type)
            if self.columns & HEADERS_COLUMN:
                self.put_header_offset()
            self.rows += 1
            self.check_limit()

    @property
    def content(self):
        """Bytes of keys and values so far."""
        return self.key.data.size + self.value.data.size

    def mark(self):
        """What `cut` goes back to."""
        return self.rows, self.header_key.rows

    def cut(self, mark):
        """Drop all rows that came after a `mark`: also those of a batch that turned out to be damaged half-way."""
        rows, header_rows = mark
        if not 0 <= rows <= self.rows or not 0 <= header_rows <= self.header_key.rows:
            raise ValueError(f"{self.rows} rows can't be cut to {rows}")
        cut_binary(&self.key, rows)
        cut_binary(&self.value, rows)
        cut_binary(&self.header_key, header_rows)
        cut_binary(&self.header_value, header_rows)
        set_rows(self, rows)

    def finish(self):
        """The columns by their bit: buffers as Arrow lays them out."""
        columns = {}
        if self.columns & KEY_COLUMN:
            columns[KEY_COLUMN] = finish_binary(&self.key)
        if self.columns & VALUE_COLUMN:
            columns[VALUE_COLUMN] = finish_binary(&self.value)
        if self.columns & HEADERS_COLUMN:
            if grow(&self.header_offsets, sizeof(int)):
                raise MemoryError
            self.put_header_offset()
            header_rows = self.header_key.rows
            columns[HEADERS_COLUMN] = (
                hand_over(&self.header_offsets), header_rows, finish_binary(&self.header_key),
                finish_binary(&self.header_value),
            )
        if self.columns & OFFSET_COLUMN:
            columns[OFFSET_COLUMN] = hand_over(&self.offset)
        if self.columns & TIMESTAMP_COLUMN:
            columns[TIMESTAMP_COLUMN] = hand_over(&self.timestamp)
        if self.columns & TIMESTAMP_TYPE_COLUMN:
            columns[TIMESTAMP_TYPE_COLUMN] = hand_over(&self.timestamp_type)
        return columns

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t content) except -1:
        """Room for so many rows with so many bytes in all, before a loop that does not ask. Headers do ask."""
        cdef int failed = 0
        if self.columns & KEY_COLUMN:
            failed |= make_room(&self.key, rows, content)
        if self.columns & VALUE_COLUMN:
            failed |= make_room(&self.value, rows, content)
        if self.columns & HEADERS_COLUMN:
            failed |= grow(&self.header_offsets, rows * sizeof(int))
        if self.columns & OFFSET_COLUMN:
            failed |= grow(&self.offset, rows * sizeof(long long))
        if self.columns & TIMESTAMP_COLUMN:
            failed |= grow(&self.timestamp, rows * sizeof(long long))
        if self.columns & TIMESTAMP_TYPE_COLUMN:
            failed |= grow(&self.timestamp_type, rows * sizeof(int))
        if failed:
            raise MemoryError
        return 0

    cdef int check_limit(self) except -1:
        if (
            self.key.data.size > self.most_content or self.value.data.size > self.most_content
            or self.header_key.data.size > self.most_content or self.header_value.data.size > self.most_content
            or self.header_key.rows > INT_MAX
        ):
            raise OverflowError(
                f"a column has more than {self.most_content} bytes, the most that Arrow's binary type holds: "
                "read fewer batches at a time"
            )
        return 0

    cdef int decode(
        self, const unsigned char *p, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) noexcept nogil:
        # In locals throughout: what memcpy writes might be fields of self, for all that a compiler knows, and it would
        # load them again for each record.
        cdef const unsigned char *end = p + size
        cdef bint has_key = (self.columns & KEY_COLUMN) != 0
        cdef bint has_value = (self.columns & VALUE_COLUMN) != 0
        cdef bint has_headers = (self.columns & HEADERS_COLUMN) != 0
        cdef long long *offsets = <long long *>self.offset.data if self.columns & OFFSET_COLUMN else NULL
        cdef long long *timestamps = <long long *>self.timestamp.data if self.columns & TIMESTAMP_COLUMN else NULL
        cdef int *types = <int *>self.timestamp_type.data if self.columns & TIMESTAMP_TYPE_COLUMN else NULL
        cdef BinaryOut keys = self.key
        cdef BinaryOut values = self.value
        cdef Py_ssize_t row = self.rows
        cdef Py_ssize_t i = 0
        cdef RecordFields fields, with_headers
        cdef const char *problem = NULL
        cdef long long offset
        while i < count:
            problem = read_record(p, end, &fields)
            if problem != NULL:
                break
            p = fields.end
            offset = <long long>(<unsigned long long>base_offset + <unsigned long long>fields.offset_delta)
            if offset < start_offset or offset >= end_offset:
                if fields.header_count:
                    with_headers = fields
                    if self.walk_headers(&with_headers, False):
                        problem = self._problem
                        break
                i += 1
                continue
            if has_key:
                put(&keys, fields.key, fields.key_length)
            if has_value:
                put(&values, fields.value, fields.value_length)
            if has_headers:
                (<int *>self.header_offsets.data)[row] = <int>self.header_key.rows
            if fields.header_count:
                with_headers = fields
                if self.walk_headers(&with_headers, has_headers):
                    problem = self._problem
                    break
            if offsets != NULL:
                offsets[row] = offset
            if timestamps != NULL:
                timestamps[row] = append_time
                if timestamp_type != 1:
                    timestamps[row] = <long long>(
                        <unsigned long long>base_timestamp + <unsigned long long>fields.timestamp_delta
                    )
            if types != NULL:
                types[row] = timestamp_type
            row += 1
            i += 1
        if problem == NULL and p != end:
            problem = b"bytes are left over behind the last record"
        self.key = keys
        self.value = values
        set_rows(self, row)
        if problem == NULL:
            return 0
        self._problem = problem
        self._problem_row = i
        return -1

    cdef void put_place(self, long long offset, long long timestamp, int timestamp_type) noexcept nogil:
        if self.columns & OFFSET_COLUMN:
            (<long long *>self.offset.data)[self.rows] = offset
            self.offset.size += sizeof(long long)
        if self.columns & TIMESTAMP_COLUMN:
            (<long long *>self.timestamp.data)[self.rows] = timestamp
            self.timestamp.size += sizeof(long long)
        if self.columns & TIMESTAMP_TYPE_COLUMN:
            (<int *>self.timestamp_type.data)[self.rows] = timestamp_type
            self.timestamp_type.size += sizeof(int)

    cdef void put_header_offset(self) noexcept nogil:
        (<int *>self.header_offsets.data)[self.rows] = <int>self.header_key.rows
        self.header_offsets.size += sizeof(int)

    cdef int put_object(self, bytes key, bytes value) except -1:
        if self.columns & KEY_COLUMN:
            if key is None:
                put(&self.key, NULL, -1)
            else:
                put(&self.key, key, <int>len(key))
        if self.columns & VALUE_COLUMN:
            if value is None:
                put(&self.value, NULL, -1)
            else:
                put(&self.value, value, <int>len(value))
        return 0

    cdef int walk_headers(self, RecordFields *fields, bint keep) noexcept nogil:
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
                make_room(&self.header_key, 1, header.key_length)
                or make_room(&self.header_value, 1, header.value_length if header.value_length > 0 else 0)
            ):
                self._problem = b"there is no memory for its headers"
                return -1
            put(&self.header_key, header.key, header.key_length)
            put(&self.header_value, header.value, header.value_length)
        if cursor != fields.end:
            self._problem = b"length leaves bytes over"
            return -1
        return 0


cdef void set_rows(ColumnDecoder decoder, Py_ssize_t rows) noexcept nogil:
    decoder.rows = rows
    if decoder.columns & HEADERS_COLUMN:
        decoder.header_offsets.size = rows * sizeof(int)
    if decoder.columns & OFFSET_COLUMN:
        decoder.offset.size = rows * sizeof(long long)
    if decoder.columns & TIMESTAMP_COLUMN:
        decoder.timestamp.size = rows * sizeof(long long)
    if decoder.columns & TIMESTAMP_TYPE_COLUMN:
        decoder.timestamp_type.size = rows * sizeof(int)


cdef void cut_binary(BinaryOut *column, Py_ssize_t rows) noexcept:
    cdef Py_ssize_t row
    if column.rows <= rows:
        return
    column.data.size = (<int *>column.offsets.data)[rows]
    for row in range(rows, column.rows):
        if not column.validity.data[row >> 3] & (1 << (row & 7)):
            column.validity.data[row >> 3] |= 1 << (row & 7)
            column.nulls -= 1
    column.rows = rows
