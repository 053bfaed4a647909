# The requests of one connection that are in flight, for kernels that send a request themselves.

cdef class InFlight:
    cdef readonly long long correlation_id
    cdef readonly bint flexible
    cdef readonly double deadline
    cdef readonly object answered
    cdef readonly object key
    cdef readonly int version


cdef class Pipeline:
    cdef readonly object in_flight         # a deque of InFlight, the oldest first
    cdef readonly object out               # a deque of memoryviews that the socket has not taken yet
    cdef public double timer_at            # when the connection looks for late responses
    cdef public double last_used
    cdef readonly bint is_closed
    cdef int _fd
    cdef bytes _client_id
    cdef long long _correlation_id

    cpdef bint is_idle(self, double deadline) except -1
    cpdef bint send_now(
        self, key, int version, bint flexible, bytes body, double now, double deadline, answered
    ) except -1
    cdef long long _next_id(self) noexcept
    cdef int _expect(
        self, long long correlation_id, bint flexible, double deadline, answered, key, int version
    ) except -1
