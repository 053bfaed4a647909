# The batch header as a C struct, for the other kernels.

cdef class BatchHeader:
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t size
    cdef readonly long long base_offset
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly long long producer_id
    cdef readonly unsigned int crc
    cdef readonly int leader_epoch
    cdef readonly int magic
    cdef readonly int attributes
    cdef readonly int last_offset_delta
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly int record_count
