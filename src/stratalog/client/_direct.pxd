# Sending a record from the caller's own thread, for the accumulator, and the requests in flight, for both threads.

from stratalog.client._batch cimport Batch
from stratalog.client._queues cimport PartitionQueue
from stratalog.net._pipeline cimport Pipeline


cdef class ProduceRequest:
    cdef readonly object broker, connection
    cdef readonly int version
    cdef readonly list batches


cdef class InFlightRequests:
    cdef readonly set requests             # ProduceRequests without a response
    cdef public double expires_at          # no batch in these requests expires before
    cdef public double timer_at            # when the I/O thread wakes next in any case
    cdef double _delivery_timeout

    cpdef int add(self, ProduceRequest request) except -1


cdef class DirectPath:
    cdef readonly bint io_thread_waits     # it waits for events and does nothing else
    cdef readonly bint is_stuck            # a socket did not take everything, and the I/O thread has to continue
    cdef InFlightRequests _in_flight
    cdef object _answered, _ids, _attributes
    cdef dict _routes
    cdef int _acks, _timeout_ms
    cdef bint _is_idempotent
    cdef double _request_timeout, _delivery_timeout

    cdef bint post(self, PartitionQueue queue, Batch batch) except -1
    cdef bint _may_send(self, PartitionQueue queue, Batch batch, tuple route, double now) except -1
    cdef bint _send(self, PartitionQueue queue, Batch batch, tuple route, double now) except -1
