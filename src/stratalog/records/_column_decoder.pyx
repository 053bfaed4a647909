# Batches -> columns in Arrow's memory layout, in one pass without the GIL; keys and values are copied with memcpy. It
# works with buffers; arrow.py makes pyarrow's arrays of them. _record_fields.pxd checks each length before use, and the
# loop over a batch starts after there is room for it.

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


# A few large blocks are kept after their column is freed, and are filled again: the page faults of new memory cost
# several times as much as the decoding. The GIL protects these variables.
cdef enum:
    WORTH_KEEPING = 65536
    MOST_BLOCKS = 32
    MOST_KEPT = 33554432  # bytes of all blocks

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


cdef void reuse_block(Memory *memory, size_t size) noexcept:
    """Set `memory` to a kept block of `size` to four times `size` bytes, if there is one. The block that was kept last
    comes first, because caches may still have it."""
    global _kept_count, _kept_bytes
    cdef int i
    if size < WORTH_KEEPING:
        return
    for i in range(_kept_count - 1, -1, -1):
        if size <= _kept[i].capacity <= 4 * size:
            memory[0] = _kept[i]
            memory.size = 0
            _kept_count -= 1
            _kept_bytes -= memory.capacity
            _kept[i] = _kept[_kept_count]
            return


@cython.final
cdef class ColumnBuffer:
    """The memory of a finished column. It lives as long as this object."""

    cdef Memory _memory

    def __dealloc__(self):
        give_back(&self._memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._memory.data, self._memory.size, 1, flags)

    def __len__(self):
        return self._memory.size


cdef ColumnBuffer hand_over(Memory *memory):
    """Return a buffer object that owns the memory, cut to its size, and clear `memory`."""
    cdef ColumnBuffer owner = ColumnBuffer.__new__(ColumnBuffer)
    cdef void *data
    cdef Memory small
    cdef bint can_be_kept
    if memory.data == NULL and grow(memory, 1):  # an empty column needs an address, too
        raise MemoryError
    can_be_kept = WORTH_KEEPING <= memory.capacity <= MOST_KEPT
    if can_be_kept and memory.size >= memory.capacity // 2:
        pass  # little is unused, and the whole block can be reused later
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
    """Return (validity or None, offsets, data, null count)."""
    if make_room(column, 1, 1):
        raise MemoryError
    (<int *>column.offsets.data)[column.rows] = <int>column.data.size
    column.offsets.size = (column.rows + 1) * sizeof(int)
    column.validity.size = (column.rows + 7) // 8
    validity = hand_over(&column.validity) if column.nulls else None
    return validity, hand_over(&column.offsets), hand_over(&column.data), column.nulls


def utf8_is_valid(bytes text):
    """Return whether a text is valid UTF-8. A test compares this with Python's decoder."""
    return is_utf8(text, len(text))


@cython.final
cdef class ColumnDecoder:
    """Columns that grow with each batch that is added. `finish` returns them, after which the decoder can't be used.

    `columns` are the bits of the columns to decode. `rows` and `content` (bytes of keys and values) are the expected
    numbers, not limits. The limit of a column is `column_limit` bytes, because Arrow's binary type has 32-bit offsets.
    """

    def __cinit__(self, int columns, Py_ssize_t rows=0, Py_ssize_t content=0, size_t column_limit=INT_MAX):
        self.columns = columns
        self.most_content = column_limit
        if content >= WORTH_KEEPING:
            if columns & KEY_COLUMN:
                reuse_block(&self.key.data, content)
            if columns & VALUE_COLUMN:
                reuse_block(&self.value.data, content)
        if rows * sizeof(long long) >= WORTH_KEEPING:
            if columns & OFFSET_COLUMN:
                reuse_block(&self.offset, rows * sizeof(long long))
            if columns & TIMESTAMP_COLUMN:
                reuse_block(&self.timestamp, rows * sizeof(long long))
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
        """Add the records of a batch with `count` records whose offsets are from start_offset to before end_offset."""
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            self.add_payload(
                <const unsigned char *>view.buf, view.len, count, base_offset, base_timestamp, timestamp_type,
                append_time, start_offset, end_offset,
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
        """Add Record objects without headers, which legacy messages become."""
        cdef Py_ssize_t content = 0
        for record in records:
            content = len(record.key or b"") + len(record.value or b"")
            self.reserve(1, content)
            self.put_object(record.key, record.value)
            self.put_position(record.offset, record.timestamp, record.timestamp_type)
            if self.columns & HEADERS_COLUMN:
                self.put_header_offset()
            self.rows += 1
            self.check_limit()

    @property
    def content(self):
        """The bytes of keys and values so far."""
        return self.key.data.size + self.value.data.size

    def mark(self):
        """Return the current number of rows, for `cut`."""
        return self.rows, self.header_key.rows

    def cut(self, mark):
        """Drop all rows after a `mark`, also those of a batch that failed in the middle."""
        rows, header_rows = mark
        if not 0 <= rows <= self.rows or not 0 <= header_rows <= self.header_key.rows:
            raise ValueError(f"{self.rows} rows can't be cut to {rows}")
        cut_binary(&self.key, rows)
        cut_binary(&self.value, rows)
        cut_binary(&self.header_key, header_rows)
        cut_binary(&self.header_value, header_rows)
        set_rows(self, rows)

    def finish(self):
        """Return the columns by their bit, as buffers in Arrow's layout."""
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
        """Make room for more rows with `content` bytes in total, before a loop that doesn't check. Headers make their
        own room."""
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
                f"a column has more than {self.most_content} bytes, the limit of Arrow's binary type: "
                "read fewer batches at a time"
            )
        return 0

    cdef int decode(
        self, const unsigned char *p, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) noexcept nogil:
        # The loop uses local variables only: the compiler must assume that memcpy writes to fields of self, and would
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
            problem = b"bytes are left over after the last record"
        self.key = keys
        self.value = values
        set_rows(self, row)
        if problem == NULL:
            return 0
        self._problem = problem
        self._problem_row = i
        return -1

    cdef void put_position(self, long long offset, long long timestamp, int timestamp_type) noexcept nogil:
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
        """Check a record's headers, and add them to the columns if `keep`."""
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
                self._problem = b"not enough memory for its headers"
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
