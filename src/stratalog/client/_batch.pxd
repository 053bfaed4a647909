# A producer's batch and its records' deliveries, for the accumulator.

cdef class Batch:
    cdef readonly object queue             # of its partition
    cdef readonly bytearray data           # room for the header, then the records
    cdef unsigned char *memory             # of `data`
    cdef readonly Py_ssize_t size          # of what is written, with the header: before it is packed, uncompressed
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t charged       # bytes of buffer.memory that it holds
    cdef readonly int record_count
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly double created           # monotonic seconds
    cdef readonly long long number         # batches of a partition are sent in this order,
    cdef readonly int start                # and parts of one that was split in this
    cdef public int attempts               # how often it was sent
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef public int base_sequence          # -1: none yet
    cdef readonly bint is_packed           # compressed, or known to stay as it is
    cdef readonly bint is_done
    cdef readonly object error
    cdef public object last_error          # why it is sent again
    cdef readonly long long base_offset
    cdef readonly long long append_time
    cdef readonly list parts               # of one that was split: [Batch, ...], in order
    cdef bint _is_of_rows                  # of a table, encoded in one go
    cdef object encode                     # what does that; None: it is done, or begun
    cdef long long _generation
    cdef list _waiters
    cdef list _callbacks

    cdef Py_ssize_t record_size(self, Py_ssize_t value, Py_ssize_t key, Py_ssize_t headers, long long timestamp) noexcept
    cdef void fill(self, bytearray data) noexcept
    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef void write(self, bytes value, bytes key, bytes headers, long long timestamp) noexcept
    cdef int add_callback(self, delivery, callback) except -1
    cpdef bint wait(self, double deadline) except -1


cdef class Delivery:
    cdef Batch batch
    cdef int index
    cdef long long timestamp_ms

    cdef Batch settled(self, int *index)


cdef double monotonic() noexcept nogil
cdef long long wall_clock_ms() noexcept nogil
cdef bytes pack_headers(headers)
