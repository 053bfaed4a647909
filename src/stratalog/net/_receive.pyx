# Receives a large response in one step without the GIL, and a small one with it. A thread that releases the GIL for a
# system call has to get it back. If another thread computes, that takes milliseconds each time, while the socket's
# buffer stays full.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno

import os

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    enum:
        POLLIN
    int poll(pollfd *fds, unsigned long count, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        SOL_SOCKET
        SO_RCVLOWAT
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int setsockopt(int fd, int level, int name, const void *value, unsigned int size)

cdef enum:
    _WORTH_WAKING = 524288  # bytes


cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum:
        CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)


cdef long long _now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef void _wake_at(int fd, Py_ssize_t size) noexcept nogil:
    """Have poll wait for so many bytes. On systems that do not support it, poll returns for each piece."""
    cdef int least = <int> min(size, _WORTH_WAKING)
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least))


def receive_now(int fd, memory, Py_ssize_t start):
    """Receive the bytes that are there into `memory`, from `start` on. For few bytes, as it keeps the GIL.

    Returns the number of bytes; 0 if the other side has closed the connection; -1 if nothing is there. Raises OSError.
    """
    cdef Py_buffer view
    cdef ssize_t count
    cdef int problem
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    if start < 0 or start >= view.len:
        PyBuffer_Release(&view)
        raise ValueError(f"{start} is not a position in {view.len} bytes")
    count = recv(fd, <char *>view.buf + start, view.len - start, MSG_DONTWAIT)
    problem = errno
    PyBuffer_Release(&view)
    if count < 0 and problem not in (EAGAIN, EINTR):
        raise OSError(problem, os.strerror(problem))
    return count


def receive_rest(int fd, memory, Py_ssize_t filled, int wait_ms, int most_ms):
    """Fill `memory` from position `filled` on, while bytes arrive within `wait_ms` of each other, and for little longer
    than `most_ms` in total, since other connections have to be served.

    Returns the new filled size, and whether the other side has closed the connection. Raises OSError.
    """
    cdef Py_buffer view
    cdef pollfd waiting
    cdef ssize_t count = 0
    cdef bint is_closed = False
    cdef bint waits_for_more = False
    cdef int problem = 0
    cdef long long end
    waiting.fd = fd
    waiting.events = POLLIN
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    try:
        with nogil:
            end = _now_ms() + most_ms
            while filled < view.len:
                count = recv(fd, <char *>view.buf + filled, view.len - filled, MSG_DONTWAIT)
                if count > 0:
                    filled += count
                elif count == 0:
                    is_closed = True
                    break
                elif errno == EAGAIN:
                    if _now_ms() >= end:
                        break
                    # A sender on this machine writes piece by piece, and waking for each costs more than copying it.
                    waits_for_more = True
                    _wake_at(fd, view.len - filled)
                    if poll(&waiting, 1, wait_ms) <= 0:
                        break
                elif errno != EINTR:
                    problem = errno
                    break
            if waits_for_more:
                _wake_at(fd, 1)
    finally:
        PyBuffer_Release(&view)
    if problem:
        raise OSError(problem, os.strerror(problem))
    return filled, is_closed
