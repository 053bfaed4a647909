# Columns in Arrow's memory layout -> the bytes of batches, in one pass without the GIL; keys and values are copied with
# memcpy. It works with buffers; arrow.py gets them from pyarrow. Each offset of a column is checked against the buffer
# that it points into.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.limits cimport INT_MAX
from libc.string cimport memset

from stratalog.records._column_memory cimport (
    BinaryIn, is_utf8, prefer_huge_pages, span, take, write_bytes, write_content,
)
from stratalog.records._varint cimport varint_size, write_varint
from stratalog.records.format cimport HEADER_SIZE

from stratalog.errors import InvalidRecordError, MessageTooLargeError

cdef enum:
    LARGEST_OVERHEAD = 41    # per record: length, attributes, two deltas, two lengths, header count
    LARGEST_HEADER = 10      # per header: two lengths
    WORTH_HUGE_PAGES = 524288


cdef struct Row:
    const unsigned char *key
    const unsigned char *value
    int key_length      # -1: null
    int value_length


cdef bytearray _new_batch(Py_ssize_t capacity):
    """Return room for a batch, in large pages if it is large: otherwise its page faults cost more than the encoding."""
    cdef bytearray batch = PyByteArray_FromStringAndSize(NULL, capacity)
    if capacity >= WORTH_HUGE_PAGES:
        prefer_huge_pages(PyByteArray_AS_STRING(batch), capacity)
    return batch


cdef inline long long _difference(long long a, long long b) noexcept nogil:
    """Return a - b, which wraps around as in Java."""
    return <long long>(<unsigned long long>a - <unsigned long long>b)


cdef inline Py_ssize_t _row(const int *order, Py_ssize_t index) noexcept nogil:
    return index if order == NULL else order[index]


cdef int _acquire(order, Py_buffer *view) except -1:
    """Get the buffer of `order`; for None, view.buf is NULL."""
    memset(view, 0, sizeof(Py_buffer))
    if order is not None:
        PyObject_GetBuffer(order, view, PyBUF_SIMPLE)
    return 0


@cython.final
cdef class BinaryColumn:
    """The buffers of a binary or string column of Arrow, and the range of its rows. It keeps the buffers alive."""

    def __cinit__(self, validity, offsets, data, Py_ssize_t start, Py_ssize_t rows, bint is_large):
        cdef Py_ssize_t width = 8 if is_large else 4
        self.column.start = start
        self.column.rows = rows
        self.column.is_large = is_large
        if rows == 0:
            return
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        self.column.offsets = self._offsets.buf
        if start < 0 or rows < 0 or self._offsets.len < (start + rows + 1) * width:
            raise ValueError(f"offsets have {self._offsets.len} bytes, too few for rows {start}..{start + rows}")
        if validity is not None:
            PyObject_GetBuffer(validity, &self._validity, PyBUF_SIMPLE)
            self.column.validity = <const unsigned char *>self._validity.buf
            if self._validity.len * 8 < start + rows:
                raise ValueError(f"validity has {self._validity.len} bytes, too few for {start + rows} rows")
        if data is not None:
            PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
            self.column.data = <const unsigned char *>self._data.buf
            self.column.data_size = self._data.len

    def __dealloc__(self):
        PyBuffer_Release(&self._validity)
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._data)


@cython.final
cdef class ColumnEncoder:
    """Rows of columns -> the bytes of batches: room for the header, then the uncompressed records.

    None is a column in which all values are null. `timestamps` is a buffer of i64 milliseconds; with None, all rows
    have `no_timestamp`. `header_offsets` is a buffer of i32 list offsets into two columns of header keys and values.
    """

    cdef BinaryColumn _key_owner, _value_owner, _header_key_owner, _header_value_owner
    cdef BinaryIn _key, _value, _header_key, _header_value
    cdef Py_buffer _timestamps
    cdef Py_buffer _header_offsets
    cdef long long _no_timestamp
    cdef readonly Py_ssize_t rows
    cdef const char *_problem

    def __cinit__(
        self, Py_ssize_t rows, BinaryColumn key, BinaryColumn value, timestamps=None, header_offsets=None,
        BinaryColumn header_keys=None, BinaryColumn header_values=None, *, long long no_timestamp=-1,
    ):
        self.rows = rows
        self._no_timestamp = no_timestamp
        for column in (key, value):
            if column is not None and (<BinaryColumn>column).column.rows != rows:
                raise ValueError(f"a column has {(<BinaryColumn>column).column.rows} rows, not {rows}")
        self._key_owner, self._value_owner = key, value
        self._header_key_owner, self._header_value_owner = header_keys, header_values
        if key is not None:
            self._key = key.column
        if value is not None:
            self._value = value.column
        if timestamps is not None:
            PyObject_GetBuffer(timestamps, &self._timestamps, PyBUF_SIMPLE)
            if self._timestamps.len < rows * 8:
                raise ValueError(f"timestamps have {self._timestamps.len} bytes, too few for {rows} rows")
        if header_offsets is not None:
            if header_keys is None or header_values is None:
                raise ValueError("header_offsets needs header_keys and header_values")
            self._header_key = header_keys.column
            self._header_value = header_values.column
            PyObject_GetBuffer(header_offsets, &self._header_offsets, PyBUF_SIMPLE)
            if self._header_offsets.len < (rows + 1) * 4:
                raise ValueError(f"header offsets have {self._header_offsets.len} bytes, too few for {rows} rows")

    def __dealloc__(self):
        PyBuffer_Release(&self._timestamps)
        PyBuffer_Release(&self._header_offsets)

    def encode(self, Py_ssize_t start, Py_ssize_t max_bytes, bytearray into=None):
        """Encode rows from `start` on: at least one, and as many as fit `max_bytes` with the header. Write into `into`
        if it is large enough.

        Return (batch, the row after the last one, base timestamp, max timestamp).
        """
        cdef Py_ssize_t capacity, size, row = start
        cdef long long base_timestamp, max_timestamp = -1
        cdef unsigned char *out
        if start < 0 or start >= self.rows:
            raise ValueError(f"row {start} doesn't exist; there are {self.rows} rows")
        base_timestamp = self._timestamp(start)
        if max_bytes > INT_MAX:
            max_bytes = INT_MAX
        capacity = max(min(max_bytes, self._most_bytes(start)), self._one_record(start))
        if capacity > INT_MAX:
            raise MessageTooLargeError(
                f"row {start} needs a batch of {capacity} bytes; a batch must be smaller than 2 GiB"
            )
        batch = into if into is not None and len(into) >= capacity else _new_batch(capacity)
        out = <unsigned char *>PyByteArray_AS_STRING(batch)
        with nogil:
            size = self._encode(out, capacity, NULL, &row, self.rows, base_timestamp, &max_timestamp)
        if size < 0:
            raise InvalidRecordError(f"row {row}: {self._problem.decode()}")
        PyByteArray_Resize(batch, size)
        return batch, row, base_timestamp, max_timestamp

    def plan(self, order, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_bytes):
        """Plan the next batch: at least one row, and as many as fit `max_bytes` with the header, of the rows from
        `start` to before `end`. With `order`, a buffer of row numbers (i32), the rows are order[start:end]. Check each
        row.

        Return (size of the batch, the index after its last row, base timestamp, max timestamp).
        """
        cdef Py_ssize_t size, index = start
        cdef long long base_timestamp = 0, max_timestamp = -1
        cdef Py_buffer view
        cdef const int *numbers
        _acquire(order, &view)
        try:
            numbers = self._row_numbers(&view, start, end)
            with nogil:
                size = self._plan(numbers, &index, end, min(max_bytes, INT_MAX), &base_timestamp, &max_timestamp)
            if size < 0:
                raise InvalidRecordError(f"row {_row(numbers, index)}: {self._problem.decode()}")
            if size > INT_MAX:
                raise MessageTooLargeError(
                    f"row {_row(numbers, start)} needs a batch of {size} bytes; a batch must be smaller than 2 GiB"
                )
        finally:
            PyBuffer_Release(&view)
        return size, index, base_timestamp, max_timestamp

    def encode_planned(
        self, order, Py_ssize_t start, Py_ssize_t end, Py_ssize_t size, long long base_timestamp, bytearray into=None,
        Py_ssize_t capacity=0,
    ):
        """Encode the batch that `plan` returned the size of, of the rows from `start` to before `end`. Write into
        `into` if it is large enough, otherwise into new memory of at least `capacity` bytes. Raises InvalidRecordError
        if the columns changed since."""
        cdef Py_ssize_t written, index = start
        cdef long long max_timestamp = -1
        cdef Py_buffer view
        cdef const int *numbers
        cdef unsigned char *out
        if size < HEADER_SIZE:
            raise ValueError(f"size is {size}; a batch has at least {HEADER_SIZE} bytes")
        batch = into if into is not None and len(into) >= size else _new_batch(max(size, capacity))
        out = <unsigned char *>PyByteArray_AS_STRING(batch)
        _acquire(order, &view)
        try:
            numbers = self._row_numbers(&view, start, end)
            with nogil:
                written = self._encode(out, size, numbers, &index, end, base_timestamp, &max_timestamp)
        finally:
            PyBuffer_Release(&view)
        if written != size or index != end:
            raise InvalidRecordError(
                "the table's memory changed before its rows were sent; leave it unchanged until then"
            )
        PyByteArray_Resize(batch, size)
        return batch

    cdef const int *_row_numbers(self, Py_buffer *order, Py_ssize_t start, Py_ssize_t end) except? NULL:
        """Return the row numbers of `order`, or NULL for all rows in order. Check the range."""
        cdef const int *numbers = <const int *>order.buf
        cdef Py_ssize_t count = self.rows if numbers == NULL else order.len // <Py_ssize_t>sizeof(int)
        if start < 0 or start >= end or end > count:
            raise ValueError(f"range {start}..{end} is outside the {count} rows")
        return numbers

    cdef Py_ssize_t _plan(
        self, const int *order, Py_ssize_t *index, Py_ssize_t end, Py_ssize_t max_bytes, long long *base_timestamp,
        long long *max_timestamp,
    ) noexcept nogil:
        """Return the size of a batch with the rows that fit, at least the first, and move `index` after them. Return -1
        if the row at `index` is not valid; `_problem` says why."""
        cdef Py_ssize_t size = HEADER_SIZE
        cdef Py_ssize_t start = index[0]
        cdef Py_ssize_t row
        cdef long long timestamp, body
        cdef Row fields
        while index[0] < end:
            row = _row(order, index[0])
            if row < 0 or row >= self.rows:
                self._problem = b"the row does not exist"
                return -1
            timestamp = self._timestamp(row)
            if index[0] == start:
                base_timestamp[0] = timestamp
            body = self._read_row(row, index[0] - start, _difference(timestamp, base_timestamp[0]), &fields)
            if body < 0:
                return -1
            body += varint_size(body)
            if size + body > max_bytes and index[0] > start:
                break
            size += body
            if timestamp > max_timestamp[0]:
                max_timestamp[0] = timestamp
            index[0] += 1
        return size

    cdef inline long long _timestamp(self, Py_ssize_t row) noexcept nogil:
        return self._no_timestamp if self._timestamps.buf == NULL else (<const long long *>self._timestamps.buf)[row]

    cdef Py_ssize_t _most_bytes(self, Py_ssize_t start):
        """Return an upper bound for the size of the rows from `start` on."""
        cdef Py_ssize_t size = HEADER_SIZE + (self.rows - start) * LARGEST_OVERHEAD
        cdef Py_ssize_t headers
        size += span(&self._key, start) + span(&self._value, start)
        if self._header_offsets.buf != NULL:
            headers = (<const int *>self._header_offsets.buf)[self.rows] - (<const int *>self._header_offsets.buf)[0]
            size += headers * LARGEST_HEADER + self._header_key.data_size + self._header_value.data_size
        return size

    cdef Py_ssize_t _one_record(self, Py_ssize_t row) except -1:
        """Return the size of a batch with this row alone. Encoding reports a row that is not valid."""
        cdef Row fields
        cdef long long body = self._read_row(row, 0, 0, &fields)
        return HEADER_SIZE + (body + 5 if body > 0 else 0)

    cdef long long _read_row(
        self, Py_ssize_t row, long long delta, long long timestamp_delta, Row *fields
    ) noexcept nogil:
        """Set `fields` to the key and the value, and return the size of the record after its length. Return -1 if the
        row is not valid; `_problem` says why."""
        cdef const unsigned char *content = NULL
        cdef long long size = 1 + varint_size(timestamp_delta) + varint_size(delta)
        cdef int i, first, last, length
        if self._timestamp(row) < -1:
            self._problem = b"timestamp is negative"
            return -1
        fields.key_length = fields.value_length = -1
        if self._key.offsets != NULL:
            fields.key_length = take(&self._key, row, &fields.key)
        if fields.key_length == -2:
            self._problem = b"key goes past the end of its column"
            return -1
        size += varint_size(fields.key_length) + max(fields.key_length, 0)
        if self._value.offsets != NULL:
            fields.value_length = take(&self._value, row, &fields.value)
        if fields.value_length == -2:
            self._problem = b"value goes past the end of its column"
            return -1
        size += varint_size(fields.value_length) + max(fields.value_length, 0)
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
        self, unsigned char *out, Py_ssize_t capacity, const int *order, Py_ssize_t *index, Py_ssize_t stop,
        long long base_timestamp, long long *max_timestamp,
    ) noexcept nogil:
        """Write rows, or the rows of `order`, after room for the header, while they fit, and move `index` after them.
        Return the size, or -1 if the row at `index` is not valid."""
        cdef unsigned char *p = out + HEADER_SIZE
        cdef unsigned char *end = out + capacity
        cdef Py_ssize_t start = index[0]
        cdef Py_ssize_t row
        cdef long long timestamp, delta, timestamp_delta, body
        cdef Row fields
        memset(out, 0, HEADER_SIZE)
        while index[0] < stop:
            row = _row(order, index[0])
            if row < 0 or row >= self.rows:
                self._problem = b"the row does not exist"
                return -1
            timestamp = self._timestamp(row)
            delta = index[0] - start
            timestamp_delta = _difference(timestamp, base_timestamp)
            body = self._read_row(row, delta, timestamp_delta, &fields)
            if body < 0:
                return -1
            if body + varint_size(body) > end - p:
                break
            p = self._write(p, row, body, delta, timestamp_delta, &fields)
            if timestamp > max_timestamp[0]:
                max_timestamp[0] = timestamp
            index[0] += 1
        return p - out

    cdef unsigned char *_write(
        self, unsigned char *p, Py_ssize_t row, long long body, long long delta, long long timestamp_delta, Row *fields
    ) noexcept nogil:
        """Write one record, which fits. Return the position after it."""
        cdef int i, first, last
        p = write_varint(p, body)
        p[0] = 0
        p = write_varint(p + 1, timestamp_delta)
        p = write_varint(p, delta)
        p = write_bytes(p, fields.key, fields.key_length)
        p = write_bytes(p, fields.value, fields.value_length)
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
