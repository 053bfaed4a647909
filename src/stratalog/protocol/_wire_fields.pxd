# The primitive fields of the wire in C: Cursor reads them, Output writes them. All kernels read requests and responses
# with a Cursor, so that limits are checked in one place.

cimport cython
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from stratalog.records._varint cimport load16, load32, load64, store16, store32, store64

cdef enum:
    TOPIC_ID_SIZE = 16


@cython.final
cdef class Cursor:
    cdef Py_buffer _buffer
    cdef const uint8_t *data
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef bint flexible             # lengths are varints plus 1, and tagged fields end each structure
    cdef Py_ssize_t _elements      # how many more are allowed
    cdef Py_ssize_t _most_elements
    cdef bint _has_buffer
    cdef object _error             # class of the exception
    cdef str _prefix               # of the exception's messages

    cdef inline Py_ssize_t left(self) noexcept:
        return self.end - self.position

    cdef inline const uint8_t *take(self, Py_ssize_t count) except NULL:
        """Step over `count` bytes and return a pointer to the first."""
        if count < 0 or count > self.end - self.position:
            self.fail_short(count)
        self.position += count
        return self.data + self.position - count

    cdef inline int8_t int8(self) except? -2:
        return <int8_t> self.take(1)[0]

    cdef inline int16_t int16(self) except? -2:
        return <int16_t> load16(self.take(2))

    cdef inline int32_t int32(self) except? -2:
        return <int32_t> load32(self.take(4))

    cdef inline int64_t int64(self) except? -2:
        return <int64_t> load64(self.take(8))

    cdef inline Py_ssize_t varint(self) except -2:
        """Read an unsigned number of at most 32 bits."""
        cdef Py_ssize_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            byte = self.take(1)[0]
            value |= <Py_ssize_t> (byte & 0x7F) << shift
            if not byte & 0x80:
                if value >> 32:
                    self.fail_varint()
                return value
            shift += 7
            if shift > 28:
                self.fail_varint()

    cdef inline Py_ssize_t length(self, bint is_short) except? -2:
        """Read the length of a string (short), of bytes or of an array; -1 is null."""
        if self.flexible:
            return self.varint() - 1
        return self.int16() if is_short else self.int32()

    cdef inline Py_ssize_t nullable_count(self, Py_ssize_t smallest) except? -2:
        """Read the length of an array whose elements take at least `smallest` bytes each; -1 is null."""
        cdef Py_ssize_t count = self.length(False)
        if count != -1:
            self.spend_array(count, smallest)
        return count

    cdef inline Py_ssize_t count(self, Py_ssize_t smallest) except -2:
        """Read the length of an array that can't be null."""
        cdef Py_ssize_t count = self.length(False)
        self.spend_array(count, smallest)
        return count

    cdef inline int spend_array(self, Py_ssize_t count, Py_ssize_t smallest) except -1:
        if count < 0 or count > (self.end - self.position) // smallest:
            self.fail_array(count)
        return self.spend(count)

    cdef inline int spend(self, Py_ssize_t count) except -1:
        """Count elements or tagged fields towards the limit."""
        self._elements -= count
        if self._elements < 0:
            self.fail_elements()
        return 0

    cdef inline int skip_tags(self) except -1:
        """Step over tagged fields that are not used."""
        cdef Py_ssize_t tags
        if not self.flexible:
            return 0
        tags = self.varint()
        self.spend(tags)
        while tags > 0:
            self.varint()
            self.take(self.varint())
            tags -= 1
        return 0

    cdef nullable_string(self, const char *errors)
    cdef topic(self, bint by_id)
    cdef int finish(self) except -1
    cdef fail(self, str problem)
    cdef int fail_short(self, Py_ssize_t count) except -1
    cdef int fail_varint(self) except -1
    cdef int fail_array(self, Py_ssize_t count) except -1
    cdef int fail_elements(self) except -1


# Read `data` from `position` on. Arrays may have `most_elements` elements in total. Errors are instances of `error`,
# with messages that begin with `prefix`.
cdef Cursor open_cursor(data, Py_ssize_t position, bint flexible, Py_ssize_t most_elements, error, str prefix)


@cython.final
cdef class Output:
    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t _capacity
    cdef bint flexible

    cdef int grow(self, Py_ssize_t count) except -1
    cdef bytes take(self)

    cdef inline uint8_t *room(self, Py_ssize_t count) except NULL:
        """Add `count` bytes, and return a pointer to the first."""
        if self.size + count > self._capacity:
            self.grow(count)
        self.size += count
        return self.data + self.size - count

    cdef inline int byte(self, uint8_t value) except -1:
        self.room(1)[0] = value
        return 0

    cdef inline int int16(self, int16_t value) except -1:
        store16(self.room(2), <unsigned short> value)
        return 0

    cdef inline int int32(self, int32_t value) except -1:
        store32(self.room(4), <unsigned int> value)
        return 0

    cdef inline int int64(self, int64_t value) except -1:
        store64(self.room(8), <unsigned long long> value)
        return 0

    cdef inline int varint(self, Py_ssize_t value) except -1:
        while value > 0x7F:
            self.byte(<uint8_t> (value & 0x7F | 0x80))
            value >>= 7
        return self.byte(<uint8_t> value)

    cdef inline int count(self, Py_ssize_t value) except -1:
        """Write the length of an array or of bytes; -1 is null."""
        return self.varint(value + 1) if self.flexible else self.int32(<int32_t> value)

    cdef inline int raw(self, const void *content, Py_ssize_t count) except -1:
        memcpy(self.room(count), content, count)
        return 0

    cdef inline int string(self, bytes encoded) except -1:
        """Write a string that is encoded in UTF-8; None is null."""
        cdef Py_ssize_t length = -1 if encoded is None else len(encoded)
        if self.flexible:
            self.varint(length + 1)
        else:
            self.int16(<int16_t> length)
        return 0 if encoded is None else self.raw(<const char *> encoded, length)

    cdef inline int tags(self) except -1:
        """Write an empty section of tagged fields, if there is one."""
        return self.byte(0) if self.flexible else 0
