# Receiving a large answer in one go, without the GIL. Between two calls of recv a thread has to have the GIL again, and
# where another thread computes, it waits for that for milliseconds each time, while the socket's buffer stands full.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno

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
    ssize_t recv(int fd, void *data, size_t size, int flags)


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


def receive_rest(int fd, memory, Py_ssize_t filled, int wait_ms, int most_ms):
    """Fill `memory` from position `filled` on, for as long as bytes come within `wait_ms` of each other, and for not
    much longer than `most_ms` in all: others have to have their turn.

    Returns how much of it is filled then, and whether the other side has closed the connection. Raises OSError.
    """
    cdef Py_buffer view
    cdef pollfd waiting
    cdef ssize_t count = 0
    cdef bint is_closed = False
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
                    if _now_ms() >= end or poll(&waiting, 1, wait_ms) <= 0:
                        break
                elif errno != EINTR:
                    problem = errno
                    break
    finally:
        PyBuffer_Release(&view)
    if problem:
        import os

        raise OSError(problem, os.strerror(problem))
    return filled, is_closed
