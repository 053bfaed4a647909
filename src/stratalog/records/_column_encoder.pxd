# A column of Arrow, for the kernels that read one.

from stratalog.records._column_memory cimport BinaryIn


cdef class BinaryColumn:
    cdef BinaryIn column
    cdef Py_buffer _validity
    cdef Py_buffer _offsets
    cdef Py_buffer _data
