# A request that a thread other than the event loop's sends, while the loop's does nothing but wait for events.
#
# It is for who has a small request and an idle connection, and would otherwise have to wake the loop's thread for it,
# which costs more than to send it. There is no lock: no function here runs Python code, gives the GIL away or has the
# garbage collector run, so each is whole under the GIL; and while the loop's thread waits, nothing of the connection's
# is half changed. No interrupt can come in between either.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.string cimport memcpy

from stratalog.records._varint cimport store16, store32

import os

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    ssize_t send(int fd, const void *data, size_t size, int flags)

cdef enum:
    _SIZE = 4
    _HEADER = 12  # size, API key, version, correlation id

cdef long long _NUMBERS = 1LL << 31


def send_small(int fd, bytes data not None):
    """As socket.send, with the GIL kept: it is needed again before a thread that computes would give it back."""
    cdef ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    cdef int problem = errno
    if sent < 0:
        raise OSError(problem, os.strerror(problem))
    return sent


def is_idle(connection, double deadline):
    """Whether nothing is under way on it, and its timer is set no later than this: then `send_now` may be called."""
    return not (
        connection.is_closed or connection._in_flight or connection._out or connection._timer_at > deadline
    )


def send_now(connection, int fd, type kind, key, int version, bint flexible, bytes client_id, bytes body, double now,
             double deadline, answered):
    """Send the request; `answered` is called in the loop's thread, as BrokerConnection.post says. Returns False where
    the socket did not take all of it: then `connection.write_on` has to be called in the loop's thread."""
    cdef long long correlation_id = connection._correlation_id
    cdef Py_ssize_t head = _HEADER + PyBytes_GET_SIZE(client_id) + flexible
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, head + PyBytes_GET_SIZE(body))
    cdef unsigned char *p = <unsigned char *> PyBytes_AS_STRING(frame)
    cdef ssize_t sent
    cdef tuple fields = (correlation_id, flexible, deadline, answered, key, version)
    entry = tuple.__new__(kind, fields)
    store32(p, <unsigned int> (PyBytes_GET_SIZE(frame) - _SIZE))
    store16(p + 4, <unsigned short> <int> key)
    store16(p + 6, <unsigned short> version)
    store32(p + 8, <unsigned int> correlation_id)
    memcpy(p + _HEADER, PyBytes_AS_STRING(client_id), PyBytes_GET_SIZE(client_id))
    if flexible:
        p[head - 1] = 0
    memcpy(p + head, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    connection._correlation_id = (correlation_id + 1) % _NUMBERS
    connection.last_used = now
    connection._in_flight.append(entry)
    sent = send(fd, p, PyBytes_GET_SIZE(frame), MSG_DONTWAIT | MSG_NOSIGNAL)
    if sent == PyBytes_GET_SIZE(frame):
        return True
    # What is wrong, the loop's thread finds out when it sends the rest.
    connection._out.append(memoryview(frame)[max(sent, 0):])
    return False
