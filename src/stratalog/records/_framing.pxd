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


# Parse the header at `position`. Return 1, or 0 if the header goes past `end`. Raise an error if it can't be a header.
cdef int fill_header(BatchHeader header, const unsigned char *data, Py_ssize_t position, Py_ssize_t end) except -1

# Return the CRC-32C of the magic 2 batch that starts at `batch`.
cdef unsigned int checksum(const unsigned char *batch, BatchHeader header) except? 0
