# Checks the framing of a batch's records piece by piece during decompression: a batch of a few kilobytes may decompress
# to hundreds of megabytes, which need not be in memory at once. The rules are those of validation._walk.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MAX, LLONG_MIN

from stratalog.records._record_fields cimport SMALLEST_HEADER, SMALLEST_RECORD

from stratalog.errors import InvalidRecordError

cdef enum State:
    LENGTH
    ATTRIBUTES
    TIMESTAMP_DELTA
    OFFSET_DELTA
    KEY_LENGTH
    VALUE_LENGTH
    HEADER_COUNT
    HEADER_KEY_LENGTH
    HEADER_VALUE_LENGTH

cdef enum:
    INT_SHIFTS = 28   # a varint of an int has at most five bytes
    LONG_SHIFTS = 63  # a varint of a long has at most ten bytes


cdef class RecordStream:
    """A check of records that arrive in pieces: call feed() with the decompressed bytes in order, then finish(). Both
    raise InvalidRecordError at the first record that is not valid. `absent` is the timestamp delta of a record without
    a timestamp, which min_timestamp_delta ignores."""

    cdef readonly int null_keys
    cdef readonly long long max_timestamp_delta
    cdef readonly long long min_timestamp_delta
    cdef int _count
    cdef int _index
    cdef long long _absent
    cdef State _state
    cdef long long _left  # bytes of the record that are not read yet
    cdef long long _skip  # bytes of them that belong to the current key or value
    cdef int _headers_left
    cdef unsigned long long _raw
    cdef int _shift

    def __init__(self, int count, long long absent):
        self._count = count
        self._absent = absent
        self._state = LENGTH
        self.max_timestamp_delta = LLONG_MIN
        self.min_timestamp_delta = LLONG_MAX

    def feed(self, data):
        cdef Py_buffer view
        cdef const char *problem
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                problem = self._walk(<const unsigned char *>view.buf, <const unsigned char *>view.buf + view.len)
        finally:
            PyBuffer_Release(&view)
        if problem != NULL:
            self._refuse(problem)

    def finish(self):
        if self._index < self._count:
            self._refuse(b"length goes past the end of the batch")

    cdef _refuse(self, const char *problem):
        raise InvalidRecordError(f"record {self._index} of {self._count}: {problem.decode()}")

    cdef const char *_walk(self, const unsigned char *p, const unsigned char *end) noexcept nogil:
        cdef const char *problem
        cdef long long step
        cdef unsigned long long byte
        while p < end:
            if self._skip:
                step = min(self._skip, <long long>(end - p))
                p += step
                self._skip -= step
                self._left -= step
                if self._skip == 0:
                    problem = self._end_record_if_done()
                    if problem != NULL:
                        return problem
                continue
            if self._index == self._count:
                return b"bytes are left over after the last record"
            byte = p[0]
            p += 1
            if self._state != LENGTH:
                if self._left == 0:
                    return b"length is less than the fields need"
                self._left -= 1
            if self._state == ATTRIBUTES:
                self._state = TIMESTAMP_DELTA
                continue
            self._raw |= (byte & 0x7F) << self._shift
            if byte >= 0x80:
                self._shift += 7
                if self._shift > (LONG_SHIFTS if self._state == TIMESTAMP_DELTA else INT_SHIFTS):
                    return b"a number is too long"
                continue
            if byte > (1 if self._shift == LONG_SHIFTS else 0x0F if self._is_last_of_int() else 0x7F):
                return b"a number is too large"
            problem = self._take(<long long>(self._raw >> 1) ^ -<long long>(self._raw & 1))
            self._raw = 0
            self._shift = 0
            if problem == NULL and self._skip == 0:
                problem = self._end_record_if_done()
            if problem != NULL:
                return problem
        return NULL

    cdef bint _is_last_of_int(self) noexcept nogil:
        return self._shift == INT_SHIFTS and self._state != TIMESTAMP_DELTA

    cdef const char *_take(self, long long value) noexcept nogil:
        """Use the number that was just read as the field that `_state` names."""
        if self._state == LENGTH:
            if value < SMALLEST_RECORD - 1:
                return b"length is less than the fields need"
            self._left = value
            self._state = ATTRIBUTES
        elif self._state == TIMESTAMP_DELTA:
            if value > self.max_timestamp_delta:
                self.max_timestamp_delta = value
            if value < self.min_timestamp_delta and value != self._absent:
                self.min_timestamp_delta = value
            self._state = OFFSET_DELTA
        elif self._state == OFFSET_DELTA:
            if value != self._index:
                return b"offset delta is not its index in the batch"
            self._state = KEY_LENGTH
        elif self._state == KEY_LENGTH:
            self.null_keys += value < 0
            self._state = VALUE_LENGTH
            return self._skip_content(value, -1, b"key length goes past the end of the record")
        elif self._state == VALUE_LENGTH:
            self._state = HEADER_COUNT
            return self._skip_content(value, -1, b"value length goes past the end of the record")
        elif self._state == HEADER_COUNT:
            if value < 0 or value > self._left // SMALLEST_HEADER:
                return b"header count does not fit the record"
            self._headers_left = <int>value
            self._state = HEADER_KEY_LENGTH
        elif self._state == HEADER_KEY_LENGTH:
            self._state = HEADER_VALUE_LENGTH
            return self._skip_content(value, 0, b"header key length goes past the end of the record")
        else:
            self._headers_left -= 1
            self._state = HEADER_KEY_LENGTH
            return self._skip_content(value, -1, b"header value length goes past the end of the record")
        return NULL

    cdef const char *_skip_content(self, long long length, int least, const char *problem) noexcept nogil:
        if length < least or length > self._left:
            return problem
        self._skip = max(length, 0)
        return NULL

    cdef const char *_end_record_if_done(self) noexcept nogil:
        """End the record if its last field was read: the next field would be a header, and no header is left."""
        if self._state != HEADER_KEY_LENGTH or self._headers_left:
            return NULL
        if self._left:
            return b"length leaves bytes over"
        self._index += 1
        self._state = LENGTH
        return NULL
