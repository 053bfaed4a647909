# The columns' memory, and adding to it from bytes that another kernel has: the consumer's.

from stratalog.records._column_memory cimport BinaryOut, Memory
from stratalog.records._record_fields cimport RecordFields

cdef enum:  # columns, as bits
    KEY_COLUMN = 1
    VALUE_COLUMN = 2
    HEADERS_COLUMN = 4
    OFFSET_COLUMN = 8
    TIMESTAMP_COLUMN = 16
    TIMESTAMP_TYPE_COLUMN = 32


cdef class ColumnDecoder:
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
    cdef readonly Py_ssize_t rows  # the scan decoder counts them up itself
    cdef const char *_problem
    cdef Py_ssize_t _problem_row

    # As add_batch, from bytes that the caller keeps in place meanwhile.
    cdef int add_payload(
        self, const unsigned char *payload, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) except -1
    cdef int _make_room(self, Py_ssize_t rows, Py_ssize_t content) except -1
    cdef int _check_limit(self) except -1
    cdef int _decode(
        self, const unsigned char *p, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) noexcept nogil
    cdef void _put_place(self, long long offset, long long timestamp, int timestamp_type) noexcept nogil
    cdef void _put_header_offset(self) noexcept nogil
    cdef int _put_object(self, bytes key, bytes value) except -1
    cdef int _walk_headers(self, RecordFields *fields, bint keep) noexcept nogil
