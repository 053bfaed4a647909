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


def receive_rest(int fd, memory, Py_ssize_t filled, int wait_ms):
    """Fill `memory` from position `filled` on, for as long as bytes come within `wait_ms` of each other.

    Returns how much of it is filled then, and whether the other side has closed the connection. Raises OSError.
    """
    cdef Py_buffer view
    cdef pollfd waiting
    cdef ssize_t count = 0
    cdef bint is_closed = False
    cdef int problem = 0
    waiting.fd = fd
    waiting.events = POLLIN
    PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
    try:
        with nogil:
            while filled < view.len:
                count = recv(fd, <char *>view.buf + filled, view.len - filled, MSG_DONTWAIT)
                if count > 0:
                    filled += count
                elif count == 0:
                    is_closed = True
                    break
                elif errno == EAGAIN:
                    if poll(&waiting, 1, wait_ms) <= 0:
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
