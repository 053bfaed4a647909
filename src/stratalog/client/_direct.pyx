# The way of a record that has nobody to wait for: linger 0, and nothing under way to its broker. The thread that calls
# `send` writes the request itself, where it would else have to wake the I/O thread, which takes as long as the rest of
# the way to the broker. The answer is the I/O thread's business, as all others are.
#
# There is no lock. `post` runs no Python code, keeps the GIL and has the garbage collector wait, so it is whole; and it
# does something only while the I/O thread waits for events, when nothing of the sender's is half changed. Whatever is not
# as simple as that (a timer to set, a batch to send again, a leader that is not known) is left to the I/O thread.

cimport cython

from stratalog.client._batch cimport Batch, monotonic
from stratalog.client._queues cimport PartitionQueue
from stratalog.net._pipeline cimport Pipeline

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

from functools import partial

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.produce_client import encode_produce_request
from stratalog.protocol.requests import has_flexible_answer

cdef enum:
    _MOST_BYTES = 12288  # of a batch; more is worth a system call without the GIL

cdef double _NEVER = 1e300  # as the accumulator has it
cdef object _PRODUCE = ApiKey.PRODUCE


@cython.final
cdef class ProduceRequest:
    """A request that is under way, and the batches in it."""

    def __cinit__(self, broker, connection, int version, list batches not None):
        self.broker = broker
        self.connection = connection
        self.version = version
        self.batches = batches


@cython.final
cdef class UnderWay:
    """What a producer has sent and has no response to. The sender and the direct path add to it."""

    def __cinit__(self, double delivery_timeout):
        self.requests = set()
        self.expires_at = self.timer_at = _NEVER
        self._delivery_timeout = delivery_timeout

    cpdef int add(self, ProduceRequest request) except -1:
        """A request that is about to be sent, or just was."""
        cdef Batch batch
        for batch in request.batches:
            if batch.created + self._delivery_timeout < self.expires_at:
                self.expires_at = batch.created + self._delivery_timeout
        self.requests.add(request)
        request.broker.in_flight += 1
        return 0


@cython.final
cdef class DirectPath:
    """Of one producer. `attach`, `open` and `close` are for the I/O thread."""

    def __cinit__(self, int acks, int timeout_ms, double delivery_timeout, bint is_idempotent):
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._timeout_ms = timeout_ms
        self._request_timeout = timeout_ms / 1000.0
        self._delivery_timeout = delivery_timeout
        self._ways = {}

    def attach(self, UnderWay under_way not None, ids, attributes, answered):
        """`answered(request, response, error)` is called in the I/O thread for each request that is sent here."""
        self._under_way, self._ids, self._attributes, self._answered = under_way, ids, attributes, answered

    def open(self, int node_id, broker, connection, int version):
        """From now on there is a way to this broker."""
        flexible = has_flexible_answer(_PRODUCE, version)
        self._ways[node_id] = (broker, connection, connection.pipeline, version, flexible)

    def close(self):
        self._ways.clear()

    def write_on(self):
        """What sockets did not take, in the I/O thread."""
        self.is_stuck = False
        for _, connection, _, _, _ in list(self._ways.values()):
            connection.write_on()

    def tell(self, bint io_thread_waits):
        """Whether the I/O thread does nothing but wait for events."""
        self.io_thread_waits = io_thread_waits

    cdef bint post(self, PartitionQueue queue, Batch batch) except -1:
        """Send the partition's open batch, if that is simple; whether it was."""
        cdef int collects
        cdef double now
        if not self.io_thread_waits or self.is_stuck or batch.size > _MOST_BYTES:
            return False
        collects = PyGC_Disable()
        try:
            now = monotonic()
            way = self._ways.get(queue.leader)
            return way is not None and self._may_send(queue, batch, way, now) and self._send(queue, batch, way, now)
        finally:
            if collects:
                PyGC_Enable()

    cdef bint _may_send(self, PartitionQueue queue, Batch batch, tuple way, double now) except -1:
        cdef Pipeline pipeline
        broker, connection, pipeline, _, _ = way
        return not (
            queue.open is not batch
            or queue.closed
            or queue.in_flight
            or queue.needs_new_epoch
            or queue.retry_at > now
            or broker.connection is not connection
            or broker.in_flight
            or broker.muted_until > now
            or (self._is_idempotent and self._ids.producer_id < 0)
            or self._ids.lost is not None
            or self._under_way.timer_at > batch.created + self._delivery_timeout
            or not pipeline.is_idle(now + self._request_timeout)
        )

    cdef bint _send(self, PartitionQueue queue, Batch batch, tuple way, double now) except -1:
        cdef Pipeline pipeline
        broker, connection, pipeline, version, flexible = way
        queue.close(False)
        batch.pack(0, None)
        queue.take(self._ids.producer_id, self._ids.producer_epoch)
        try:
            batch.seal(self._attributes)
            pieces = encode_produce_request(
                version, self._acks, self._timeout_ms, {queue.topic: [(queue.partition, batch.data)]}, None
            )
            request = ProduceRequest(broker, connection, version, [batch])
            self.is_stuck = not pipeline.send_now(
                _PRODUCE, version, flexible, b"".join(pieces), now, now + self._request_timeout,
                partial(self._answered, request),
            )
        except MemoryError:
            queue.put_back([batch])
            return False
        self._under_way.add(request)
        return not self.is_stuck
