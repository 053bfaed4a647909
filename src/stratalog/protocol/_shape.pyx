"""Checks that bytes have the shape of a message, by stepping over lengths and counts without creating objects.

Before bytes from a client become objects, every length and count in them is compared with the bytes that are left, and
the elements of its arrays are limited. Without that, a few bytes could make a parser allocate 34 GB. Tagged fields,
which newer clients may send and receivers have to ignore if they don't know them (KIP-482), are removed.

A shape is an array of numbers, made by shapes.py: an operation, its argument, and for arrays and nullable structures
the operations of their contents.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy

from stratalog.protocol._wire_fields cimport Cursor, open_cursor

from stratalog.errors import MalformedRequestError

cpdef enum Operation:
    FIXED = 0  # argument: number of bytes
    STRING = 1  # 16 bits of length; argument: 1 if null is allowed
    BYTES = 2  # 32 bits
    COMPACT = 3  # length plus 1 as a varint
    ARRAY = 4  # argument: as above; next: how many numbers describe an element
    COMPACT_ARRAY = 5
    NULLABLE = 6  # a byte, negative for null; argument: how many numbers describe the structure
    TAGS = 7  # tagged fields, all unknown

cdef struct Stripped:
    bint has_tags        # there were tagged fields
    uint8_t *out         # copy of everything else; NULL: don't copy
    Py_ssize_t size      # of the copy
    Py_ssize_t copied    # position in the frame up to which it was copied


cdef inline Py_ssize_t _length(Cursor cursor, int32_t operation) except? -2:
    """Return a length; -1 is null."""
    if operation == COMPACT or operation == COMPACT_ARRAY:
        return cursor.varint() - 1
    return cursor.int16() if operation == STRING else cursor.int32()


cdef int _skip_tags(Cursor cursor, Stripped *stripped) except -1:
    cdef Py_ssize_t start = cursor.position
    cdef bint has_tags = cursor.left() > 0 and cursor.data[start] != 0
    cursor.skip_tags()
    stripped.has_tags = stripped.has_tags or has_tags
    if stripped.out != NULL:
        _copy_up_to(cursor, stripped, start)
        stripped.out[stripped.size] = 0
        stripped.size += 1
        stripped.copied = cursor.position
    return 0


cdef void _copy_up_to(Cursor cursor, Stripped *stripped, Py_ssize_t end) noexcept:
    memcpy(stripped.out + stripped.size, cursor.data + stripped.copied, end - stripped.copied)
    stripped.size += end - stripped.copied


cdef int _follow(Cursor cursor, Stripped *stripped, const int32_t *shape, int32_t size) except -1:
    cdef int32_t at = 0
    cdef int32_t operation, argument
    cdef Py_ssize_t length
    while at < size:
        operation = shape[at]
        argument = shape[at + 1]
        if operation == FIXED:
            cursor.take(argument)
        elif operation == TAGS:
            _skip_tags(cursor, stripped)
        elif operation == NULLABLE:
            if cursor.int8() >= 0:
                _follow(cursor, stripped, shape + at + 2, argument)
            at += argument
        else:
            length = _length(cursor, operation)
            if length < 0:
                if length != -1 or not argument:
                    raise cursor.fail(f"the length before position {cursor.position} is negative")
            elif operation < ARRAY:
                cursor.take(length)
            else:
                cursor.spend_array(length, 1)  # an element has at least one byte
                while length > 0:
                    length -= 1
                    _follow(cursor, stripped, shape + at + 3, shape[at + 2])
            if operation >= ARRAY:
                at += 1 + shape[at + 2]
        at += 2
    return 0


def check_shape(frame not None, const int32_t[::1] shape not None, Py_ssize_t most_elements):
    """Check that the frame begins with this shape, and has at most `most_elements` array elements and tagged fields.

    Return None, or the frame without its tagged fields if it has any. Bytes after the shape are ignored, as in Kafka:
    librdkafka's Metadata request for all topics has three bytes too many.
    """
    cdef Cursor cursor = open_cursor(frame, 0, True, most_elements, MalformedRequestError, "")
    cdef Stripped stripped = Stripped(has_tags=False, out=NULL, size=0, copied=0)
    _follow(cursor, &stripped, &shape[0], <int32_t> shape.shape[0])
    if not stripped.has_tags:
        return None
    copy = PyBytes_FromStringAndSize(NULL, cursor.end)
    cursor = open_cursor(frame, 0, True, most_elements, MalformedRequestError, "")
    stripped.out = <uint8_t *> PyBytes_AS_STRING(copy)
    _follow(cursor, &stripped, &shape[0], <int32_t> shape.shape[0])
    _copy_up_to(cursor, &stripped, cursor.end)
    return memoryview(copy)[:stripped.size]
