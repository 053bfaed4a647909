# CRC-32C, the checksum of batches and snapshots. crc32c_x86.h computes it if the processor has the instructions,
# otherwise the crc32c package. The results are the same.

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory

from crc32c import crc32c as _portable

cdef extern from "crc32c_x86.h" nogil:
    bint crc32c_prepare()
    unsigned int crc32c_update(unsigned int crc, const unsigned char *data, size_t size)

cdef enum:
    WORTH_RELEASING_THE_GIL = 32768

cdef bint _fast = crc32c_prepare()


cdef unsigned int crc32c_of(const unsigned char *data, Py_ssize_t size, unsigned int crc=0) except? 0:
    if not _fast:
        return _portable(PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ), crc)
    if size < WORTH_RELEASING_THE_GIL:
        return ~crc32c_update(~crc, data, size)
    with nogil:
        crc = ~crc32c_update(~crc, data, size)
    return crc


cdef bint crc32c_is_fast() noexcept:
    return _fast


cdef unsigned int crc32c_fast(const unsigned char *data, Py_ssize_t size) noexcept nogil:
    return ~crc32c_update(0xFFFFFFFF, data, size)


def crc32c(data, unsigned int crc=0):
    """Return the CRC-32C of a buffer, or of the data with checksum `crc` followed by the buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32c_of(<const unsigned char *>view.buf, view.len, crc)
    finally:
        PyBuffer_Release(&view)
