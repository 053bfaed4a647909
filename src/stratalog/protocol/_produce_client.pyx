# Produce as a client has it: the request's bytes around batches that are sent where they lie, and the response, read
# in place. Versions 3 to 12; the layouts are in produce_client.py. Every length and count of a response is checked
# against the bytes that are left before anything is made of it.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from stratalog.records._varint cimport load16, load32, load64, store16, store32

from stratalog.errors import MalformedResponseError
from stratalog.protocol.limits import MOST_ANSWERED_ELEMENTS

cdef enum:
    _FLEXIBLE = 9
    _WORTH_A_PIECE = 2048   # bytes: less is copied into the piece around it
    _SMALLEST_TOPIC = 3
    _SMALLEST_PARTITION = 14
    _SMALLEST_RECORD_ERROR = 5

cdef Py_ssize_t _MOST_ELEMENTS = MOST_ANSWERED_ELEMENTS

cdef class _Out:
    """Bytes that grow. What is taken is gone from it."""

    cdef uint8_t *data
    cdef Py_ssize_t size, capacity
    cdef bint flexible

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *room(self, Py_ssize_t count) except NULL:
        """For so many bytes more, which are then part of it."""
        cdef void *grown
        if self.size + count > self.capacity:
            self.capacity = max(self.size + count, 2 * self.capacity, 256)
            grown = realloc(self.data, self.capacity)
            if grown == NULL:
                raise MemoryError
            self.data = <uint8_t *> grown
        self.size += count
        return self.data + self.size - count

    cdef int byte(self, uint8_t value) except -1:
        self.room(1)[0] = value
        return 0

    cdef int int16(self, int value) except -1:
        store16(self.room(2), <unsigned short> value)
        return 0

    cdef int int32(self, Py_ssize_t value) except -1:
        store32(self.room(4), <unsigned int> value)
        return 0

    cdef int raw(self, const void *content, Py_ssize_t count) except -1:
        memcpy(self.room(count), content, count)
        return 0

    cdef int count(self, Py_ssize_t value) except -1:
        """Of an array, or the bytes of a field."""
        if not self.flexible:
            return self.int32(value)
        value += 1
        while value > 0x7F:
            self.byte(<uint8_t> (value & 0x7F | 0x80))
            value >>= 7
        return self.byte(<uint8_t> value)

    cdef int tags(self) except -1:
        """None."""
        return self.byte(0) if self.flexible else 0

    cdef bytes take(self):
        cdef bytes taken = PyBytes_FromStringAndSize(<const char *> self.data, self.size)
        self.size = 0
        return taken


def encode_produce_request(int version, int acks, int timeout_ms, dict topics not None, bytes transactional_id=None):
    """The pieces of a request's body. topics: {name: [(partition, batch), ...], ...}"""
    cdef _Out out = _Out()
    cdef list pieces = []
    cdef bytes name
    cdef bytearray batch
    cdef Py_ssize_t size
    out.flexible = version >= _FLEXIBLE
    if transactional_id is not None:
        if out.flexible:
            out.count(len(transactional_id))
        else:
            out.int16(len(transactional_id))
        out.raw(<const char *> transactional_id, len(transactional_id))
    elif out.flexible:
        out.byte(0)
    else:
        out.int16(-1)
    out.int16(acks)
    out.int32(timeout_ms)
    out.count(len(topics))
    for topic, partitions in topics.items():
        name = (<str> topic).encode()
        if out.flexible:
            out.count(len(name))
        else:
            out.int16(len(name))
        out.raw(<const char *> name, len(name))
        out.count(len(partitions))
        for partition, records in partitions:
            batch = records
            size = len(batch)
            out.int32(partition)
            out.count(size)
            if size < _WORTH_A_PIECE:
                out.raw(PyByteArray_AS_STRING(batch), size)
            else:
                pieces.append(out.take())
                pieces.append(batch)
            out.tags()
        out.tags()
    out.tags()
    if out.size:
        pieces.append(out.take())
    return pieces


cdef class _Reader:
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef Py_ssize_t position, end, elements
    cdef bint flexible

    def __cinit__(self, body, bint flexible):
        PyObject_GetBuffer(body, &self.buffer, PyBUF_SIMPLE)
        self.data = <const uint8_t *> self.buffer.buf
        self.end = self.buffer.len
        self.elements = _MOST_ELEMENTS
        self.flexible = flexible

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef const uint8_t *take(self, Py_ssize_t count) except NULL:
        if count < 0 or count > self.end - self.position:
            raise MalformedResponseError(
                f"Produce: {count} bytes are announced at position {self.position} of the response, "
                f"{self.end - self.position} are left"
            )
        self.position += count
        return self.data + self.position - count

    cdef int16_t int16(self) except? -2:
        return <int16_t> load16(self.take(2))

    cdef int32_t int32(self) except? -2:
        return <int32_t> load32(self.take(4))

    cdef int64_t int64(self) except? -2:
        return <int64_t> load64(self.take(8))

    cdef Py_ssize_t varint(self) except -2:
        cdef Py_ssize_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            byte = self.take(1)[0]
            value |= <Py_ssize_t> (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedResponseError(
                    f"Produce: a length at position {self.position} of the response has more than five bytes"
                )

    cdef Py_ssize_t count(self, Py_ssize_t smallest) except -2:
        cdef Py_ssize_t count = self.varint() - 1 if self.flexible else self.int32()
        if count < 0:
            count = 0  # null
        if count * smallest > self.end - self.position or count > self.elements:
            raise MalformedResponseError(
                f"Produce: an array of {count} elements at position {self.position} of the response, "
                f"{self.end - self.position} bytes are left"
            )
        self.elements -= count
        return count

    cdef string(self):
        cdef Py_ssize_t size = self.varint() - 1 if self.flexible else self.int16()
        cdef const uint8_t *text
        if size < 0:
            return None
        if size == 0:
            return ""
        text = self.take(size)
        return PyUnicode_DecodeUTF8(<const char *> text, size, "replace")

    cdef int skip_tags(self) except -1:
        cdef Py_ssize_t tags
        if not self.flexible:
            return 0
        tags = self.varint()
        while tags > 0:
            self.varint()
            self.take(self.varint())
            tags -= 1
        return 0


def decode_produce_response(int version, body):
    """(throttle time in ms, {(topic, partition): (error code, base offset, log append time, message), ...})"""
    cdef _Reader reader = _Reader(body, version >= _FLEXIBLE)
    cdef dict found = {}
    cdef Py_ssize_t topic_count = reader.count(_SMALLEST_TOPIC)
    cdef Py_ssize_t partition_count, topic, partition
    cdef int number, code
    cdef long long base_offset, append_time
    for topic in range(topic_count):
        name = reader.string()
        partition_count = reader.count(_SMALLEST_PARTITION)
        for partition in range(partition_count):
            number = reader.int32()
            code = reader.int16()
            base_offset = reader.int64()
            append_time = reader.int64()
            if version >= 5:
                reader.int64()  # log start offset
            message = _error_message(reader) if version >= 8 else None
            reader.skip_tags()
            found[name, number] = (code, base_offset, append_time, message)
        reader.skip_tags()
    throttle = reader.int32()
    reader.skip_tags()
    return throttle, found


cdef _error_message(_Reader reader):
    """The broker's, and of the records that it names the first."""
    cdef Py_ssize_t record
    cdef Py_ssize_t count = reader.count(_SMALLEST_RECORD_ERROR)
    first = None
    for record in range(count):
        index = reader.int32()
        said = reader.string()
        reader.skip_tags()
        if first is None:
            first = f"record {index} of the batch: {said}" if said else f"record {index} of the batch"
    message = reader.string()
    if first is None:
        return message
    return f"{message} ({first})" if message else first
