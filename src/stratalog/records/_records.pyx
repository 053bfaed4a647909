# Record objects, and the loops that convert between them and the bytes of a batch's records. Reading checks each length
# before it uses it and raises CorruptBatchError. Writing checks its input and raises InvalidRecordError. Both errors
# name the record and the field.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.limits cimport INT_MAX
from libc.string cimport memcpy

from stratalog.records._record_fields cimport (
    SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record,
)
from stratalog.records._varint cimport varint_size, write_varint
from stratalog.records.format cimport HEADER_SIZE

from stratalog.errors import CorruptBatchError, InvalidRecordError, MessageTooLargeError


cdef long long _milliseconds(timestamp) except? -1:
    # A float is probably time.time(), in seconds, which would be a time in January 1970.
    if type(timestamp) is not int and not isinstance(timestamp, int):
        raise TypeError(
            f"timestamp is {timestamp!r}; it must be whole milliseconds since 1970, as int(time.timestamp() * 1000)"
        )
    return timestamp


@cython.final
@cython.no_gc
cdef class Record:
    """One record: its offset, timestamp, key, value and headers. Records compare by value."""

    # Not tracked by the garbage collector: bytes, str and tuples of them can't form a cycle.
    cdef readonly long long offset
    cdef readonly long long timestamp
    cdef readonly int timestamp_type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers

    def __init__(
        self, *, long long offset=0, timestamp=-1, int timestamp_type=0, bytes key=None, bytes value=None,
        headers=(),
    ):
        self.offset = offset
        self.timestamp = _milliseconds(timestamp)
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = _checked_headers(headers)

    def _fields(self):
        return self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.headers

    def __eq__(self, other):
        if type(other) is not Record:
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return _restore_record, self._fields()


def _restore_record(offset, timestamp, timestamp_type, key, value, headers):
    return Record(
        offset=offset, timestamp=timestamp, timestamp_type=timestamp_type, key=key, value=value, headers=headers
    )


cdef tuple _checked_headers(headers):
    """Return the headers as a tuple of (str, bytes or None)."""
    cdef list checked = []
    for header in headers:
        if not isinstance(header, (tuple, list)) or len(header) != 2:
            raise TypeError(f"header is {header!r}; it must be a pair of str and bytes")
        key, value = header
        if not isinstance(key, str):
            raise TypeError(f"header key is {type(key).__name__}, not str")
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"value of header {key!r} is {type(value).__name__}, not bytes or None")
        checked.append((key, value))
    return tuple(checked)


cdef inline bytes _bytes(const unsigned char *data, int length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>data, length)


cdef _corrupt(Py_ssize_t index, Py_ssize_t count, str problem):
    return CorruptBatchError(f"record {index} of {count}: {problem}")


cdef tuple _read_headers(RecordFields *fields, Py_ssize_t index, Py_ssize_t count):
    cdef const unsigned char *cursor = fields.headers
    cdef HeaderFields header
    cdef const char *problem
    cdef tuple headers
    cdef tuple pair
    cdef int i
    headers = PyTuple_New(fields.header_count)
    for i in range(fields.header_count):
        problem = read_header(&cursor, fields.end, &header)
        if problem != NULL:
            raise _corrupt(index, count, problem.decode())
        try:
            key = PyUnicode_DecodeUTF8(<char *>header.key, header.key_length, NULL)
        except UnicodeDecodeError as error:
            raise _corrupt(index, count, f"key of header {i} is not UTF-8: {error}") from None
        pair = (key, _bytes(header.value, header.value_length))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(headers, i, pair)
    if cursor != fields.end:
        raise _corrupt(index, count, "length leaves bytes over")
    return headers


def decode_records(
    payload, int count, long long base_offset, long long base_timestamp, int timestamp_type, long long append_time
):
    """Return the `count` records of `payload`, the decompressed bytes after a batch header. Raises CorruptBatchError if
    they don't fill the payload exactly.

    With timestamp_type 1 (LogAppendTime), every record gets `append_time`.
    """
    cdef Py_buffer view
    cdef const unsigned char *p
    cdef const unsigned char *end
    cdef const char *problem
    cdef RecordFields fields
    cdef Record record
    cdef list records
    cdef Py_ssize_t i
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        # Check the count before anything is allocated for it.
        if count < 0 or count > view.len // SMALLEST_RECORD:
            raise CorruptBatchError(f"record count is {count}, which {view.len} bytes of records can't be")
        p = <const unsigned char *>view.buf
        end = p + view.len
        records = []
        for i in range(count):
            problem = read_record(p, end, &fields)
            if problem != NULL:
                raise _corrupt(i, count, problem.decode())
            record = Record.__new__(Record)
            # Unsigned: a corrupt delta wraps around, as in Java, and that must be defined.
            record.offset = <long long>(<unsigned long long>base_offset + <unsigned long long>fields.offset_delta)
            record.timestamp_type = timestamp_type
            if timestamp_type == 1:
                record.timestamp = append_time
            else:
                record.timestamp = <long long>(
                    <unsigned long long>base_timestamp + <unsigned long long>fields.timestamp_delta
                )
            record.key = _bytes(fields.key, fields.key_length)
            record.value = _bytes(fields.value, fields.value_length)
            record.headers = () if fields.header_count == 0 else _read_headers(&fields, i, count)
            records.append(record)
            p = fields.end
        if p != end:
            raise CorruptBatchError(f"{end - p} bytes are left over after the last of {count} records")
        return records
    finally:
        PyBuffer_Release(&view)


def uninitialized(Py_ssize_t size):
    """Return a bytearray with arbitrary content. bytearray(size) would write zeros and hold the GIL while it does."""
    return PyByteArray_FromStringAndSize(NULL, size)


def find_timestamp(
    payload, int count, long long base_offset, long long base_timestamp, long long timestamp, long long start_offset
):
    """Return (offset, timestamp) of the first record that is not before `timestamp` and not before `start_offset`, or
    None. Creates no objects for other records and releases the GIL, because a batch may have millions of records."""
    cdef Py_buffer view
    cdef const unsigned char *p
    cdef const unsigned char *end
    cdef const char *problem = NULL
    cdef RecordFields fields
    cdef Py_ssize_t i = 0
    cdef long long offset = 0, record_timestamp = 0
    cdef bint has_match = False
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char *>view.buf
        end = p + view.len
        with nogil:
            while i < count:
                problem = read_record(p, end, &fields)
                if problem != NULL:
                    break
                offset = <long long>(<unsigned long long>base_offset + <unsigned long long>fields.offset_delta)
                record_timestamp = <long long>(
                    <unsigned long long>base_timestamp + <unsigned long long>fields.timestamp_delta
                )
                if record_timestamp >= timestamp and offset >= start_offset:
                    has_match = True
                    break
                p = fields.end
                i += 1
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise _corrupt(i, count, problem.decode())
    return (offset, record_timestamp) if has_match else None


@cython.final
cdef class RecordsWriter:
    """The records of one batch, as bytes that grow with each append. A writer is not thread-safe.

    The default base timestamp is the first record's timestamp. The default offset delta is the next one; another must
    be after the last one.
    """

    cdef unsigned char *_data
    cdef Py_ssize_t _capacity
    cdef readonly Py_ssize_t size
    cdef readonly int record_count
    cdef readonly int last_offset_delta
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef bint _has_base_timestamp

    def __cinit__(self, base_timestamp=None):
        self.last_offset_delta = -1
        self.max_timestamp = -1
        self.base_timestamp = -1
        self._has_base_timestamp = base_timestamp is not None
        if base_timestamp is not None:
            self.base_timestamp = base_timestamp

    def __dealloc__(self):
        PyMem_Free(self._data)

    def append(self, value=None, key=None, headers=(), timestamp=-1, offset_delta=None):
        """Add one record and return its offset delta."""
        cdef long long delta = <long long>self.last_offset_delta + 1
        if offset_delta is not None:
            delta = offset_delta
        self._append(_content(value, "value"), _content(key, "key"), headers, _milliseconds(timestamp), delta)
        return self.last_offset_delta

    def extend(self, records, offset_deltas=None):
        """Add Record objects or (key, value) tuples, with consecutive offset deltas or with `offset_deltas`."""
        deltas = None if offset_deltas is None else iter(offset_deltas)
        cdef Record record
        cdef long long delta
        for item in records:
            delta = <long long>self.last_offset_delta + 1 if deltas is None else next(deltas, -1)
            if type(item) is Record:
                record = <Record>item
                self._append(record.value, record.key, record.headers, record.timestamp, delta)
            elif isinstance(item, tuple) and len(item) == 2:
                self._append(_content(item[1], "value"), _content(item[0], "key"), (), -1, delta)
            else:
                raise TypeError(f"record is {type(item).__name__}; it must be a Record or a tuple (key, value)")
        if deltas is not None and next(deltas, None) is not None:
            raise InvalidRecordError(f"offset_deltas has more than {self.record_count} deltas, the number of records")

    cdef _append(self, bytes value, bytes key, headers, long long timestamp, long long delta):
        cdef long long body
        cdef unsigned char *p
        cdef long long base_timestamp
        cdef unsigned long long timestamp_delta
        cdef tuple pairs = ()
        if timestamp < -1:
            raise self._invalid(f"timestamp is {timestamp}; it must be -1 (no timestamp) or not negative")
        if delta <= self.last_offset_delta or delta > INT_MAX:
            raise self._invalid(
                f"offset delta is {delta}; it must be after the last one, {self.last_offset_delta}, and fit 32 bits"
            )
        if headers is None or len(headers):
            pairs = _checked_headers(headers)
        base_timestamp = self.base_timestamp if self._has_base_timestamp else timestamp
        timestamp_delta = <unsigned long long>timestamp - <unsigned long long>base_timestamp
        body = (
            1 + varint_size(<long long>timestamp_delta) + varint_size(delta)
            + _field_size(key) + _field_size(value) + varint_size(len(pairs))
        )
        if pairs:
            body += self._headers_size(pairs)
        p = self._reserve(body)
        # Nothing can fail after this line, so a record with an error leaves the writer unchanged.
        self.base_timestamp = base_timestamp
        self._has_base_timestamp = True
        p = write_varint(p, body)
        p[0] = 0
        p = write_varint(p + 1, <long long>timestamp_delta)
        p = write_varint(p, delta)
        p = _write_field(p, key)
        p = _write_field(p, value)
        p = write_varint(p, len(pairs))
        if pairs:
            p = _write_headers(p, pairs)
        self.size = p - self._data
        self.record_count += 1
        self.last_offset_delta = <int>delta
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    cdef long long _headers_size(self, tuple pairs) except -1:
        cdef long long size = 0
        cdef Py_ssize_t length = 0
        for key, value in pairs:
            try:
                PyUnicode_AsUTF8AndSize(key, &length)
            except UnicodeEncodeError as error:
                raise self._invalid(f"header key {key!r} can't be written as UTF-8: {error}") from None
            size += varint_size(length) + length + _field_size(value)
        return size

    cdef unsigned char *_reserve(self, long long body) except NULL:
        """Make room for a record of `body` bytes and its length. Return a pointer to the end of the data."""
        cdef Py_ssize_t needed = self.size + body + 5
        cdef Py_ssize_t capacity
        cdef void *grown
        if needed > INT_MAX - HEADER_SIZE:
            raise MessageTooLargeError(
                f"records have {needed} bytes with record {self.record_count}; a batch must be smaller than 2 GiB"
            )
        if needed > self._capacity:
            capacity = max(needed, self._capacity * 2, 1024)
            grown = PyMem_Realloc(self._data, capacity)
            if grown == NULL:
                raise MemoryError
            self._data = <unsigned char *>grown
            self._capacity = capacity
        return self._data + self.size

    def _invalid(self, problem):
        return InvalidRecordError(f"record {self.record_count}: {problem}")

    def batch_bytes(self, Py_ssize_t header_size):
        """Return a new bytearray: room for a batch header, then the records."""
        batch = bytearray(header_size + self.size)
        if self.size:
            memcpy(PyByteArray_AS_STRING(batch) + header_size, self._data, self.size)
        return batch


cdef bytes _content(content, str field):
    """Return a key or value as bytes. Other buffers are copied."""
    if content is None or type(content) is bytes:
        return <bytes>content
    try:
        return bytes(memoryview(content))
    except TypeError:
        raise TypeError(f"{field} is {type(content).__name__}; it must be bytes or None") from None


cdef inline long long _field_size(bytes content) noexcept:
    if content is None:
        return 1
    return varint_size(PyBytes_GET_SIZE(content)) + PyBytes_GET_SIZE(content)


cdef inline unsigned char *_write_field(unsigned char *p, bytes content) noexcept:
    cdef Py_ssize_t length
    if content is None:
        return write_varint(p, -1)
    length = PyBytes_GET_SIZE(content)
    p = write_varint(p, length)
    memcpy(p, PyBytes_AS_STRING(content), length)
    return p + length


cdef unsigned char *_write_headers(unsigned char *p, tuple pairs) except NULL:
    cdef Py_ssize_t length = 0
    cdef const char *text
    for key, value in pairs:
        text = PyUnicode_AsUTF8AndSize(key, &length)
        p = write_varint(p, length)
        memcpy(p, text, length)
        p = _write_field(p + length, value)
    return p


def size_upper_bound(value, key, headers):
    """Return the largest size of a record with this content, for any position in a batch and any timestamp."""
    cdef long long size = 5 + 1 + 10 + 5 + 5 + 5 + 5  # length, attributes, the two deltas, three lengths
    size += 0 if value is None else len(value)
    size += 0 if key is None else len(key)
    for name, content in headers:
        size += 5 + len(name.encode()) + 5 + (0 if content is None else len(content))
    return size
