# The primitive fields of the wire in C: the methods that are not inlined. _wire_fields.pxd has the others.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc

cdef enum:
    _SMALLEST_CAPACITY = 256


@cython.final
cdef class Cursor:
    """Reads one field after the other. Each length and count is compared with the bytes that are left before it is
    used, and the elements of all arrays together are limited in number."""

    def __dealloc__(self):
        if self._has_buffer:
            PyBuffer_Release(&self._buffer)

    cdef nullable_string(self, const char *errors):
        """Return a string, or None for null. `errors` tells Python's decoder how to handle bytes that are not UTF-8;
        NULL makes them an error."""
        cdef Py_ssize_t size = self.length(True)
        cdef const uint8_t *text
        if size == -1:
            return None
        text = self.take(size)
        try:
            return PyUnicode_DecodeUTF8(<const char *> text, size, errors)
        except UnicodeDecodeError as error:
            raise self.fail(f"the string at position {self.position - size} is not UTF-8") from error

    cdef topic(self, bint by_id):
        """Return a topic's name, or the bytes of its id."""
        if by_id:
            return PyBytes_FromStringAndSize(<const char *> self.take(TOPIC_ID_SIZE), TOPIC_ID_SIZE)
        name = self.nullable_string(NULL)
        if name is None:
            raise self.fail(f"the topic before position {self.position} has no name")
        return name

    cdef int finish(self) except -1:
        if self.position != self.end:
            raise self.fail(f"{self.end - self.position} bytes come after the last field")
        return 0

    cdef fail(self, str problem):
        """Return the exception to raise."""
        return self._error(self._prefix + problem)

    cdef int fail_short(self, Py_ssize_t count) except -1:
        raise self.fail(
            f"the field at position {self.position} announces {count} bytes, but {self.end - self.position} are left"
        )

    cdef int fail_varint(self) except -1:
        raise self.fail(f"the length before position {self.position} does not fit 32 bits")

    cdef int fail_array(self, Py_ssize_t count) except -1:
        raise self.fail(
            f"the array at position {self.position} announces {count} elements, but "
            f"{self.end - self.position} bytes are left"
        )

    cdef int fail_elements(self) except -1:
        raise self.fail(
            f"there are more than {self._most_elements} elements in arrays, counted up to position {self.position}"
        )


cdef Cursor open_cursor(data, Py_ssize_t position, bint flexible, Py_ssize_t most_elements, error, str prefix):
    cdef Cursor cursor = Cursor.__new__(Cursor)
    PyObject_GetBuffer(data, &cursor._buffer, PyBUF_SIMPLE)  # a typed memoryview would cost more than the parsing
    cursor._has_buffer = True
    cursor.data = <const uint8_t *> cursor._buffer.buf
    cursor.position = position
    cursor.end = cursor._buffer.len
    cursor.flexible = flexible
    cursor._elements = cursor._most_elements = most_elements
    cursor._error = error
    cursor._prefix = prefix
    return cursor


@cython.final
cdef class Output:
    """A growing sequence of bytes, written field by field."""

    def __dealloc__(self):
        free(self.data)

    cdef int grow(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t capacity = max(self.size + count, 2 * self._capacity, _SMALLEST_CAPACITY)
        cdef void *grown = realloc(self.data, capacity)
        if grown == NULL:
            raise MemoryError
        self.data = <uint8_t *> grown
        self._capacity = capacity
        return 0

    cdef bytes take(self):
        """Return the bytes written so far, and begin a new piece."""
        cdef bytes taken = PyBytes_FromStringAndSize(<const char *> self.data, self.size)
        self.size = 0
        return taken
