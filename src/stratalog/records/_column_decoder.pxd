# The memory of columns, for the kernels that add to it: the scan decoder's and the consumer's.

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
    cdef int columns
    cdef size_t most_content
    cdef BinaryOut key
    cdef BinaryOut value
    cdef BinaryOut header_key
    cdef BinaryOut header_value
    cdef Memory header_offsets
    cdef Memory offset
    cdef Memory timestamp
    cdef Memory timestamp_type
    cdef readonly Py_ssize_t rows  # the scan decoder increments this itself
    cdef const char *_problem
    cdef Py_ssize_t _problem_row

    # add_batch() for bytes that the caller keeps alive during the call.
    cdef int add_payload(
        self, const unsigned char *payload, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) except -1
    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t content) except -1
    cdef int check_limit(self) except -1
    cdef int decode(
        self, const unsigned char *p, Py_ssize_t size, int count, long long base_offset, long long base_timestamp,
        int timestamp_type, long long append_time, long long start_offset, long long end_offset,
    ) noexcept nogil
    cdef void put_position(self, long long offset, long long timestamp, int timestamp_type) noexcept nogil
    cdef void put_header_offset(self) noexcept nogil
    cdef int put_object(self, bytes key, bytes value) except -1
    cdef int walk_headers(self, RecordFields *fields, bint keep) noexcept nogil
