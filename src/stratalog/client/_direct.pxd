# Sending a record from the caller's own thread, for the accumulator; and what a producer has under way, for both threads.

from stratalog.client._batch cimport Batch
from stratalog.client._queues cimport PartitionQueue
from stratalog.net._pipeline cimport Pipeline


cdef class ProduceRequest:
    cdef readonly object broker, connection
    cdef readonly int version
    cdef readonly list batches


cdef class UnderWay:
    cdef readonly set requests             # ProduceRequests without a response
    cdef public double expires_at          # no batch in them is given up before
    cdef public double timer_at            # when the I/O thread looks again, whatever happens
    cdef double _delivery_timeout

    cpdef int add(self, ProduceRequest request) except -1


cdef class DirectPath:
    cdef readonly bint io_thread_waits     # for events: it does nothing else
    cdef readonly bint is_stuck            # a socket did not take all: the I/O thread has to see to it
    cdef UnderWay _under_way
    cdef object _answered, _ids, _attributes
    cdef dict _ways
    cdef int _acks, _timeout_ms
    cdef bint _is_idempotent
    cdef double _request_timeout, _delivery_timeout

    cdef bint post(self, PartitionQueue queue, Batch batch) except -1
    cdef bint _may_send(self, PartitionQueue queue, Batch batch, tuple way, double now) except -1
    cdef bint _send(self, PartitionQueue queue, Batch batch, tuple way, double now) except -1
