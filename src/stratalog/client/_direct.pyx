# The path of a record that need not wait: linger is 0, and no request to its broker is in flight. The thread that calls
# `send` writes the request itself. Otherwise it would have to wake the I/O thread, which takes as long as the rest of
# the way to the broker. The I/O thread handles the response, as always.
#
# There is no lock. `post` runs no Python code, keeps the GIL and turns off the garbage collector, so it is atomic. It
# sends only while the I/O thread waits for events, when the sender's state is consistent. Everything that is less
# simple (a timer to set, a batch to send again, an unknown leader) is left to the I/O thread.

cimport cython

from stratalog.client._batch cimport Batch, monotonic
from stratalog.client._queues cimport PartitionQueue
from stratalog.net._pipeline cimport Pipeline

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

from functools import partial

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.produce import encode_produce_request
from stratalog.protocol.frames import has_flexible_response

cdef enum:
    _MOST_BYTES = 12288  # of a batch; for a larger one it pays to release the GIL during the system call

cdef double _NEVER = 1e300  # the same value as in the accumulator
cdef object _PRODUCE = ApiKey.PRODUCE


@cython.final
cdef class ProduceRequest:
    """A request in flight, and the batches in it."""

    def __cinit__(self, broker, connection, int version, list batches not None):
        self.broker = broker
        self.connection = connection
        self.version = version
        self.batches = batches


@cython.final
cdef class InFlightRequests:
    """The requests of a producer that have no response yet. The sender and the direct path add to them."""

    def __cinit__(self, double delivery_timeout):
        self.requests = set()
        self.expires_at = self.timer_at = _NEVER
        self._delivery_timeout = delivery_timeout

    cpdef int add(self, ProduceRequest request) except -1:
        """Add a request that is about to be sent, or was just sent."""
        cdef Batch batch
        for batch in request.batches:
            if batch.created + self._delivery_timeout < self.expires_at:
                self.expires_at = batch.created + self._delivery_timeout
        self.requests.add(request)
        request.broker.in_flight += 1
        return 0


@cython.final
cdef class DirectPath:
    """Sends for one producer from the threads that call `send`. The I/O thread calls `attach`, `open` and `close`."""

    def __cinit__(self, int acks, int timeout_ms, double delivery_timeout, bint is_idempotent):
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._timeout_ms = timeout_ms
        self._request_timeout = timeout_ms / 1000.0
        self._delivery_timeout = delivery_timeout
        self._routes = {}

    def attach(self, InFlightRequests in_flight not None, ids, attributes, answered):
        """Connect to the sender. The I/O thread calls `answered(request, response, error)` for each request."""
        self._in_flight, self._ids, self._attributes, self._answered = in_flight, ids, attributes, answered

    def open(self, int node_id, broker, connection, int version):
        """Send to this broker from now on, by this connection."""
        flexible = has_flexible_response(_PRODUCE, version)
        self._routes[node_id] = (broker, connection, connection.pipeline, version, flexible)

    def close(self):
        self._routes.clear()

    def write_on(self):
        """Continue to write what sockets did not take. For the I/O thread."""
        self.is_stuck = False
        for _, connection, _, _, _ in list(self._routes.values()):
            connection.write_on()

    def set_waiting(self, bint io_thread_waits):
        """Record whether the I/O thread waits for events and does nothing else."""
        self.io_thread_waits = io_thread_waits

    cdef bint post(self, PartitionQueue queue, Batch batch) except -1:
        """Send the open batch of a partition if that is simple. Return whether it was sent."""
        cdef int collects
        cdef double now
        if not self.io_thread_waits or self.is_stuck or batch.size > _MOST_BYTES:
            return False
        collects = PyGC_Disable()
        try:
            now = monotonic()
            route = self._routes.get(queue.leader)
            return (
                route is not None
                and self._may_send(queue, batch, route, now)
                and self._send(queue, batch, route, now)
            )
        finally:
            if collects:
                PyGC_Enable()

    cdef bint _may_send(self, PartitionQueue queue, Batch batch, tuple route, double now) except -1:
        cdef Pipeline pipeline
        broker, connection, pipeline, _, _ = route
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
            or self._in_flight.timer_at > batch.created + self._delivery_timeout
            or not pipeline.is_idle(now + self._request_timeout)
        )

    cdef bint _send(self, PartitionQueue queue, Batch batch, tuple route, double now) except -1:
        cdef Pipeline pipeline
        broker, connection, pipeline, version, flexible = route
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
        self._in_flight.add(request)
        return not self.is_stuck
