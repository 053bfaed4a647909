# The requests of one connection that are in flight: their correlation ids, the receivers of their responses, and the
# bytes that the socket has not taken yet. BrokerConnection adds requests in its event loop's thread. Another thread may
# send a request with `send_now` while the loop's thread waits for events and does nothing else.
#
# That is for callers with a small request and an idle connection. They would otherwise have to wake the loop's thread,
# which costs more than sending the request. There is no lock: `is_idle` and `send_now` run no Python code and keep the
# GIL, so each is atomic if the caller turns off the garbage collector. While the loop's thread waits, the state here is
# consistent. No interrupt can come in between either.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.string cimport memcpy

from stratalog.records._varint cimport store16, store32

import os
from collections import deque

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    ssize_t send(int fd, const void *data, size_t size, int flags)

cdef enum:
    _SIZE = 4
    _HEADER = 12  # size, API key, version, correlation id

cdef long long _NUMBERS = 1LL << 31
cdef double _NEVER = float("inf")


def send_small(int fd, bytes data not None):
    """Send like socket.send, but keep the GIL, since getting it back from a thread that computes would take longer."""
    cdef ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    cdef int problem = errno
    if sent < 0:
        raise OSError(problem, os.strerror(problem))
    return sent


@cython.final
cdef class InFlight:
    """A request without a response yet. `answered` is called with the body of the response or with an error."""

    @property
    def what(self):
        return f"{self.key.name} v{self.version}"


@cython.final
cdef class Pipeline:
    """The pipeline of the connection with this file descriptor. Correlation ids wrap around, as Kafka's do."""

    def __cinit__(self, int fd, bytes client_id not None, long long correlation_id=0):
        self._fd = fd
        self._client_id = client_id
        self._correlation_id = correlation_id
        self.in_flight = deque()
        self.out = deque()
        self.timer_at = _NEVER

    def close(self):
        """Forget all requests, and return those without a response. After that, `send_now` can't be used."""
        cdef list waiting = list(self.in_flight)
        self.is_closed = True
        self.in_flight.clear()
        self.out.clear()
        return waiting

    def number(self):
        """Return the correlation id of the next request, which expects no response."""
        return self._next_id()

    def expect(self, bint flexible, double deadline, answered, key, int version):
        """Return the correlation id of the next request, which expects its response after all others."""
        cdef long long correlation_id = self._next_id()
        self._expect(correlation_id, flexible, deadline, answered, key, version)
        return correlation_id

    cpdef bint is_idle(self, double deadline) except -1:
        """Return whether `send_now` is allowed: nothing is in flight, and the timer is set before `deadline`."""
        return not (self.is_closed or self.in_flight or self.out or self.timer_at > deadline)

    cpdef bint send_now(
        self, key, int version, bint flexible, bytes body, double now, double deadline, answered
    ) except -1:
        """Send a request. The loop's thread calls `answered`, as for BrokerConnection.post. Return False if the socket
        did not take all of it. Then the loop's thread has to call `BrokerConnection.write_on`."""
        cdef long long correlation_id = self._correlation_id
        cdef bytes client_id = self._client_id
        cdef Py_ssize_t head = _HEADER + PyBytes_GET_SIZE(client_id) + flexible
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, head + PyBytes_GET_SIZE(body))
        cdef unsigned char *p = <unsigned char *> PyBytes_AS_STRING(frame)
        cdef ssize_t sent
        store32(p, <unsigned int> (PyBytes_GET_SIZE(frame) - _SIZE))
        store16(p + 4, <unsigned short> <int> key)
        store16(p + 6, <unsigned short> version)
        store32(p + 8, <unsigned int> correlation_id)
        memcpy(p + _HEADER, PyBytes_AS_STRING(client_id), PyBytes_GET_SIZE(client_id))
        if flexible:
            p[head - 1] = 0
        memcpy(p + head, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        self._expect(self._next_id(), flexible, deadline, answered, key, version)
        self.last_used = now
        sent = send(self._fd, p, PyBytes_GET_SIZE(frame), MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent == PyBytes_GET_SIZE(frame):
            return True
        # An error shows again when the loop's thread sends the rest.
        self.out.append(memoryview(frame)[max(sent, 0):])
        return False

    cdef long long _next_id(self) noexcept:
        cdef long long correlation_id = self._correlation_id
        self._correlation_id = (correlation_id + 1) % _NUMBERS
        return correlation_id

    cdef int _expect(
        self, long long correlation_id, bint flexible, double deadline, answered, key, int version
    ) except -1:
        cdef InFlight entry = InFlight.__new__(InFlight)
        entry.correlation_id = correlation_id
        entry.flexible = flexible
        entry.deadline = deadline
        entry.answered = answered
        entry.key = key
        entry.version = version
        self.in_flight.append(entry)
        return 0
