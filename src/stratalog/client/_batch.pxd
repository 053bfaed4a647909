# A producer's batch and the deliveries of its records, for the accumulator.

cdef class Batch:
    cdef readonly object queue             # the PartitionQueue that it belongs to
    cdef readonly bytearray data           # space for the header, then the records
    cdef unsigned char *memory             # points to the bytes of `data`
    cdef readonly Py_ssize_t size          # of the written bytes with the header; before packing, uncompressed
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t charged       # bytes of buffer.memory that the batch counts for
    cdef readonly int record_count
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly double created           # monotonic seconds
    cdef readonly long long number         # the batches of a partition are sent in this order,
    cdef readonly int start                # and the parts of a batch that was split in this one
    cdef public int attempts               # how often the batch was sent
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef public int base_sequence          # -1 if it has none yet
    cdef readonly bint is_packed           # compressed, or known to stay uncompressed
    cdef readonly bint is_done
    cdef readonly object error
    cdef public object last_error          # why the batch is sent again
    cdef readonly long long base_offset
    cdef readonly long long append_time
    cdef readonly list parts               # the parts of a batch that was split, in order
    cdef bint _is_of_rows                  # rows of a table, encoded in one step
    cdef object encode                     # encodes those rows; None once that has begun
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
